"""What a shell offers while a name or a key is typed; nothing of this is imported until it asks."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from simnet.core import files

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from msgspec import Struct, inspect

Completed = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
KINDS, STRATEGIES = "kinds", "strategies"
"""What is completed beside names of shipped files."""
DEEPEST = 4
LABELS = {"name", "title", "source", "kind", "question", "measured_on", "fitted_to"}
"""Keys that change no result."""


def names_of(*kinds: str) -> Completed:
    """Return what completes the names of shipped parts, and paths of files.

    Args:
        kinds: of parts, as in `simnet show`.
    """

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        known = dict.fromkeys(name for kind in kinds for name in _names(kind))
        # The shell lists files itself; it is told first, for bash then forgets what it was told before.
        return [CompletionItem(typed, type="file"), *_items(known, typed)]

    return complete


def keys(_ctx: click.Context, _param: click.Parameter, typed: str) -> "list[CompletionItem]":
    """Complete the key of a scenario; its value is the user's."""
    from simnet.engine.scenario import Scenario

    return _items((key for key in dict.fromkeys(_keys(Scenario)) if key.rpartition(".")[2] not in LABELS), typed)


def _items(known: Any, typed: str) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in known if name.startswith(typed)]


def _names(kind: str) -> Iterator[str]:
    if kind == STRATEGIES:
        from simnet.core.registry import tag_of
        from simnet.strategies import STRATEGIES as KNOWN

        yield from map(tag_of, KNOWN)
    elif kind == KINDS:
        yield from (*files.KINDS, STRATEGIES)
    else:
        yield from files.names(kind)


def _keys(struct: "type[Struct]") -> Iterator[str]:
    from simnet.core import schema

    yield from _inner(schema.type_of(struct), "", DEEPEST)


def _inner(info: "inspect.Type", above: str, depth: int) -> Iterator[str]:
    """Yield the dotted keys of the leaves of a struct, or of what a union has of structs."""
    from msgspec import inspect

    if isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _inner(member, above, depth)
    elif isinstance(info, inspect.StructType) and depth:
        for field in info.fields:
            key = f"{above}{field.encode_name}"
            inside = list(_inner(field.type, f"{key}.", depth - 1))
            yield from inside or [key]
