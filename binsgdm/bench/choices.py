"""Read a system that compresses and its options from a word of the command line, such as "qsgd:bits=4"."""

import inspect
import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from binsgdm.compressors.base import System
from binsgdm.compressors.compressor import CompressorSystem
from binsgdm.compressors.registry import BUILT_IN, SYSTEMS, check_options, make
from binsgdm.compressors.topologies import BETWEEN_NODES
from binsgdm.errors import BinsgdmError

_WORDS: dict[Any, str] = {
    float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "none",
}  # fmt: skip


def check_values(system: type[System], options: Mapping[str, Any]) -> None:
    """Refuse values that are of another kind than their annotations, or that no measurement file can hold.

    Annotations other than plain kinds, their unions and literals allow everything.
    """
    try:
        annotations = {
            parameter.name: parameter.annotation
            for parameter in inspect.signature(system, eval_str=True).parameters.values()
        }
    except Exception:  # an annotation may be any text, such as a name that only a type checker sees
        annotations = {}
    for option, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BinsgdmError(f"{system.name}: {option}: {value!r}: must be finite; give a finite number")
        kinds = _kinds(annotations.get(option, Any))
        if kinds and not any(_is_of_kind(value, kind) for kind in kinds):
            wanted = " or ".join(_WORDS.get(kind, repr(kind)) for kind in kinds)
            raise BinsgdmError(f"{system.name}: {option}: {value!r}: must be {wanted}; give one")


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return what a value may be: plain kinds, and literal values; nothing where that is not known."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(args[0])
    if origin is Literal:
        return args
    if origin in (Union, UnionType):
        members = [_kinds(member) for member in args]
        return tuple(kind for member in members for kind in member) if all(members) else ()
    kind = NoneType if annotation is None else annotation
    return (kind,) if isinstance(kind, type) and kind in _WORDS else ()


def _is_of_kind(value: Any, kind: Any) -> bool:
    if kind not in _WORDS:
        return type(value) is type(kind) and bool(value == kind)
    return type(value) is kind or (kind is float and type(value) is int)


ONE_BIT_ADAM = "one_bit_adam"
TOPOLOGY_OPTIONS = ("topology", "intra_node_dtype")  # of every system, beside its own
WORDS: dict[str, Any] = {"true": True, "false": False, "none": None}
Option = str | int | float | bool | None


def names() -> tuple[str, ...]:
    """Return all that can be chosen: systems that average gradients, and 1-bit Adam, which is an optimizer."""
    return (*(name for name in SYSTEMS if name != "dense"), ONE_BIT_ADAM)


@dataclass(frozen=True, kw_only=True)
class SystemChoice:
    """A system with the options that were given, by name in the order given."""

    name: str
    options: dict[str, Any] = field(hash=False)

    @property
    def _system(self) -> type[System] | None:
        """Its class; None for 1-bit Adam."""
        return None if self.name == ONE_BIT_ADAM else SYSTEMS[self.name]

    @property
    def whole(self) -> dict[str, Any]:
        """The options that kernels depend on, with the defaults of those that were not given.

        A topology is one of them only where it is not the system's own.
        """
        if self._system is None:
            return {"topology": "flat", **self.options}
        is_own = self.topology == self._system.topologies[0]
        topology = {} if is_own else {"topology": self.topology}
        return {**self._system.options, **without_topology(self.options), **topology}

    @property
    def steady(self) -> dict[str, Any]:
        """All options, those with which steps differ set so that all are alike."""
        return {**self.whole, **({} if self._system is None else self._system.steady_options)}

    @property
    def topology(self) -> str:
        """The topology that was given, or the system's own."""
        default = "flat" if self._system is None else self._system.topologies[0]
        return str(self.options.get("topology") or default)

    def on(self, ranks_per_node: int) -> "SystemChoice":
        """Return it with the topology that it has by default on nodes of so many ranks, if that is not its own."""
        if self._system is None or self.options.get("topology"):
            return self
        default = self._system.default_topology(ranks_per_node)
        return self if default == self.topology else replace(self, options={**self.options, "topology": default})

    @property
    def topology_among_equals(self) -> str:
        """The topology, or that between nodes where a node averages first."""
        return BETWEEN_NODES.get(self.topology, self.topology) or SYSTEMS[self.name].topologies[0]

    @property
    def is_scatter_reduce(self) -> bool:
        """Whether a compressor's payloads are decoded, added up and encoded again piece by piece."""
        is_compressor = self._system is not None and issubclass(self._system, CompressorSystem)
        return is_compressor and self.topology_among_equals == "scatter_reduce"


