"""Answers as HTML for notebooks: what the command prints, and of a run its verdict, a bar and what it assumes."""

from collections.abc import Iterable, Iterator
from html import escape

from simnet.core.units import format_seconds
from simnet.engine.result import RunResult, StrategyResult
from simnet.report.figure import STEP_PARTS
from simnet.report.labels import sides, titles
from simnet.report.result_page import assumptions, comparison, run_line, verdict
from simnet.report.table import Page, Table
from simnet.report.text import printable

LEAST_PERCENT = 0.2
"""A part of a bar below this share of the longest is not drawn."""
NAME_STYLE = "flex: 0 0 16em; overflow-wrap: anywhere"
BAR_STYLE = "display: flex; align-items: center; gap: 0.6em; margin: 0.2em 0"


def page_html(page: Page) -> str:
    """Return a page as HTML: its lines as paragraphs, its tables as tables; everything is escaped."""
    return "\n".join(_blocks(page.blocks))


def _blocks(blocks: Iterable[str | Table]) -> Iterator[str]:
    lines: list[str] = []
    for block in (*blocks, ""):
        if isinstance(block, str) and block.strip():
            lines.append(block.strip())
            continue
        if lines:
            yield f"<p>{'<br>'.join(_text(line) for line in lines)}</p>"
            lines = []
        if isinstance(block, Table):
            yield block.html()


def run_html(result: RunResult) -> str:
    """Return a run as HTML: verdict, where the time of a step goes, numbers, what is assumed."""
    notes = "".join(f"<li>{_text(note)}</li>" for note in result.notes)
    assumed = Table(("what", "as simulated"), assumptions(result).items())
    return "\n".join(
        [
            f"<p><strong>{_text(run_line(result))}</strong></p>",
            *_bars(result),
            "".join(f"<p>{_text(line)}</p>" for line in verdict(result)),
            f"<details><summary>Numbers</summary>{comparison(result).html()}</details>",
            f"<details><summary>Assumptions</summary>{assumed.html()}<ul>{notes}</ul></details>",
        ]
    )


def _bars(result: RunResult) -> Iterator[str]:
    """Yield a bar for each strategy, the parts of its step in their colours, and a legend."""
    steps = sides(result)
    longest_s = max(step.iteration_s for step in steps)
    for name, step in zip(titles([result]), steps, strict=True):
        parts = "".join(_parts(step, longest_s))
        spoken = f"{name}: {format_seconds(step.iteration_s)} a step"
        bar = (
            f'<div role="img" aria-label="{_text(spoken)}" style="display: flex; flex: 1; height: 1.2em">{parts}</div>'
        )
        yield f'<div style="{BAR_STYLE}"><div style="{NAME_STYLE}">{_text(spoken)}</div>{bar}</div>'
    drawn = [part for part in STEP_PARTS if any(getattr(step.breakdown, part) for step in steps)]
    yield f"<p>{' '.join(_legend(*STEP_PARTS[part]) for part in drawn)}</p>"


def _parts(step: StrategyResult, longest_s: float) -> Iterator[str]:
    for key, (label, colour) in STEP_PARTS.items():
        seconds: float = getattr(step.breakdown, key)
        percent = 100 * seconds / longest_s
        if percent >= LEAST_PERCENT:
            title = f"{label}: {format_seconds(seconds)}"
            yield f'<div title="{title}" style="width: {percent:.2f}%; background: {colour}"></div>'


def _legend(label: str, colour: str) -> str:
    return f'<span style="white-space: nowrap"><span style="color: {colour}" aria-hidden="true">■</span> {label}</span>'


def _text(text: str) -> str:
    return escape(printable(text))
