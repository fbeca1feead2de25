"""Plain data to the structs that files become, or a sentence: what does not fit, where, and how to repair it.

msgspec builds; its own messages lack the value, the nearest known key and keys of open tables, and speak of `object`.
Other packages may add nouns to a `StructRegistry`: frozen structs by their tag, which is their name in files. A field
that takes any of them is annotated with the registry's `annotation`, since the union of all is not known when the
field is written.
"""

import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec
import msgspec.inspect as types
from msgspec import Struct

from simnet.core import parsing
from simnet.core.errors import NotInstalledError, SimnetError, did_you_mean, shown
from simnet.core.parsing import KeyPath, parse_json
from simnet.core.system_options import SystemOptions
from simnet.core.units import Quantity

T = TypeVar("T", bound=Struct)
Origins = Mapping[KeyPath, str]
# What may be a whole number that no float holds: `parse_json` looks closer, which msgspec does not.
# Every digit as 0, to find such a number in a tenth of the time that a pattern takes.
_AS_ZEROS, _LONG_NUMBER = bytes.maketrans(b"123456789", b"0" * 9), b"0" * 300
# What msgspec itself says; all else is the sentence of a struct's own check.
_OF_MSGSPEC = re.compile(
    r"Expected `|Object (missing required|contains unknown) field `|Invalid (enum )?value ['\d-]"
    r"|(Number|Integer value) out of range"
)
_NOT_TAKEN = "wrong type for this key"
_KEYS_AHEAD = re.compile(r"[a-z_]\w*(\.\w+)*")
BY_NAME = ("strategy", "baseline")
"""Keys of a scenario that take a bare name in place of a table with a kind."""


class RegistryType(type):
    """The annotation of a field that takes any registered struct; `isinstance` asks for their common base."""

    registry: "StructRegistry[Any]"

    def __instancecheck__(cls, instance: object) -> bool:
        """Tell whether something is such a struct."""
        return isinstance(instance, cls.registry.base)


class StructRegistry(Generic[T]):
    """Structs of one kind by tag.

    Attributes:
        noun: what messages call one of them: "strategy".
        base: their common base.
        entry_points: group in which other packages name theirs, each a class or a module that registers some.
        annotation: what a field that takes any of them is annotated with.
    """

    def __init__(
        self,
        noun: str,
        base: type[T],
        entry_points: str,
        check: Callable[[type[T]], None] = lambda _: None,
        also: Mapping[str, str] | None = None,
    ) -> None:
        """Start with none.

        `check` refuses by a SimnetError what does not go with those that are there; `also` has tags by what the field
        calls these, in lower case: either is taken, in any case.
        """
        self._check = check
        self._also = also or {}
        self.noun = noun
        self.base = base
        self.entry_points = entry_points
        self.annotation = RegistryType(f"Any{base.__name__}", (), {"registry": self})
        self._known: dict[str, type[T]] = {}
        self._foreign_are_loaded = False
        self._broken: dict[str, str] = {}

    def register(self, struct: type[T]) -> type[T]:
        """Add a struct; use it as a decorator. The same class made again, as in a notebook, replaces the former.

        Raises:
            SimnetError: its name is taken by another, or it does not go with those that are there.
        """
        tag = tag_of(struct)
        known = self._known.get(tag, struct)
        # A cell of a notebook that is run again makes the same class anew.
        if (known.__module__, known.__qualname__) != (struct.__module__, struct.__qualname__):
            raise SimnetError(f"{self.noun} {tag!r}: is registered twice; give the second one another tag")
        if is_foreign(struct):
            self._check(struct)
        self._known[tag] = struct
        return struct

    def remove(self, struct: type[T]) -> None:
        """Take a struct out again, as a test does that has added it."""
        self._known.pop(tag_of(struct), None)

    def __iter__(self) -> Iterator[type[T]]:
        """Go through all, those of other packages included, in the order in which they were registered."""
        self._load_foreign()
        return iter(tuple(self._known.values()))

    def built_in(self) -> tuple[type[T], ...]:
        """Return those that are registered by now, without a look at other packages."""
        return tuple(self._known.values())

    def names(self) -> tuple[str, ...]:
        """Return the tags of all."""
        return tuple(tag_of(struct) for struct in self)

    def tag_in(self, table: object) -> str:
        """Return the tag that a table names; the table has been checked before."""
        field = str(self.base.__struct_config__.tag_field)
        return str(table.get(field, "")) if isinstance(table, Mapping) else ""

    def with_tag(self, table: object) -> object:
        """Return a table with the tag in place of another word for it; anything else as it is."""
        name = self.tag_in(table)
        if not isinstance(table, Mapping) or self.tag(name) == name:
            return table
        return {**table, str(self.base.__struct_config__.tag_field): self.tag(name)}

    def tag(self, name: str) -> str:
        """Return the tag that a name stands for: the name itself, unless it is another word for a tag."""
        return name if name in self._known else self._also.get(name.lower(), name)

    def find(self, name: str) -> type[T]:
        """Return the struct of a name; other packages are asked only for one that is not built in."""
        tag = self.tag(name)
        if tag not in self._known:
            self._load_foreign()
        if tag in self._broken:
            raise SimnetError(f"{self.noun} {tag!r}: {self._broken[tag]}")
        if tag not in self._known:
            raise SimnetError(f"{shown(tag)}: unknown {self.noun}.{did_you_mean(tag, self._known)}")
        return self._known[tag]

    def _load_foreign(self) -> None:
        """Load what other packages name in the group of entry points, once; keep the reason for each that fails."""
        if self._foreign_are_loaded:
            return
        self._foreign_are_loaded = True
        from importlib.metadata import entry_points  # takes 26 ms, so only where it is needed

        for point in entry_points(group=self.entry_points):
            try:
                with redirect_stdout(sys.stderr):  # results on standard output stay what they are
                    loaded = point.load()
                if isinstance(loaded, type) and issubclass(loaded, self.base):
                    self.register(loaded)
                elif not isinstance(loaded, ModuleType):
                    raise TypeError(f"{point.value} must name a {self.noun} or a module")
            except (Exception, SystemExit) as error:  # foreign code may fail in any way; the rest must go on working
                why = " ".join(f"{type(error).__name__}: {error}".split())
                self._broken[point.name] = f"the package that provides it cannot be loaded ({why}); fix or remove it"


