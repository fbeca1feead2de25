"""Where writing was; it is in `simnet.files` now."""

from simnet.files import is_special, write_file

__all__ = ["is_special", "write_file"]
