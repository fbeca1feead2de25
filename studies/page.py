"""The one way from results to a page: regions between marks, which are replaced, in prose written by hand."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.regions import filled

EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence"
FIGURES = EVIDENCE / "figures"


def write(path: Path, regions: Mapping[str, str]) -> None:
    """Replace the regions of a page."""
    path.write_text(filled(path.read_text(encoding="utf-8"), regions), encoding="utf-8")


def number(value: float) -> str:
    """Return a loss for people: three digits after the point, more digits before only where it is large.

    Example:
        >>> number(0.12345), number(2.5), number(1.8772e25)
        ('0.123', '2.500', '1.88e+25')
    """
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.3g}"
