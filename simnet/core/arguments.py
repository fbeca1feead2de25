"""Arguments of public functions become what their annotations say, or a sentence: what does not fit, and what would."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from inspect import BoundArguments, Parameter, Signature, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from msgspec import Meta

from simnet.core.errors import SimnetError, did_you_mean, shown

P = ParamSpec("P")
R = TypeVar("R")
MAX_NAME_BYTES = 255
"""Of a file or a folder, on any file system in use."""
File = Annotated[str | Path, Path]
"""A path; a `checked` function gets a `Path`."""
Name = Annotated[str | Path, str, Meta(pattern=r"^[^\0]*\Z")]
"""The name of a shipped file or the path of one's own; a `checked` function gets a text."""
Files = Iterable[File] | File
Names = Iterable[Name] | Name
"""Several of them or one; a `checked` function gets a tuple."""
MAX_DEPTH = 32
"""Of lists and tables in each other, as a scenario file may have them."""
_DATA = "a value as a scenario file has it: a number, a text, True or False, a list or a table"
# What messages of the command line call an argument, where it is not the argument's name.
_OPTIONS = {"set": "settings", "from": "start", "to": "end"}


class _UnfitError(Exception):
    """A value that does not fit, where it stands inside the argument, and what would fit."""

    def __init__(self, given: object, wanted: str, *where: object) -> None:
        super().__init__()
        self.given, self.wanted, self.where = given, wanted, where


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Let a public function take whatever means what its annotations say, and refuse the rest in one sentence.

    NumPy's scalars and arrays and the columns and indices of pandas count as the numbers, texts and lists that they
    hold, a data frame as the list of its rows, a text or a path as a list of itself where a list of these is meant.
    What is annotated `object` is data as a scenario file has them; `Any` is handed on as it is; a class in quotes,
    which only type checkers import, is known by its name. A `SimnetError` from inside names the function, too.
    """
    name = function.__name__

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        parameters = _signature(function)
        try:
            bound = parameters.bind(*args, **kwargs)
        except TypeError as error:
            unknown = next((key for key in kwargs if key not in parameters.parameters), None)
            if unknown is None:
                raise SimnetError(f"{name}: {error}; see help({name})") from error
            near = did_you_mean(unknown, set(parameters.parameters) - {"self"})
            raise SimnetError(f"{name}: unknown argument {shown(unknown)}.{near}") from error
        for key, given in bound.arguments.items():
            bound.arguments[key] = _argument(name, parameters.parameters[key], given)
        try:
            return function(*bound.args, **bound.kwargs)
        except SimnetError as error:
            if (text := _of_call(str(error), name, bound)) == str(error):
                raise
            raise SimnetError(text) from error

    return call


def check_fields(made: object, where: str) -> None:
    """Check that the values of an object fit the annotations of its class, for a class that converts nothing."""
    for key, kind in type(made).__annotations__.items():
        if kind is str or not isinstance(getattr(made, key), kind):
            _argument(where, Parameter(key, Parameter.KEYWORD_ONLY, annotation=kind), getattr(made, key))


@cache
def _signature(function: Callable[..., object]) -> Signature:
    return signature(function)


def _argument(function: str, parameter: Parameter, given: object) -> object:
    if parameter.annotation is Parameter.empty:  # self
        return given
    kind: Any = parameter.annotation
    if parameter.kind is Parameter.VAR_KEYWORD:
        kind = Mapping[str, kind]
    try:
        return _fitted(given, kind)
    except _UnfitError as error:
        where = "".join(f" {shown(key)}:" for key in error.where)
        raise SimnetError(f"{function}: {parameter.name}:{where} {shown(error.given)}: give {error.wanted}") from error


def _of_call(text: str, name: str, bound: BoundArguments) -> str:
    """Return a message with the names of arguments in place of the command's options, and that of the function."""
    known = bound.signature.parameters

    def argument(option: "re.Match[str]") -> str:
        key = _OPTIONS.get(option[1], option[1].replace("-", "_"))
        return key if key in known else option[0]

    def begins_with(given: object) -> bool:
        items = given if isinstance(given, tuple) else (given,)
        values = [str(one) for one in items if isinstance(one, str | Path)]
        return any(text.startswith((f"{one}:", f"{shown(one)}:")) for one in values)

    text = re.sub(r"--([a-z][a-z-]*)", argument, text)
    text = next((f"{key}: {text}" for key, given in bound.arguments.items() if begins_with(given)), text)
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"


