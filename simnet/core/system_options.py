"""Options of a compressing system as plain values, as calibrations and measurements carry them."""

import math
from collections.abc import Mapping
from typing import ClassVar

NONE = "none"
"""Stands for an option that is switched off; TOML has no word for it."""
_WORDS: dict[str, bool] = {"true": True, "false": False}
Option = str | int | float | bool


class SystemOptions(dict[str, Option]):
    """Options by name, such as `{"bits": 4, "block_size": 8192}`; not to be changed."""

    example: ClassVar[str] = "{ bits = 4 }"

    @classmethod
    def parse(cls, table: object) -> "SystemOptions":
        """Read a table of plain values.

        Raises:
            ValueError: it is none; the message is the part after "where:".

        Example:
            >>> SystemOptions.parse({"bits": 4, "k": None})
            {'bits': 4, 'k': 'none'}
        """
        if not isinstance(table, Mapping):
            raise ValueError(f"{table!r}: write a table of options, such as {cls.example}")
        return cls({str(key): _plain(key, value) for key, value in table.items()})

    def text(self) -> str:
        """Return the options for people: "bits=4 coding=packed warm_start=true"."""
        return " ".join(f"{key}={value_text(value)}" for key, value in self.items())


def value_text(value: object) -> str:
    """Return the value of an option for people: "4", "true", "none"."""
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def read_option(text: str) -> tuple[str, Option] | None:
    """Return the name and the value of an option such as "bits=4"; None if the text is no option.

    Example:
        >>> read_option("bits=4"), read_option("warm = true"), read_option("bits=")
        (('bits', 4), ('warm', True), None)
    """
    key, _, value = (part.strip() for part in text.partition("="))
    return (key, _read_value(value)) if key and value else None


def _read_value(text: str) -> Option:
    """Return what a text stands for; one that is no finite number stays text."""
    # Words of TOML; every other text stays what it is.
    if text in _WORDS:
        return _WORDS[text]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text) if math.isfinite(float(text)) else text
    except ValueError:
        return text


def _plain(key: object, value: object) -> Option:
    if value is None:
        return NONE
    if not isinstance(value, str | int | float):
        raise ValueError(f"{key}: {value!r}: an option is a number, true, false or text")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key}: {value!r}: must be finite")
    return value
