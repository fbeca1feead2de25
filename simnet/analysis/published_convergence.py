"""What publications say of the quality of trainings that a strategy changes, where no training here does."""

from collections.abc import Collection
from functools import cache

from msgspec import Struct

from simnet.core import files, schema

FILE = ("published", "convergence.toml")


class PublishedConvergence(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one publication says.

    Attributes:
        kinds: strategies that it is about.
        text: in short.
        carries: how far that carries.
        source: where it is said.
    """

    kinds: tuple[str, ...]
    text: str
    carries: str
    source: str


class PublishedRecords(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them."""

    records: tuple[PublishedConvergence, ...]


@cache
def _all() -> tuple[PublishedConvergence, ...]:
    path = files.data_path(*FILE)
    return schema.build(PublishedRecords, files.read_file(path), files.label(path)).records


def of(kinds: Collection[str]) -> tuple[PublishedConvergence, ...]:
    """Return what is published of any of these strategies."""
    return tuple(one for one in _all() if set(one.kinds) & set(kinds))