def _fitted(given: object, kind: Any) -> Any:  # noqa: PLR0911 - a line for each kind
    """Return a value as what is meant by an annotation.

    Raises:
        _UnfitError: it is something else.
    """
    if kind is Any or kind is object:
        return given if kind is Any else _data(given)
    if isinstance(kind, str):
        names = {one.__name__ for one in type(given).__mro__}
        return _required(given, given is None or not names.isdisjoint(kind.split(" | ")), kind)
    origin, arms = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _limited(given, arms, kind)
    if origin in {Union, UnionType}:
        return _one_of(given, arms, kind)
    if origin is Literal:
        return _required(given, type(given) is str and given in arms, kind)
    if origin is not None and issubclass(origin, Mapping):
        return _table(given, arms[1], kind)
    if origin is not None and issubclass(origin, Iterable):
        return _list(given, arms[0], kind)
    if origin is not None:
        return _required(given, _takes(given, len(arms[0])), kind)
    return _single(given, kind)


def _single(given: object, kind: type) -> Any:
    """Return a value that is no list and no table."""
    if kind is Path:
        return _path(given)
    plain: Any = str(given) if kind is str and isinstance(given, Path) else _plain(given)
    if kind is float:
        is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
        return (
            float(plain) if is_number and abs(plain) <= sys.float_info.max else _refused(given, kind)
        )  # nan is refused, too
    if kind is str and isinstance(plain, str) and re.search("[\ud800-\udfff]", plain):
        raise _UnfitError(given, "a text without lone surrogates")
    is_other = kind is int and isinstance(plain, bool)
    return _required(plain, isinstance(plain, kind) and not is_other, kind, given)


def _path(given: object) -> Path:
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str):
        return _refused(given, Path)  # type: ignore[no-any-return]
    try:
        longest = max(map(len, os.fsencode(text).split(b"/")))
    except UnicodeEncodeError:  # lone surrogates that stand for no byte
        longest = 0
    if "\0" in text or not 0 < longest <= MAX_NAME_BYTES:
        raise _UnfitError(given, f"a path whose names have 1 to {MAX_NAME_BYTES} bytes, without null characters")
    return Path(text)


def _takes(given: object, count: int) -> bool:
    """Tell whether something can be called with so many arguments; what does not say, as much of C, may."""
    if not callable(given):
        return False
    try:
        signature(given).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _limited(given: object, arms: tuple[Any, ...], kind: Any) -> Any:
    """Return a value within limits, or taken as the class that an annotation names beside its type."""
    taken_as = next((one for one in arms[1:] if isinstance(one, type)), arms[0])
    try:
        found = _fitted(given, taken_as)
    except _UnfitError as error:
        if error.where or error.wanted != _words(taken_as):
            raise
        return _refused(given, kind)
    limits = (one for one in arms[1:] if isinstance(one, Meta))
    return _required(found, found is None or all(map(_is_within(found), limits)), kind, given)


def _one_of(given: object, arms: Sequence[Any], kind: Any) -> Any:
    refused: list[_UnfitError] = []
    for arm in arms:
        try:
            return _fitted(given, arm)
        except _UnfitError as error:
            refused.append(error)
    special = [error for arm, error in zip(arms, refused, strict=True) if error.where or error.wanted != _words(arm)]
    raise special[0] if special else _UnfitError(given, _words(kind))


def _table(given: Any, kind: Any, whole: Any) -> dict[str, Any]:
    """Return a table, that of a row of a data frame where one is given."""
    if not isinstance(given, Mapping):
        has_rows = _is_foreign(given) and not hasattr(given, "columns")
        given = given.to_dict() if has_rows and hasattr(given, "to_dict") else _refused(given, whole)
    found = {}
    for key, value in dict(given).items():
        _required(key, isinstance(key, str), str)
        try:
            found[key] = _fitted(value, kind)
        except _UnfitError as error:
            raise _UnfitError(error.given, error.wanted, key, *error.where) from error
    return found


