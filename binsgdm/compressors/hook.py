"""The former place of `binsgdm.systems.ddp_hook`."""

from binsgdm.systems.ddp_hook import compress_gradients
from binsgdm.systems.gradient_exchange import GradientExchange

__all__ = ["GradientExchange", "compress_gradients"]
