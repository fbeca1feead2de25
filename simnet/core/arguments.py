"""Arguments of public functions become what their annotations say, or a sentence: what does not fit, and what would.

`core.schema` checks data, as it checks a scenario file; msgspec converts them.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from inspect import BoundArguments, Parameter, Signature, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin

from msgspec import Meta

from simnet.core.errors import SimnetError, did_you_mean, shown
from simnet.core.parsing import DEEP, MAX_DEPTH, KeyPath
from simnet.core.schema import FieldError, converted

P = ParamSpec("P")
R = TypeVar("R")
MAX_NAME_BYTES = 255
"""Of a file or a folder, on any file system in use."""
File = Annotated[str | Path, Meta(extra={"rule": "give a path"})]
"""A path; a `checked` function gets a `Path`."""
Name = Annotated[str | Path, Meta(pattern=r"^[^\0]*\Z", extra={"rule": "give a name or a path"})]
"""The name of a shipped file or the path of one's own; a `checked` function gets a text."""
Files = Iterable[File] | File
Names = Iterable[Name] | Name
"""Several of them or one; a `checked` function gets a tuple."""
# What messages of the command line call an argument, where it is not the argument's name.
_OPTIONS = {"set": "settings", "from": "start", "to": "end"}
_DATA = {NoneType, int, float, str, object}


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
        for key, value in bound.arguments.items():
            parameter = parameters.parameters[key]
            kind = Mapping[str, object] if parameter.kind is Parameter.VAR_KEYWORD else parameter.annotation
            bound.arguments[key] = value if kind is Parameter.empty else _argument(f"{name}: {key}", value, kind)
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
            _argument(f"{where}: {key}", getattr(made, key), kind)


@cache
def _signature(function: Callable[..., object]) -> Signature:
    return signature(function)


def _of_call(text: str, name: str, bound: BoundArguments) -> str:
    """Return a message with the names of arguments in place of the command's options, and that of the function."""
    known = bound.signature.parameters

    def argument(option: "re.Match[str]") -> str:
        key = _OPTIONS.get(option[1], option[1].replace("-", "_"))
        return key if key in known else option[0]

    def begins_with(value: object) -> bool:
        items = value if isinstance(value, tuple) else (value,)
        return any(text.startswith((f"{item}:", f"{shown(item)}:")) for item in items if isinstance(item, str | Path))

    text = re.sub(r"--([a-z][a-z-]*)", argument, text)
    text = next((f"{key}: {text}" for key, value in bound.arguments.items() if begins_with(value)), text)
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"


def _argument(where: str, value: object, kind: Any) -> object:
    """Return an argument as what its annotation means."""
    try:
        return _fitted(value, kind)
    except FieldError as error:
        place = "".join(f" {key if key.isdigit() else shown(key)}:" for key in error.path)
        raise SimnetError(f"{where}:{place} {error.text}") from error


def _fitted(value: object, kind: Any) -> object:
    """Return a value as what is meant by an annotation: an object of a class as it is, data as msgspec converts them.

    Raises:
        FieldError: it is something else.
    """
    classes, data = _arms(kind)
    value = _native(value)
    if any(_is_of(value, arm) for arm in classes):
        return value
    others = [_words(arm) for arm in classes]
    if data is None:
        raise FieldError((), f"{shown(value)}: give {', or '.join(others)}")
    # Names of files may hold bytes that are no UTF-8, which Python keeps as surrogates.
    is_path = _mentions(kind, File)
    is_lone = _mentions(kind, Iterable) and _is_lone(value) and (value is not None or not _mentions(kind, NoneType))
    try:
        plain = _plain([value] if is_lone else value, may_hold_surrogates=is_path)
        if kind is object:
            _check_data(plain, ())
        fitted: object = converted(data, plain)
    except FieldError as error:
        path = error.path[1:] if is_lone else error.path
        others += ["a list of these"] if is_lone else []
        raise FieldError(path, ", or ".join([error.text, *([] if path else others)])) from error
    if not is_path or fitted is None:
        return fitted
    if isinstance(fitted, tuple):
        return tuple(_path(text, () if is_lone else (str(place),)) for place, text in enumerate(fitted))
    return _path(str(fitted))


def _is_lone(value: object) -> bool:
    """Tell whether a value is an item rather than a list of such."""
    return isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable)


