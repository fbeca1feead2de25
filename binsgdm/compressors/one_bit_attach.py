"""The former place of `attach_one_bit_adam`, now in `binsgdm.parallel.ddp`."""

from binsgdm.parallel.ddp import attach_one_bit_adam

__all__ = ["attach_one_bit_adam"]
