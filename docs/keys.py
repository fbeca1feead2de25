"""Lists of the keys of a file, from the msgspec struct that the file becomes: default, value and meaning of each."""

import inspect
import math
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec
import msgspec.inspect as types
from msgspec import NODEFAULT, Struct

from simnet.core.schema import RegistryType, type_of
from simnet.core.system_options import SystemOptions
from simnet.core.units import Quantity

HUGE, TINY, MOST = 1e18, 1e-11, 10**9
"""Limits beyond the first two keep numbers computable and tell a reader nothing; whole numbers end at the third."""
COUNT = "count"
"""A whole number from 1 to `MOST`, as the pages call it."""
PLAIN = ("text", "number", "number from 0", "number above 0", "integer", "integer from 0", "integer from 1", "any")
NEUTRAL = ('`""`', "`0`", "`0.0`", "`[]`", "`{}`")
"""Values and defaults that go unsaid in files that programs write; a key with such a default is optional there."""
SOURCE = ("`source`", "where the numbers come from")
"""A key of many tables, which the pages tell once."""
Anchors = Mapping[type, str]


class Key(NamedTuple):
    """One key of a list."""

    name: str
    value: str
    default: str
    meaning: str

    def line(self, *, is_data: bool = False) -> str:
        """Return the key as an item: `name = default` (value): meaning. A default that shows its type stands for it.

        Args:
            is_data: of a file that programs write: keys are there unless they are optional, and plain types go unsaid.
        """
        has_default = self.default.startswith("`") and not (is_data and self.default in NEUTRAL)
        name = f"{self.name[:-1]} = {self.default[1:]}" if has_default else self.name
        noted = dict.fromkeys(("none", *NEUTRAL), "optional") if is_data else {"required": "required"}
        shown = [noted[self.default]] if self.default in noted else []
        is_plain = self.value == "text" or (is_data and self.value in PLAIN)
        if not is_plain and not self._names_choices() and not (has_default and _shows(self.default, self.value)):
            shown.append(self.value)
        return f"- {name} ({', '.join(shown)}): {self.meaning}" if shown else f"- {name}: {self.meaning}"

    def _names_choices(self) -> bool:
        """Return whether the value is one of some words, all of which the meaning names."""
        choices = re.findall(r'`("\w+")`', self.value)
        is_choice = self.value == ", ".join(f"`{choice}`" for choice in choices)
        return is_choice and all(choice in self.meaning for choice in choices)


def _shows(default: str, value: str) -> bool:
    kind = "text" if default == '`""`' else {"t": "true/false", "f": "true/false"}.get(default[1], "")
    return value == kind or (value in ("text", "time", "size", "bandwidth") and default[1] == '"')


def listing(
    struct: type[Struct], anchors: Anchors, *, without: type[Struct] | None = None, is_data: bool = False
) -> str:
    """Return the keys of a struct as a Markdown list, those of its own class first.

    Args:
        struct: what the file becomes.
        anchors: link to the section of each struct that has one.
        without: leave out the keys that this base already has.
        is_data: as of `Key.line`.
    """
    rows = (row for row in keys(struct, anchors, without=without) if (row.name, row.meaning) != SOURCE)
    return "\n".join(row.line(is_data=is_data) for row in rows)


def keys(struct: type[Struct], anchors: Anchors, *, without: type[Struct] | None = None) -> list[Key]:
    """Return the keys of a struct, as `listing`.

    Raises:
        ValueError: a key has no meaning in the docstring of its class.
    """
    inherited = set(without.__struct_fields__) if without else set()
    by_name = {field.name: field for field in _fields(struct) if field.name not in inherited}
    return [_key(struct, by_name[name], anchors) for name in _in_order(struct) if name in by_name]


def _fields(struct: type[Struct]) -> tuple[types.Field, ...]:
    info = type_of(struct)
    assert isinstance(info, types.StructType)
    return info.fields


def _in_order(struct: type[Struct]) -> list[str]:
    """Return the names of the fields, the derived class's own before those of its bases."""
    names = [name for base in struct.__mro__ for name in inspect.get_annotations(base)]
    return list(dict.fromkeys(name for name in names if name in struct.__struct_fields__))


def _key(struct: type[Struct], field: types.Field, anchors: Anchors) -> Key:
    annotation = typing.get_type_hints(struct, include_extras=True)[field.name]
    value = words(field.type, anchors, list(_choices(annotation)))
    return Key(f"`{field.encode_name}`", value, default(field), meaning(struct, field.name).rstrip("."))


def _choices(annotation: object) -> Iterator[object]:
    """Yield the choices of a Literal in the order in which they are written, which msgspec forgets."""
    if typing.get_origin(annotation) is Literal:
        yield from typing.get_args(annotation)
    else:
        for inner in typing.get_args(annotation):
            yield from _choices(inner)