def is_foreign(made: object) -> bool:
    """Tell whether a class or a function is not simnet's own."""
    return not str(getattr(made, "__module__", "")).startswith("simnet.")


def tag_of(struct: type[Struct] | Struct) -> str:
    """Return the name of a struct in files."""
    return str(struct.__struct_config__.tag)


class FieldError(Exception):
    """Something in the data that does not fit.

    Attributes:
        path: keys from the top to the value that the message is about.
        text: what was given, the rule, the repair.
        culprit: keys from the top to what must change; longer than `path` for an unknown key.
        in_data: the text of `NotInstalledError.in_data`; empty for all other mistakes.
    """

    def __init__(self, path: KeyPath, text: str, culprit: KeyPath | None = None, in_data: str = "") -> None:
        super().__init__(text)
        self.in_data = in_data
        self.path, self.text, self.culprit = path, text, culprit or path


class _WholeNumberError(FieldError):
    """A whole number that is written as 1.5e9, which msgspec takes for none."""

    def __init__(self, path: KeyPath, number: float) -> None:
        super().__init__(path, f"{shown(number)}: write a whole number without quotes")
        self.number = int(number)


def build(struct: type[T], data: object, where: str | Origins) -> T:
    """Check plain data of a file against a struct, and return that.

    `where` is how messages call the file; or, by the keys from the top, how they call the file that gave these.

    Raises:
        NotInstalledError: the name of a strategy or a fault is not registered.
        SimnetError: something else does not fit.
    """
    origins: Origins = {(): where} if isinstance(where, str) else where
    try:
        return msgspec.convert(_checked(type_of(struct), data), struct, dec_hook=_read_custom)
    except FieldError as error:
        text, in_data = (_sentence(origins, error.path, text, error.culprit) for text in (error.text, error.in_data))
        raise (NotInstalledError(text, in_data) if error.in_data else SimnetError(text)) from error
    except msgspec.ValidationError as error:
        path, text = _contradiction(str(error))
        raise SimnetError(_sentence(origins, path, text, path)) from error


def converted(kind: Any, data: object) -> Any:
    """Return data as a type that msgspec knows.

    Raises:
        FieldError: they do not fit it.
    """
    check(type_of(kind), data)
    return msgspec.convert(data, kind, dec_hook=_read_custom)


def _checked(info: types.Type, data: object) -> object:
    """Return data that fit a type, whole numbers as such."""
    while True:
        try:
            check(info, data)
        except _WholeNumberError as written:
            # Once for each such number: they are rare, and a copy of the path is cheap.
            data = parsing.replaced(data, written.path, written.number, "")
        else:
            return data


