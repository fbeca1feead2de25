"""Read published measurements: one value a row, with its source."""

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import msgspec

from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.validation import shipped_parts

FILE = ("published", "measurements.csv")


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One published value; `key` names its file and line."""

    key: str
    source: str
    location: str
    hardware: str
    network: str
    effective_gbps: str
    gpus_per_node: int
    gpus: int
    nodes: int
    model: str
    batch_per_gpu: str
    precision: str
    method: str
    metric: str
    unit: str
    value: float
    read_from: str

    def fits(self, wanted: Mapping[str, object]) -> bool:
        """Return whether each column has the value, or one of a tuple of values."""
        return all(
            getattr(self, column) in value if isinstance(value, tuple) else getattr(self, column) == value
            for column, value in wanted.items()
        )


@dataclass(frozen=True)
class PublishedRows:
    """The published rows, with a choice by column."""

    rows: tuple[PublishedRow, ...]

    def select(self, source: str, **wanted: object) -> tuple[PublishedRow, ...]:
        """Return the rows of a source whose columns have the wanted values.

        Args:
            source: start of the source column.
            wanted: value of a column, or a tuple of allowed values.
        """
        return tuple(row for row in self.rows if row.source.startswith(source) and row.fits(wanted))

    def only(self, source: str, **wanted: object) -> PublishedRow:
        """Return the only row that `select` finds."""
        rows = self.select(source, **wanted)
        if len(rows) != 1:
            raise SimnetError(
                f"{'/'.join(FILE)}: {len(rows)} rows of {source!r} with {wanted}: need one; restore the file"
            )
        return rows[0]


_FACTORS: dict[str, float] = {}
"""Factors on the values of rows by key, while `varied` holds them."""


@contextmanager
def varied(factors: Mapping[str, float]) -> Iterator[None]:
    """Multiply the values of these rows, by key, as if another run had given them; fits are made anew inside."""
    # Global, since sets are functions of files without arguments; clearing the caches makes them read these.
    _FACTORS.update(factors)
    shipped_parts.clear_caches()
    try:
        yield
    finally:
        _FACTORS.clear()
        shipped_parts.clear_caches()


def factor(key: str) -> float:
    """Return the factor on the value of a row, 1 unless `varied` holds another."""
    return _FACTORS.get(key, 1.0)


def load() -> PublishedRows:
    """Return the shipped measurements.

    Raises:
        SimnetError: the file is missing or damaged.
    """
    known = read()
    if not _FACTORS:
        return known
    return PublishedRows(
        tuple(msgspec.structs.replace(row, value=row.value * _FACTORS.get(row.key, 1.0)) for row in known.rows)
    )


@cache
def read() -> PublishedRows:
    """Read the shipped measurements."""
    path = files.data_path(*FILE)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        rows = [{"key": f"{path.name}:{number}", **line} for number, line in enumerate(lines, start=2)]
        return PublishedRows(tuple(msgspec.convert(rows, list[PublishedRow], strict=False)))
    except (OSError, msgspec.ValidationError) as error:
        raise SimnetError(f"{files.label(path)}: {error}: restore the shipped file") from error
