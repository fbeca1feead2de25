"""Lay out the figure of one run: where the time of a step goes; and caption figures of one run."""

import textwrap

from matplotlib.figure import Figure

from simnet.engine.result import RunResult, point_result
from simnet.report.figure import current, new
from simnet.report.figures import draw_breakdown
from simnet.report.labels import calibration_name, context
from simnet.report.text import printable

HEIGHT_IN = 2.2
CHARACTER_IN = 0.075


def breakdown(run: RunResult) -> Figure:
    """Return the figure, with its caption as label."""
    figure = new(current().page_in, HEIGHT_IN)
    draw_breakdown(figure.subplots(), run)
    add_caption(figure, run, "Time of a step by part, on the slowest rank")
    return figure


def add_caption(figure: Figure, run: RunResult, what: str) -> None:
    """Give a figure of one run its caption as label, and the first part of it as title where the style has titles.

    Args:
        figure: what is drawn.
        run: what it is of.
        what: is drawn, the start of the caption.
    """
    where = f"{what}: {context([point_result({}, run)])}"
    source = f"Simulated by simnet {printable(run.version)}. Calibration: {calibration_name(run)}."
    figure.set_label(f"{where}. {source}")
    if current().has_titles:
        figure.suptitle(textwrap.fill(where, int(current().page_in / CHARACTER_IN)), x=0.01, ha="left")