def decode_quickly(struct: type[T], data: bytes) -> T:
    """Read JSON that a program wrote.

    Raises:
        ValueError: it is damaged; the message is msgspec's.
    """
    return msgspec.json.decode(data, type=struct, dec_hook=_read_custom)


def decode(struct: type[T], data: bytes, where: str) -> T:
    """Read JSON that a program wrote: fast if it is whole, and with the messages of any other file if not."""
    try:
        if _LONG_NUMBER not in data.translate(_AS_ZEROS):
            return decode_quickly(struct, data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    return build(struct, parse_json(data, where), where)


def peek(struct: type[T], data: bytes) -> T | None:
    """Return those keys of JSON that tell a kind of file from others; None where it is no object."""
    try:
        return msgspec.json.decode(data, type=struct)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _read_custom(kind: type, data: object) -> object:
    """Build what msgspec does not know: a quantity or options from text, or a registered struct from its table."""
    if issubclass(kind, Quantity | SystemOptions):
        return kind.parse(data)
    assert isinstance(kind, RegistryType)
    table = kind.registry.with_tag(data)
    try:
        return msgspec.convert(table, kind.registry.find(kind.registry.tag_in(table)), dec_hook=_read_custom)
    except msgspec.ValidationError as error:
        path, sentence = _contradiction(str(error))
        text = ": ".join(filter(None, (".".join(path), sentence)))
        raise ValueError(text) from error  # which msgspec gives the place of the table
    except SimnetError as error:
        raise ValueError(str(error)) from error  # which `check` tells with its place


def _sentence(origins: Origins, path: KeyPath, text: str, culprit: KeyPath) -> str:
    known = (culprit[:length] for length in range(len(culprit), -1, -1))
    origin = next(origins[prefix] for prefix in known if prefix in origins)
    return ": ".join(filter(None, (origin, ".".join(path), text)))


def _contradiction(message: str) -> tuple[KeyPath, str]:
    """Return what msgspec says of values that do not go together: the keys to one of them, and the sentence.

    A struct's own check may start its message with a key; msgspec appends the struct's place: " - at `$.cluster`".
    """
    text, _, place = message.partition(" - at `")
    steps = tuple(filter(None, place.rstrip("`").replace("[", ".").replace("]", "").removeprefix("$").split(".")))
    if not text or _OF_MSGSPEC.match(text):  # of a rule that `check` does not know
        return steps, _NOT_TAKEN
    key, is_there, sentence = text.partition(": ")
    if is_there and _KEYS_AHEAD.fullmatch(key):
        return (*steps, *key.split(".")), sentence or _NOT_TAKEN
    return steps, text


@cache
def type_of(kind: type) -> types.Type:
    """Return the description of a type."""
    return types.type_info(kind)


def check(info: types.Type, data: object, path: KeyPath = ()) -> None:
    """Check data against a type, down to its leaves.

    Raises:
        FieldError: at the first thing that does not fit, in the order of the data.
    """
    match info:
        case types.Metadata():
            _check_with_rule(info, data, path)
        case types.StructType():
            _check_struct(info, data, path)
        case types.UnionType():
            _check_union(info, data, path)
        case types.DictType():
            for key, value in _table(data, path, ()).items():
                check(info.value_type, value, (*path, str(key)))
        case types.VarTupleType() | types.ListType():
            items = _list(data, path)
            _require(len(items) >= (info.min_length or 0), data, "write a list that is not empty", path)
            for index, item in enumerate(items):
                check(info.item_type, item, (*path, str(index)))
        case types.TupleType():
            items = _list(data, path)
            _require(len(items) == len(info.item_types), data, f"write a list of {len(info.item_types)} values", path)
            for index, (item_type, item) in enumerate(zip(info.item_types, items, strict=True)):
                check(item_type, item, (*path, str(index)))
        case _:
            _check_leaf(info, data, path)


def _check_with_rule(info: types.Metadata, value: object, path: KeyPath) -> None:
    """Check data against a type that says by itself what fits."""
    try:
        check(info.type, value, path)
    except FieldError as error:
        if info.extra is None or error.path != path:
            raise
        raise FieldError(path, f"{shown(value)}: {info.extra['rule']}") from error


def _check_leaf(info: types.Type, data: object, path: KeyPath) -> None:
    match info:
        case types.CustomType(cls=RegistryType() as kind):
            _check_registered(kind.registry, data, path)
        case types.CustomType():
            _check_custom(info, data, path)
        case types.LiteralType():
            _check_name(data, [str(value) for value in info.values], path)
        case types.IntType():
            if type(data) is float and data.is_integer():
                raise _WholeNumberError(path, data)
            _require(type(data) is int, data, "write a whole number without quotes", path)
            _check_range(info, data, "must be a whole number", path)
        case types.FloatType():
            _require(type(data) in (int, float), data, "write a number without quotes", path)
            _check_range(info, data, "must be a number", path)
        case types.BoolType():
            _require(type(data) is bool, data, "write true or false, without quotes", path)
        case types.StrType():
            _require(isinstance(data, str), data, "write text in quotes", path)
            matches = info.pattern is None or re.search(info.pattern, str(data))
            _require(bool(matches), data, f"must match {info.pattern}", path)
        case types.NoneType():
            _require(data is None, data, "must be null", path)


def _check_struct(info: types.StructType, data: object, path: KeyPath, others: Iterable[types.StructType] = ()) -> None:
    """Check a table.

    `others` are the other structs of its union: they are asked for only to name the one that an unknown key belongs to.
    """
    fields = {field.encode_name: field for field in info.fields}
    table = _table(data, path, tuple(fields))
    for key, value in table.items():
        if key in fields:
            check(fields[key].type, value, (*path, key))
        elif key == info.tag_field:
            _check_name(value, (str(info.tag),), (*path, key))
        elif info.forbid_unknown_fields:
            raise FieldError(path, _unknown_key(info, key, others, path), (*path, str(key)))
    for key, field in fields.items():
        if field.required and key not in table:
            raise FieldError((*path, key), f"missing; add {key} = {_example(field.type)}")


def _unknown_key(info: types.StructType, key: object, others: Iterable[types.StructType], path: KeyPath) -> str:
    owners = [str(other.tag) for other in others if key in {field.encode_name for field in other.fields}]
    if owners:
        belongs = f"key {shown(key)} belongs to {info.tag_field} {owners[0]!r}, not to {info.tag!r}"
        by_name = f", or replace the whole table by {str(info.tag)!r}" if _takes_name(path) else ""
        return f"{belongs}; drop it{by_name}"
    return f"unknown key {shown(key)}.{did_you_mean(str(key), _keys(info))}"


def _takes_name(path: KeyPath) -> bool:
    """Tell whether a bare name does in place of the table there."""
    return len(path) == 1 and path[0] in BY_NAME


def _keys(info: types.StructType) -> list[str]:
    return [field.encode_name for field in info.fields] + ([info.tag_field] if info.tag_field else [])


def _check_union(info: types.UnionType, data: object, path: KeyPath) -> None:
    members = [member for member in info.types if not isinstance(member, types.NoneType)]
    structs = tuple(member for member in members if isinstance(member, types.StructType))
    if data is None and len(members) < len(info.types):
        return
    if len(structs) > 1:
        known = {str(struct.tag): struct for struct in structs}
        tag = _tag(str(structs[0].tag_field), known, data, path)
        _check_struct(known[tag], data, path, (struct for other, struct in known.items() if other != tag))
    elif len(members) == 1:
        check(members[0], data, path)
    else:
        check(_member(members, data, path), data, path)


# The Python types of a value of each kind in plain data, and the words for it in messages.
_KINDS: dict[type[types.Type], tuple[tuple[type, ...], str]] = {
    types.BoolType: ((bool,), "true or false"),
    types.IntType: ((int,), "a whole number"),
    types.FloatType: ((int, float), "a number"),
    types.StrType: ((str,), "text in quotes"),
    types.VarTupleType: ((list, tuple), "a list in brackets"),
    types.ListType: ((list, tuple), "a list in brackets"),
    types.DictType: ((dict,), "a table"),
    types.StructType: ((dict,), "a table"),
}


def _member(members: list[types.Type], data: object, path: KeyPath) -> types.Type:
    """Return the member of a union to check a value against: the one of its type, else the one it was meant as."""
    for member in members:
        python_types, _ = _KINDS.get(type(member), ((), ""))
        if type(data) in python_types:
            return member
    # A list is an alternative form of some value: a wrong value is meant as that value, whose own check says more.
    others = [member for member in members if not isinstance(member, types.VarTupleType)]
    if len(others) == 1:
        return others[0]
    wanted = dict.fromkeys(_KINDS[type(member)][1] for member in members if type(member) in _KINDS)
    raise FieldError(path, f"{shown(data)}: write {' or '.join(wanted)}")


def _tag(tag_field: str, known: Collection[str], data: object, path: KeyPath) -> str:
    """Return the tag of a table, one of those that are known."""
    table = _table(data, path, (tag_field,))
    if tag_field not in table:
        raise FieldError((*path, tag_field), f"missing; add {tag_field} = one of {', '.join(sorted(known))}")
    _check_name(table[tag_field], known, (*path, tag_field))
    return str(table[tag_field])


def _check_registered(registry: StructRegistry[Any], data: object, path: KeyPath) -> None:
    """Check a table whose tag says which registered struct it is."""
    data = registry.with_tag(data)
    tag_field = str(registry.base.__struct_config__.tag_field)
    known = {tag_of(struct): struct for struct in registry.built_in()}
    if registry.tag_in(data) not in known:
        known = {tag_of(struct): struct for struct in registry}  # other packages are asked only now
    if isinstance(data, Mapping) and isinstance(data.get(tag_field), str):
        _check_is_registered(registry, data[tag_field], (*path, tag_field))
    tag = _tag(tag_field, known, data, path)
    others = (_struct_type(struct) for other, struct in known.items() if other != tag)
    _check_struct(_struct_type(known[tag]), data, path, others)


def _check_is_registered(registry: StructRegistry[Any], tag: str, path: KeyPath) -> None:
    try:
        registry.find(tag)
    except SimnetError as error:
        unknown = f"{tag!r}: unknown {registry.noun}"  # else its package is there, but broken, as the registry says
        in_data = f"{unknown}; install the package that provides it" if str(error).startswith(unknown) else str(error)
        raise FieldError(path, str(error), in_data=in_data) from error


def _struct_type(struct: type) -> types.StructType:
    info = type_of(struct)
    assert isinstance(info, types.StructType)
    return info


def _check_custom(info: types.CustomType, value: object, path: KeyPath) -> None:
    assert issubclass(info.cls, Quantity | SystemOptions)
    try:
        info.cls.parse(value)
    except ValueError as error:
        raise FieldError(path, str(error)) from error


def _check_name(value: object, known: Any, path: KeyPath) -> None:
    _require(isinstance(value, str), value, "write a name in quotes", path)
    if value not in known:
        raise FieldError(path, f"{shown(value)}: unknown.{did_you_mean(str(value), known)}")


def _check_range(info: types.IntType | types.FloatType, value: Any, noun: str, path: KeyPath) -> None:
    is_finite = isinstance(value, int) or math.isfinite(value)  # a whole number may be too large for a float
    fits = not isinstance(info, types.FloatType) or abs(value) <= sys.float_info.max
    if not (is_finite and fits):
        raise FieldError(path, f"{shown(value)}: must be finite")
    inside = all(
        (
            info.ge is None or value >= info.ge,
            info.gt is None or value > info.gt,
            info.le is None or value <= info.le,
        )
    )
    if not inside:
        raise FieldError(path, f"{shown(value)}: {noun} {_range(info)}".rstrip())


def _range(info: types.IntType | types.FloatType) -> str:
    """Return the limits of a number in words: "above 0, at most 1"."""
    limits = (("of at least", info.ge), ("above", info.gt), ("at most", info.le))
    return ", ".join(
        f"{words} {limit:g}" if limit < 1e6 else f"{words} {limit}" for words, limit in limits if limit is not None
    )


def _require(fits: bool, value: object, rule: str, path: KeyPath) -> None:
    if not fits:
        raise FieldError(path, f"{shown(value)}: {rule}")


def _table(data: object, path: KeyPath, keys: tuple[str, ...]) -> Mapping[Any, object]:
    if not isinstance(data, Mapping):
        wanted = "a name in quotes, or a table" if _takes_name(path) else "a table"
        raise FieldError(path, f"{shown(data)}: write {wanted}" + (f" with the keys {', '.join(keys)}" if keys else ""))
    return data


def _list(data: object, path: KeyPath) -> list[object] | tuple[object, ...]:
    if not isinstance(data, list | tuple):
        broken = isinstance(data, str) and data.startswith("[")  # a list that TOML could not read
        how = " as TOML has it: = after keys, text in quotes, every bracket closed" if broken else ""
        raise FieldError(path, f"{shown(data)}: write a list in brackets{how}")
    return data


def _example(info: types.Type) -> str:
    """Return an example of a value, as it stands in a file."""
    match info:
        case types.CustomType() if issubclass(info.cls, Quantity):
            return f'"{info.cls.example}"'
        case types.IntType():
            return "8"
        case types.StrType():
            return '"..."'
        case types.StructType():
            return "{...}, a table" if info.tag_field else "a name, or a table"
        case types.UnionType():
            return _example(info.types[0])
    return "..."