def _list(given: object, kind: Any, whole: Any) -> tuple[Any, ...]:
    if isinstance(given, str | os.PathLike) and kind is not object:
        return (_fitted(given, kind),)
    plain = _plain(given)
    if isinstance(plain, str | bytes | Mapping | type) or not isinstance(plain, Iterable):
        _refused(given, whole)
    found = []
    for place, value in enumerate(plain):
        try:
            found.append(_fitted(value, kind))
        except _UnfitError as error:
            raise _UnfitError(error.given, error.wanted, place, *error.where) from error
    return tuple(found)


def _data(given: object, depth: int = 0) -> object:
    """Return data as a scenario file has them."""
    plain = _plain(given)
    if isinstance(plain, os.PathLike):
        return str(plain)
    if isinstance(plain, str):
        return _single(plain, str)
    if plain is None or isinstance(plain, bool | int | float):
        return plain
    if depth < MAX_DEPTH and isinstance(plain, list | tuple):
        return [_data(value, depth + 1) for value in plain]
    if depth < MAX_DEPTH and isinstance(plain, Mapping) and all(isinstance(key, str) for key in plain):
        return {key: _data(value, depth + 1) for key, value in plain.items()}
    raise _UnfitError(given, _DATA)


def _plain(given: object) -> Any:
    """Return what a value of NumPy or pandas holds as Python's own; any other value as it is."""
    if not _is_foreign(given):
        return given
    if hasattr(given, "columns"):
        return given.to_dict("records")  # type: ignore[attr-defined]
    return given.tolist() if hasattr(given, "tolist") else given


def _is_foreign(given: object) -> bool:
    return not isinstance(given, type) and type(given).__module__.partition(".")[0] in {"numpy", "pandas"}


def _is_within(found: Any) -> Callable[[Meta], bool]:
    """Return the function that tells whether a value keeps the limits of an annotation."""
    return lambda limits: all((
        limits.ge is None or found >= limits.ge,
        limits.gt is None or found > limits.gt,
        limits.le is None or found <= limits.le,
        limits.pattern is None or re.search(limits.pattern, found),
        limits.min_length is None or len(found) >= limits.min_length,
    ))  # fmt: skip


def _required(found: Any, fits: bool, kind: Any, given: object = ...) -> Any:
    return found if fits else _refused(found if given is ... else given, kind)


def _refused(given: object, kind: Any) -> Any:
    raise _UnfitError(given, _words(kind))


_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    Path: "a path",
    NoneType: "None",
    object: _DATA,
}


def _words(kind: Any) -> str:  # noqa: PLR0911 - a line for each kind
    """Return what fits an annotation: "a whole number of at least 1, at most 1024, or None"."""
    origin, arms = get_origin(kind), get_args(kind)
    if isinstance(kind, str):
        return " or ".join(kind.split(" | "))
    if origin is Annotated and isinstance(arms[1], type):
        return "a name or a path" if arms[1] is str else _words(arms[1])
    if origin is Annotated:
        return f"{_words(arms[0])}{_limits(arms[1])}"
    if origin in {Union, UnionType}:
        texts = dict.fromkeys(map(_words, arms))
        lists = {f"a list, each item {text}": text for text in texts}
        of_these = [f"{lists[text]}, or a list of these" for text in texts if text in lists]
        both = {one for text in texts if text in lists for one in (text, lists[text])}
        return ", or ".join([*of_these, *(text for text in texts if text not in both)])
    if origin is Literal:
        return f"one of {', '.join(map(repr, arms))}"
    if origin is not None and issubclass(origin, Mapping):
        return "a table of values by key, such as {'cluster.num_nodes': 8}"
    if origin is not None and issubclass(origin, Iterable):
        return f"a list, each item {_words(arms[0])}"
    if origin is not None:
        return f"a function of {len(arms[0])} argument"
    return _WORDS.get(kind) or f"a {kind.__name__.removeprefix('Any')}"


def _limits(limits: Meta) -> str:
    words = (("of at least", limits.ge), ("above", limits.gt), ("at most", limits.le))
    found = ", ".join(f"{text} {limit:,.10g}" for text, limit in words if limit is not None)
    return f" {found}" if found else ", not an empty one" if limits.min_length else ""
