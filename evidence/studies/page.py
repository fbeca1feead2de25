"""The one way from results to a page: regions between marks in prose written by hand, and tables that it links to."""

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from docs.regions import filled
from evidence import ROOT
from simnet.report.table import Table

EVIDENCE = ROOT / "docs" / "evidence"
FIGURES = EVIDENCE / "figures"
DATA = EVIDENCE / "data"
SIMULATOR, BINSGDM = EVIDENCE / "simulator.md", EVIDENCE / "binsgdm.md"
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t by number of seeds, two-sided


def write(path: Path, regions: Mapping[str, str]) -> None:
    path.write_text(filled(path.read_text(encoding="utf-8"), regions), encoding="utf-8")


def write_data(tables: Mapping[str, Table], folder: Path = DATA) -> None:
    """Write tables by their names."""
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(table.csv(), encoding="utf-8")


def data_differs(tables: Mapping[str, Table]) -> list[str]:
    """Return the names of committed tables that are not these."""
    return [name for name, table in tables.items() if (DATA / f"{name}.csv").read_text(encoding="utf-8") != table.csv()]


def paragraph(*sentences: str) -> str:
    return textwrap.fill(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)


def number(value: float) -> str:
    """Return a loss for people: three digits after the point, more digits before only where it is large.

    Example:
        >>> number(0.12345), number(2.5), number(1.8772e25)
        ('0.123', '2.500', '1.88e+25')
    """
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"


def of_seeds(finals: Sequence[float]) -> str:
    """Return mean and range."""
    return f"{number(statistics.fmean(finals))} ({number(min(finals))} to {number(max(finals))})"


class Interval(NamedTuple):
    """A mean over seeds with its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def paired(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Interval":
        """Return that of the differences between runs with the same seeds, in the same order."""
        values = [our - their for our, their in zip(ours, theirs, strict=True)]
        mean = statistics.fmean(values)
        half = T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    def word(self, above: str, below: str) -> str:
        """Return a word where the interval leaves zero out."""
        return above if self.low > 0 else below if self.high < 0 else ""
