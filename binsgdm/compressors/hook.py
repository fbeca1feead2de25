"""The former place of `binsgdm.systems.hook`."""

from binsgdm.systems.hook import GradientExchange, compress_gradients

__all__ = ["GradientExchange", "compress_gradients"]
