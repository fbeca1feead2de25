"""The former place of `binsgdm.optimizers.one_bit_adam`."""

from binsgdm.optimizers.one_bit_adam import OneBitAdam

__all__ = ["OneBitAdam"]
