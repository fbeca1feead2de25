"""The former place of `binsgdm.systems.one_bit_attach`."""

from binsgdm.systems.one_bit_attach import attach_one_bit_adam

__all__ = ["attach_one_bit_adam"]
