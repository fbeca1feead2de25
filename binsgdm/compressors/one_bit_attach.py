"""The former place of `attach_one_bit_adam`, now in `binsgdm.ddp`."""

from binsgdm.ddp import attach_one_bit_adam

__all__ = ["attach_one_bit_adam"]
