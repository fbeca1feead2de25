"""Check options from the command line against the annotations of a system's class."""

import inspect
import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from binsgdm.compressors.base import System
from binsgdm.errors import BinsgdmError

_WORDS: dict[Any, str] = {
    float: "a number", int: "a whole number", bool: "true or false", str: "text", NoneType: "none",
}  # fmt: skip


def check_values(system: type[System], options: Mapping[str, Any]) -> None:
    """Refuse values that are of another kind than their annotations, or that no measurement file can hold.

    Annotations other than plain kinds, their unions and literals allow everything.

    Raises:
        BinsgdmError: one is.
    """
    annotations = _annotations(system)
    for option, given in options.items():
        if isinstance(given, float) and not math.isfinite(given):
            raise BinsgdmError(f"{system.name}: {option}: {given!r}: must be finite; give a finite number")
        kinds = _kinds(annotations.get(option, Any))
        if kinds and not any(_is_one(given, kind) for kind in kinds):
            wanted = " or ".join(_WORDS.get(kind, repr(kind)) for kind in kinds)
            raise BinsgdmError(f"{system.name}: {option}: {given!r}: must be {wanted}; give one")


def _annotations(system: type[System]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(system, eval_str=True).parameters
    except Exception:  # an annotation may be any text, such as a name that only a type checker sees
        return {}
    return {name: parameter.annotation for name, parameter in parameters.items()}


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return what a value may be: plain kinds, and literal values; nothing where that is not known."""
    if annotation is None:
        return (NoneType,)
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        members = [_kinds(member) for member in get_args(annotation)]
        return tuple(kind for member in members for kind in member) if all(members) else ()
    return (annotation,) if isinstance(annotation, type) and annotation in _WORDS else ()


def _is_one(given: Any, kind: Any) -> bool:
    if kind not in _WORDS:
        return type(given) is type(kind) and bool(given == kind)
    return type(given) is kind or (kind is float and type(given) is int)