def without_topology(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are a system's own."""
    return {key: value for key, value in options.items() if key not in TOPOLOGY_OPTIONS}


def choice(text: str, where: str) -> SystemChoice:
    """Read a system: "power_sgd", or "top_k:ratio=0.01" with options as its class takes them.

    Raises:
        BinsgdmError: an unknown system or option, or a value out of range.

    Example:
        >>> choice("qsgd:bits=8,coding=packed", "--system").options
        {'bits': 8, 'coding': 'packed'}
    """
    name, _, options = text.partition(":")
    pairs = [word.partition("=") for word in options.split(",")] if options else []
    if not is_known(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that are not asked for
            unknown = f"unknown: give one of {', '.join(names())}"
        raise BinsgdmError(f"{where} {text!r}: {SYSTEMS.refusal(name) or unknown}")
    if not all(key and is_there for key, is_there, _ in pairs):
        raise BinsgdmError(f"{where} {text!r}: after {name}: give KEY=VALUE,KEY=VALUE, such as qsgd:bits=4")
    values = {key.strip(): _value(value.strip()) for key, _, value in pairs}
    if len(values) < len(pairs):
        raise BinsgdmError(f"{where} {text!r}: an option comes twice; give it once")
    if name != ONE_BIT_ADAM:
        usual = SYSTEMS[name].usual_options
        one_of_these = {option for option, default in SYSTEMS[name].options.items() if default is None}
        if usual and not values.keys() & one_of_these:  # such as ratio or k, one of which must be given
            values = {**usual, **values}
    try:
        _check(name, values)
    except (BinsgdmError, ValueError) as error:
        raise BinsgdmError(f"{where} {text!r}: {error}") from error
    return SystemChoice(name=name, options=values)


def _check(name: str, options: dict[str, Any]) -> None:
    if name == ONE_BIT_ADAM:
        if set(options) - {"topology"} or options.get("topology", "flat") != "flat":
            raise BinsgdmError("one_bit_adam is measured with flat topology in its compression stage; drop the options")
        return
    system_options = without_topology(options)
    check_options(name, system_options)  # here, too: an option may have the name of an argument of make
    if SYSTEMS[name] not in BUILT_IN:  # those check their options in sentences of their own
        check_values(SYSTEMS[name], system_options)
    make(name, rank=0, world_size=2, **options)


def is_known(name: str) -> bool:
    """Tell whether a system can be chosen, without a look at those of other packages if it can."""
    return name != "dense" and (name == ONE_BIT_ADAM or name in SYSTEMS)


def text_of(options: Mapping[str, Any]) -> str:
    """Return options for people, separated by spaces.

    Example:
        >>> text_of({"bits": 4, "k": None, "warm_start": True})
        'bits=4 k=none warm_start=true'
    """
    words = {value: word for word, value in WORDS.items()}
    return " ".join(f"{key}={words[v] if v is None or isinstance(v, bool) else v}" for key, v in options.items())


def _value(text: str) -> Option:
    # In this order: 1 is a whole number, and inf, which float takes, is refused later.
    for read in (WORDS.__getitem__, int, float):
        with suppress(KeyError, ValueError):
            value: Option = read(text)
            return value
    return text