def words(info: types.Type, anchors: Anchors, choices: list[object] | None = None) -> str:  # noqa: PLR0911 - one a type
    """Return what may stand for a value, in words."""
    match info:
        case types.Metadata():
            return words(info.type, anchors, choices)
        case types.UnionType():
            return " or ".join(words(member, anchors, choices) for member in info.types if not _is_none(member))
        case types.CustomType(cls=RegistryType() as kind):
            return _linked(kind.registry.noun, kind.registry.base, anchors)
        case types.StructType():
            return _linked("table", info.cls, anchors)
        case types.DictType():
            return f"table of {words(info.value_type, anchors, choices)}"
        case types.VarTupleType() | types.ListType():
            return f"list of {words(info.item_type, anchors, choices)}"
        case types.TupleType():
            items = [words(member, anchors, choices) for member in info.item_types]
            return f"pair of {items[0]}" if items[1:] == items[:1] else f"[{', '.join(items)}]"
    return _leaf(info, choices)


def _leaf(info: types.Type, choices: list[object] | None) -> str:  # noqa: PLR0911 - one a type
    match info:
        case types.CustomType() if issubclass(info.cls, Quantity):
            return info.cls.noun
        case types.CustomType() if issubclass(info.cls, SystemOptions):
            return f"table, such as `{SystemOptions.example}`"
        case types.LiteralType():
            return ", ".join(f"`{_plain(value)}`" for value in choices or info.values)
        case types.IntType():
            return COUNT if (info.ge, info.le) == (1, MOST) else f"integer{_range(info)}"
        case types.FloatType():
            return _range(info).strip() if info.le is not None and info.le < HUGE else f"number{_range(info)}"
        case types.BoolType():
            return "true/false"
        case types.StrType():
            return "text" if info.pattern is None else f"text that matches `{info.pattern}`"
    return "any"


def _is_none(info: types.Type) -> bool:
    return isinstance(info, types.NoneType)


def _linked(text: str, struct: type, anchors: Anchors) -> str:
    return f"[{text}]({anchors[struct]})" if struct in anchors else text


def _range(info: types.IntType | types.FloatType) -> str:
    low, is_open = (info.ge, False) if info.gt is None else (info.gt, True)
    high = info.le if info.le is not None and info.le < HUGE else None
    if low is None or low <= -HUGE:
        return "" if high is None else f" up to {_figure(high)}"
    if is_open or 0 < low < TINY:
        return " above 0" if high is None else f" above 0 to {_figure(high)}"
    return f" from {_figure(low)}" if high is None else f" {_figure(low)} to {_figure(high)}"


def _figure(limit: float | None) -> str:
    """Return a limit for people: "1,000", "10^9"."""
    assert limit is not None
    exponent = round(math.log10(limit)) if limit > 0 else 0
    if abs(exponent) >= 6 and math.isclose(limit, 10.0**exponent):
        return f"10^{exponent}"
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:,.10g}"


def default(field: types.Field) -> str:
    """Return the default of a key, as it would stand in a file; "required" if there is none."""
    if field.required:
        return "required"
    value = field.default_factory() if field.default is NODEFAULT else field.default
    if value is None:
        return "none"
    if isinstance(value, Struct):
        return _default_struct(value)
    return f"`{_plain(value)}`"


def _default_struct(value: Struct) -> str:
    """Return the keys of a table that differ from the table's own defaults."""
    changed = {
        field.encode_name: getattr(value, field.name)
        for field in msgspec.structs.fields(type(value))
        if field.default is NODEFAULT or getattr(value, field.name) != field.default
    }
    changed = {key: setting for key, setting in changed.items() if setting not in ({}, ())}
    return f"`{_plain(changed)}`" if changed else "its defaults"


def _plain(value: object) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, Quantity):
        return f'"{value.text()}"'
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        cells = ", ".join(f"{key} = {_plain(inner)}" for key, inner in value.items())
        return f"{{ {cells} }}" if cells else "{}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value}"


def meaning(struct: type[Struct], name: str) -> str:
    """Return the meaning of a field from the Attributes section of the nearest class that has it there.

    Raises:
        ValueError: no class has it.
    """
    for base in struct.__mro__:
        if text := attributes(base).get(name):
            return text
    raise ValueError(f"{struct.__module__}.{struct.__name__}: {name}: say what it means in the docstring's Attributes")


def attributes(struct: type) -> dict[str, str]:
    """Return the Attributes section of a class's own docstring, by name."""
    text = inspect.cleandoc(struct.__dict__.get("__doc__") or "")
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", text, re.MULTILINE)
    entries = re.split(r"^    (?=\w+: )", section[1], flags=re.MULTILINE)[1:] if section else []
    pairs = (entry.partition(": ") for entry in entries)
    return {name: " ".join(said.split()).replace("``", "`") for name, _, said in pairs}


def summary(struct: type) -> str:
    """Return a class's docstring before its sections, as Markdown paragraphs."""
    text = inspect.cleandoc(struct.__doc__ or "")
    return re.split(r"^(?:Attributes|Example|Source):", text, flags=re.MULTILINE)[0].strip()


def own_keys(struct: type[Struct], base: type[Struct]) -> list[str]:
    """Return the keys that a struct has and its base has not."""
    return [field.encode_name for field in _fields(struct) if field.name not in base.__struct_fields__]
