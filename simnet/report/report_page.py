"""A report as one HTML file that needs nothing else."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simnet.core import files, templates, version
from simnet.core.errors import SimnetError, install
from simnet.report import chart_plotly
from simnet.report.contents import Contents
from simnet.report.table import Table
from simnet.report.text import clipped, printable

_REPAIR = f"it draws the figures; {install('report')}"
TITLE_CHARACTERS, TEXT_CHARACTERS = 200, 2000
"""Of a title, and of any other text of a file: a megabyte of it would hide the answer."""

MOST_ROWS = 500
"""Of a table; the files of a sweep have all."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How to make a report again.

    Attributes:
        commands: shell lines.
        inputs: files that were read, each with its SHA-256.
    """

    commands: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, commands: Iterable[str], paths: Iterable[Path]) -> "Origin":
        """Return commands, and the files by their names with their hashes."""
        hashes = {files.label(path): hashlib.sha256(files.read_bytes(path)).hexdigest() for path in paths}
        return cls(commands=tuple(commands), inputs=tuple(hashes.items()))


def report_page(contents: Contents, origin: Origin) -> str:
    """Return the page."""
    from markupsafe import Markup

    values = {
        "title": clipped(contents.title, TITLE_CHARACTERS),
        "question": clipped(printable(contents.question), TEXT_CHARACTERS),
        "verdict": clipped(contents.verdict, TEXT_CHARACTERS),
        "judgement": contents.judgement,
        "advised": clipped(contents.advised, TEXT_CHARACTERS),
        "over_flat": clipped(contents.over_flat, TEXT_CHARACTERS),
        "sections": contents.sections,
        "notes": [clipped(note, TEXT_CHARACTERS) for note in contents.notes],
        "origin": origin,
        "version": version.text(),
        "plotly": Markup(plotly_js()),
        "figures": Markup(_json(contents)),
        "table": lambda table: Markup(_clipped(table).html()),
        "text": lambda text: clipped(text, TEXT_CHARACTERS),
    }
    return templates.html("report.html", values)


def _clipped(table: Table) -> Table:
    """Return a table without what would hide the answer: the megabyte of a cell, the thousands of rows."""
    rows = [[clipped(cell, TEXT_CHARACTERS) for cell in row] for row in table.rows[:MOST_ROWS]]
    if len(table.rows) > MOST_ROWS:
        rows.append([f"and {len(table.rows) - MOST_ROWS} more", *[""] * (len(table.columns) - 1)])
    return Table(table.columns, rows)


def _json(contents: Contents) -> str:
    """Return the figures as JSON that ends no script, by number of section and key."""
    charts = {
        f"{number}-{chart.key}": chart_plotly.figure(chart)
        for number, section in enumerate(contents.sections, start=1)
        for chart in section.charts
    }
    whole = json.dumps(charts, allow_nan=False, separators=(",", ":"))
    return whole.replace("<", "\\u003c")


def check_plotly() -> None:
    """Check that a page can be written, before anything is computed."""
    from importlib.util import find_spec

    if find_spec("plotly") is None:
        raise SimnetError(f"report: plotly is missing: {_REPAIR}")


def plotly_js() -> str:
    """Return plotly.js, from the package of plotly."""
    from importlib.util import find_spec

    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise SimnetError(f"report: plotly is missing: {_REPAIR}")
    whole = files.read_text(Path(package.origin).parent / "package_data" / "plotly.min.js")
    return whole.replace("</script", "<\\/script")
