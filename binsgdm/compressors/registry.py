"""The former place of `binsgdm.systems.registry`."""

from binsgdm.systems.registry import SYSTEMS, check_options, make, register

__all__ = ["SYSTEMS", "check_options", "make", "register"]
