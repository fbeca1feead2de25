"""The one way from results to a page: regions between marks, which are replaced, in prose written by hand."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

from benchmarks.regions import filled
from simnet.report.table import Table

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence"
FIGURES = EVIDENCE / "figures"
DATA = EVIDENCE / "data"
SIMULATOR, BINSGDM = EVIDENCE / "simulator.md", EVIDENCE / "binsgdm.md"
"""The pages of which programs write regions."""


def write(path: Path, regions: Mapping[str, str]) -> None:
    """Replace the regions of a page."""
    path.write_text(filled(path.read_text(encoding="utf-8"), regions), encoding="utf-8")


def write_data(tables: Mapping[str, Table], folder: Path = DATA) -> None:
    """Write the tables that a page links to, by name."""
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(table.csv(), encoding="utf-8")


def data_differs(tables: Mapping[str, Table]) -> list[str]:
    """Return the names of committed tables that are not these."""
    return [name for name, table in tables.items() if (DATA / f"{name}.csv").read_text(encoding="utf-8") != table.csv()]


def paragraph(*sentences: str) -> str:
    """Return sentences as a paragraph in lines."""
    return textwrap.fill(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)


def number(value: float) -> str:
    """Return a loss for people: three digits after the point, more digits before only where it is large.

    Example:
        >>> number(0.12345), number(2.5), number(1.8772e25)
        ('0.123', '2.500', '1.88e+25')
    """
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"