@cache
def _arms(kind: Any) -> tuple[list[Any], Any]:
    """Return the classes and functions that an annotation takes as they are, and the type of data that it takes."""
    arms: Iterable[Any] = get_args(kind) if _is_union(kind) else kind.split(" | ") if isinstance(kind, str) else (kind,)
    arms = [NoneType if arm == "None" else arm for arm in arms]
    data = [arm for arm in arms if arm in _DATA or (get_origin(arm) or Callable) is not Callable]
    classes = [arm for arm in arms if arm not in data]
    if classes and data == [NoneType]:
        return [*classes, NoneType], None
    return classes, _data_type(Union[tuple(data)]) if data else None  # noqa: UP007 - of a list


def _data_type(kind: Any) -> Any:
    """Return the type of msgspec that an annotation of data means."""
    origin, arms = get_origin(kind), get_args(kind)
    if _is_union(kind):
        types = [_data_type(arm) for arm in arms]
        lists = [arm for arm in types if get_origin(arm) is tuple]  # of which a lone item is a list
        return Union[tuple(arm for arm in types if not lists or arm in lists or arm is NoneType)]  # noqa: UP007
    if origin is Annotated:
        return Annotated[(str if kind in (File, Name) else _data_type(arms[0]), *kind.__metadata__)]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, _data_type(arms[1])]  # type: ignore[misc]
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return tuple[_data_type(arms[0]), ...]  # type: ignore[misc]
    return Any if kind is object else kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in {Union, UnionType}


def _mentions(kind: Any, part: Any) -> bool:
    return kind == part or get_origin(kind) is part or any(_mentions(arm, part) for arm in get_args(kind))


def _is_of(value: object, kind: Any) -> bool:
    """Tell whether a value is of a class, of one that is known by its name, or a function."""
    if kind is Any:
        return True
    if isinstance(kind, str):
        return kind in {parent.__name__ for parent in type(value).__mro__}
    return isinstance(value, kind) if isinstance(kind, type) else _takes(value, len(get_args(kind)[0]))


def _takes(value: object, count: int) -> bool:
    """Tell whether something can be called with so many arguments; what does not say, as much of C, may."""
    if not callable(value):
        return False
    try:
        signature(value).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _words(kind: Any) -> str:
    if kind in (bool, NoneType):
        return "True or False" if kind is bool else "None"
    if isinstance(kind, str | type):
        return kind if isinstance(kind, str) else f"a {kind.__name__.removeprefix('Any')}"
    return f"a function of {len(get_args(kind)[0])} argument"


def _path(text: str, place: KeyPath = ()) -> Path:
    try:
        longest = max(map(len, os.fsencode(text).split(b"/")))
    except UnicodeEncodeError:  # lone surrogates that stand for no byte
        longest = 0
    if "\0" in text or not 0 < longest <= MAX_NAME_BYTES:
        rule = f"give a path whose names have 1 to {MAX_NAME_BYTES} bytes, without null characters"
        raise FieldError(place, f"{shown(text)}: {rule}")
    return Path(text)


def _native(value: Any) -> Any:
    """Return what a value of NumPy or pandas holds as Python's own; any other value as it is."""
    if isinstance(value, type) or type(value).__module__.partition(".")[0] not in {"numpy", "pandas"}:
        return value
    if hasattr(value, "columns"):
        return value.to_dict("records")
    if hasattr(value, "to_dict") and all(isinstance(key, str) for key in value.index):  # a row of a data frame
        return value.to_dict()
    return value.tolist() if hasattr(value, "tolist") else value


def _plain(value: object, path: KeyPath = (), *, may_hold_surrogates: bool = False) -> object:
    """Return data as lists, tables, texts and numbers; what is none of these only where the annotation refuses it."""
    value = _native(value)
    if len(path) > MAX_DEPTH:
        raise FieldError(path[:1], DEEP)
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str) and not may_hold_surrogates and re.search("[\ud800-\udfff]", text):
            raise FieldError(path, f"{shown(text)}: give a text without lone surrogates")
        return text
    if isinstance(value, Mapping):
        if (wrong := next((key for key in value if not isinstance(key, str)), None)) is not None:
            raise FieldError(path, f"{shown(wrong)}: give a text as key")
        return {key: _plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes | type):
        options = {"may_hold_surrogates": may_hold_surrogates}
        return [_plain(item, (*path, str(place)), **options) for place, item in enumerate(value)]
    if path:
        _check_data(value, path)
    return value


def _check_data(value: object, path: KeyPath) -> None:
    if value is not None and not isinstance(value, int | float | str | list | dict):
        rule = "give a value as a scenario file has it: a number, a text, True or False, a list or a table"
        raise FieldError(path, f"{shown(value)}: {rule}")
