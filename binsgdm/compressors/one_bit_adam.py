"""The former place of `binsgdm.systems.one_bit_adam`."""

from binsgdm.systems.one_bit_adam import OneBitAdam

__all__ = ["OneBitAdam"]
