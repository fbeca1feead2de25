"""Read a system that compresses and its options from a word of the command line, such as "qsgd:bits=4"."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from binsgdm.compressors.registry import SYSTEMS, check_options, make
from binsgdm.errors import BinsgdmError

ONE_BIT_ADAM = "one_bit_adam"
NAMES = (*(name for name in SYSTEMS if name != "dense"), ONE_BIT_ADAM)
"""All that can be chosen: those of the registry, which average gradients, and 1-bit Adam, which is an optimizer."""
NEEDED: dict[str, dict[str, Any]] = {name: {"ratio": 0.01} for name in ("top_k", "ms_top_k", "random_k")}
"""Options of systems that do not go without."""
WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
Option = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A system with the options that were given.

    Attributes:
        options: by name, in the order given.
    """

    name: str
    options: tuple[tuple[str, Option], ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """The options as keyword arguments."""
        return dict(self.options)

    @property
    def whole(self) -> dict[str, Any]:
        """The options with the defaults of all others."""
        defaults = {"topology": "flat"} if self.name == ONE_BIT_ADAM else SYSTEMS[self.name].options
        return {**defaults, **self.given}


def choice(text: str, where: str) -> Choice:
    """Read a system: "power_sgd", or "top_k:ratio=0.01" with options as its class takes them.

    Raises:
        BinsgdmError: an unknown system or option, or a value out of range.

    Example:
        >>> choice("qsgd:bits=8,coding=packed", "--system").given
        {'bits': 8, 'coding': 'packed'}
    """
    name, _, options = text.partition(":")
    pairs = [word.partition("=") for word in options.split(",")] if options else []
    if name not in NAMES:
        raise BinsgdmError(f"{where} {text!r}: unknown: give one of {', '.join(NAMES)}")
    if not all(key and is_there for key, is_there, _ in pairs):
        raise BinsgdmError(f"{where} {text!r}: after {name}: give KEY=VALUE,KEY=VALUE, such as qsgd:bits=4")
    given = {key.strip(): _value(value.strip()) for key, _, value in pairs}
    if len(given) < len(pairs):
        raise BinsgdmError(f"{where} {text!r}: an option comes twice: give each once, or --system once more")
    if not {"ratio", "k"} & set(given):
        given = NEEDED.get(name, {}) | given
    _check(name, given, f"{where} {text!r}")
    return Choice(name=name, options=tuple(given.items()))


def text_of(options: Mapping[str, Any]) -> str:
    """Return options as the label of a series, separated by spaces.

    Example:
        >>> text_of({"bits": 4, "k": None, "warm_start": True})
        'bits=4 k=none warm_start=true'
    """
    words = {value: word for word, value in WORDS.items()}
    return " ".join(f"{key}={words[v] if v is None or isinstance(v, bool) else v}" for key, v in options.items())


def _check(name: str, options: dict[str, Any], where: str) -> None:
    if name == ONE_BIT_ADAM:
        if set(options) - {"topology"} or options.get("topology", "flat") != "flat":
            raise BinsgdmError(f"{where}: one_bit_adam is measured flat, in its compression stage; drop the options")
        return
    try:
        check_options(name, options)  # here, too: an option may have the name of an argument of make
        make(name, rank=0, world_size=2, **options)
    except BinsgdmError as error:
        raise BinsgdmError(f"{where}: {error}") from error


def _value(text: str) -> Option:
    if text in WORDS:
        found: Option = WORDS[text]
        return found
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
