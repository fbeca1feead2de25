"""Lists that other packages may add to: nouns of one kind by their name in files.

A registered class is a frozen `msgspec.Struct` whose tag is its name in files. A field of a scenario that takes any of
them is annotated with the registry's `annotation`, since the union of all is not known when the field is written.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any, Generic, TypeVar

from msgspec import Struct

from simnet.core.errors import SimnetError, did_you_mean, shown

T = TypeVar("T", bound=Struct)


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
