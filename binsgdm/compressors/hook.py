"""The former place of `binsgdm.systems.ddp_hook`."""

from binsgdm.systems.ddp_hook import GradientExchange, compress_gradients

__all__ = ["GradientExchange", "compress_gradients"]
