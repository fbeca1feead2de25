"""Quantities as text with a unit, such as "25 Gbit/s", to and from SI numbers.

General unit libraries misread network units: "100 Gb/s" becomes gilberts, "25 MiB" becomes 25,000,000 bytes,
"10Gbps" becomes bytes (decision 2). Here `b` and `bit` are bits, `B` is bytes, K/M/G/T are decimal, Ki/Mi/Gi/Ti are
binary, and a number without a unit is refused.
"""

import math
import re
from functools import lru_cache
from typing import ClassVar, Self, cast

from simnet.core.errors import shown

_DIGITS = "[0-9]+(?:_[0-9]+)*"
_TEXT = re.compile(rf"\s*([-+]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9].*?)\s*")
# Matching takes a time that grows with the square of the digits.
MAX_TEXT = 64
_DECIMAL = {"": 1, "k": 1000, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4, "P": 1000**5}
_BINARY = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4}
_PREFIXES = _DECIMAL | _BINARY


def _scaled(suffixes: dict[str, float], prefixes: dict[str, int]) -> dict[str, float]:
    """Return every prefix joined to every suffix, with its factor to the SI unit."""
    return {p + s: scale * unit for s, unit in suffixes.items() for p, scale in prefixes.items()}


class Quantity(float):
    """A non-negative SI number that is written as text with a unit; a subclass names one dimension.

    A quantity behaves as a float; arithmetic gives plain floats.

    Example:
        >>> Bandwidth.parse("25 Gbit/s") == 25e9 / 8
        True
        >>> Size.parse("25 MiB").text()
        '25 MiB'
    """

    __slots__ = ()
    example: ClassVar[str]
    noun: ClassVar[str]
    factors: ClassVar[dict[str, float]]
    shown: ClassVar[tuple[str, ...]]

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read text such as "25 Gbit/s".

        Raises:
            ValueError: not text, no unit, a unit of another dimension, negative, or not finite. The message is the
                part after "where: what was given:".
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise ValueError(f"{shown(value)}: write a number and a unit in quotes, such as {cls.example!r}")
        return cast(Self, _parsed(cls, value))  # type: ignore[arg-type] # mypy takes __hash__ of its values

    @classmethod
    def _checked(cls, text: str, value: float) -> Self:
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{text!r}: {cls.noun} must be finite and not negative; write for example {cls.example!r}")
        return cls(value)

    @classmethod
    def _advice(cls, unit: str) -> str:
        """Say what to write instead of a unit that is not one of this dimension."""
        lowered = {name.lower(): name for name in cls.factors}
        near = lowered.get(unit.lower())
        if near is not None:
            return f"did you mean {near!r}?"
        return f"write for example {cls.example!r}"

    def text(self) -> str:
        """Return the shortest text that `parse` reads back as exactly this number."""
        if not self:
            return f"0 {self.shown[-1]}"
        texts = [_exact_text(self, unit, self.factors[unit]) for unit in self._units_to_show()]
        return min((t for t in texts if t), key=len, default=f"{float(self)!r} {self.shown[-1]}")

    def _units_to_show(self) -> tuple[str, ...]:
        """Return the units among which `text` takes the shortest."""
        return self.shown


# Results of a sweep repeat the same texts thousands of times.
@lru_cache(maxsize=4096)
def _parsed(kind: type[Quantity], text: str) -> Quantity:
    match = _TEXT.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise ValueError(f"{shown(text)}: write a number and a unit, such as {kind.example!r}")
    number, unit = match.groups()
    factor = kind.factors.get(unit)
    if factor is None:
        raise ValueError(f"{text!r}: {unit!r} is not a unit of {kind.noun}; {kind._advice(unit)}")
    return kind._checked(text, _scale(float(number), factor))


def _exact_text(value: float, unit: str, factor: float) -> str | None:
    """Return `value` in `unit` if that text gives exactly the same float back, else None."""
    for digits in range(1, 18):
        number = f"{value / factor:.{digits}g}"
        if _scale(float(number), factor) == value:
            plain = f"{float(number):.15g}"
            return f"{plain if _scale(float(plain), factor) == value else number} {unit}"
    return None


def _scale(number: float, factor: float) -> float:
    """Return `number x factor` as exact as a float can be: 5 x 1e-6 is 5 / 1000000, not 4.9999999999999996e-06."""
    return number * factor if factor >= 1 else number / round(1 / factor)


MIN_SHOWN_IN_BITS, MIN_SHOWN_IN_BYTES = 125.0, 101e9


class Bandwidth(Quantity):
    """Bytes per second."""

    __slots__ = ()
    example = "25 Gbit/s"
    noun = "bandwidth"
    factors = _scaled({"bit/s": 0.125, "b/s": 0.125, "bps": 0.125, "B/s": 1.0, "Bps": 1.0}, _PREFIXES)
    shown = ("Gbit/s", "Mbit/s", "GB/s", "B/s")

    def _units_to_show(self) -> tuple[str, ...]:
        """Show networks in bits and faster links in bytes, as data sheets do."""
        in_bits = self.shown[:2] if MIN_SHOWN_IN_BITS <= self < MIN_SHOWN_IN_BYTES else ()
        return in_bits if any(_exact_text(self, unit, self.factors[unit]) for unit in in_bits) else self.shown[2:]

    @classmethod
    def _advice(cls, unit: str) -> str:
        if unit.lower() in ("g", "gbit", "gb", "m", "mbit", "mb"):
            return f"did you mean '{unit[0].upper()}bit/s' (bits) or '{unit[0].upper()}B/s' (bytes)?"
        return super()._advice(unit)


class Size(Quantity):
    """Bytes."""

    __slots__ = ()
    example = "25 MiB"
    noun = "size"
    factors = _scaled({"B": 1.0, "byte": 1.0, "bytes": 1.0, "bit": 0.125}, _PREFIXES)
    shown = ("GB", "MiB", "MB", "KiB", "B")

    @classmethod
    def _advice(cls, unit: str) -> str:
        if unit in ("Mb", "Gb", "kb", "Kb"):
            return f"did you mean '{unit[0].upper()}B' (bytes) or '{unit[0].upper()}bit' (bits)?"
        return super()._advice(unit)


class Duration(Quantity):
    """Seconds."""

    __slots__ = ()
    example = "5 us"
    noun = "time"
    factors: ClassVar[dict[str, float]] = {
        "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0,
    }  # fmt: skip
    shown = ("ms", "us", "ns", "s")


def format_seconds(seconds: float) -> str:
    """Return a time for people, three significant digits: "693.6 ms"."""
    shown = _four_digits(seconds)
    for unit, factor in (("h", 3600.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if shown >= factor:
            return f"{shown / factor:.4g} {unit}"
    return f"{shown / 1e-9:.4g} ns" if shown else "0 s"


def format_bytes(num_bytes: float) -> str:
    """Return a size for people, in decimal units: "440.4 MB"."""
    shown = _four_digits(num_bytes)
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if shown >= factor:
            return f"{shown / factor:.4g} {unit}"
    return f"{shown:.4g} B"


def _four_digits(value: float) -> float:
    """Round first, so that the unit fits the shown number: 0.99999 s is "1 s", not "1000 ms"."""
    return float(f"{value:.4g}")
