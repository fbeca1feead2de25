"""The former place of `binsgdm.parallel.ddp_hook`: to drop."""

from binsgdm.parallel.ddp_hook import compress_gradients
from binsgdm.parallel.gradient_exchange import GradientExchange

__all__ = ["GradientExchange", "compress_gradients"]
