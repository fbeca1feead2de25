"""Draw the speedup of each system over the bandwidth of a NIC, DDP tuned at each."""

import math
import textwrap
from collections.abc import Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.verdict import PAYS
from simnet.core.errors import SimnetError
from simnet.report.advice import heading
from simnet.report.figure import COLOURS, MARKERS, PAGE_IN, current, new, plain_numbers, thin

# A system that takes more than four times as long is out of the question, and is not drawn.
LOWEST = 0.25
HEADROOM, EDGE = 1.2, 1.12
TITLE_CHARACTERS = 100
GBIT = 1e9 / 8


def advice_figure(advice: Advice) -> Figure:
    """Return the figure.

    Raises:
        SimnetError: there is nothing to draw.
    """
    figure = new(current().page_in, 4.6)
    draw_advice(figure.subplots(), advice)
    if current().has_titles:
        where, *_ = heading(advice)
        title = f"{where}; system and {_baseline(advice)} tuned at each bandwidth"
        figure.suptitle(textwrap.fill(title, int(TITLE_CHARACTERS * current().page_in / PAGE_IN)), x=0.01, ha="left")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _baseline(advice: Advice) -> str:
    return "DDP" if advice.baseline_system.is_dense else "the fastest that fits and changes nothing"


def draw_advice(axes: Axes, advice: Advice) -> None:
    """Draw the speedup of every system that fits over NIC bandwidth.

    Raises:
        SimnetError: there is nothing to draw.
    """
    rows = [row for row in advice.others if row.may_fit]
    if not rows or not any(row.curve for row in rows):
        raise SimnetError(f"--plot: {_why_nothing(advice)}")
    # What to use comes first, by what may change in training, then the fastest.
    chosen = [one.system for one in advice.choices if one.system in rows]
    rows = [*chosen, *(row for row in rows if row not in chosen)]
    named = rows[: len(COLOURS)]
    highest = HEADROOM * max([2.0, *(speedup for row in rows for _, speedup in row.curve)])
    axes.axhspan(
        PAYS, highest, color=current().paying, linewidth=0, zorder=0, label=f"predicted {PAYS:g} times as fast or more"
    )
    axes.axhline(1.0, color=current().ink, linewidth=thin(), zorder=1)
    _lines(axes, named, rows[len(named) :])
    here = advice.scenario.cluster.inter_node.bytes_per_s
    axes.axvline(here / GBIT, color=current().ink, linewidth=thin(), linestyle="--", label="this cluster")
    least = min([1.0, *(speedup for row in rows for _, speedup in row.curve)])
    _axes(axes, rows, max(LOWEST, 2.0 ** math.floor(math.log2(least / HEADROOM))), highest)
    tuned = "" if current().has_titles else ", tuned"
    axes.set_ylabel(f"speedup over {_baseline(advice)}{tuned}")


def _why_nothing(advice: Advice) -> str:
    if advice.scenario.cluster.num_nodes == 1:
        return "cluster.num_nodes is 1: one node sends nothing over its NIC; set cluster.num_nodes"
    if advice.left_out:
        name, reason = advice.left_out[0]
        return f"nothing but DDP could be predicted: {name}: {reason}"
    return "nothing fits the GPU but what others are compared with; drop --plot, or give more of --systems"


def _lines(axes: Axes, named: Sequence[RankedSystem], others: Sequence[RankedSystem]) -> None:
    """Draw the fastest systems of this cluster in colour, a broken line where kernels must be measured first."""
    for row, colour, marker in zip(named, cycle(current().colours), cycle(MARKERS), strict=False):
        label = row.label + (" (kernels not measured)" if row.speedup.unmeasured else "")
        dash = ":" if row.speedup.unmeasured else "-"
        axes.plot(*_points(row), color=colour, marker=marker, linestyle=dash, label=label, zorder=3)
    for number, row in enumerate(others):
        axes.plot(
            *_points(row),
            color=current().others,
            linewidth=thin(0.9),
            zorder=2,
            label="others" if number == 0 else "_nolegend_",
        )


def _points(row: RankedSystem) -> tuple[list[float], list[float]]:
    return [rate / GBIT for rate, _ in row.curve], [speedup for _, speedup in row.curve]


def _axes(axes: Axes, rows: Sequence[RankedSystem], lowest: float, highest: float) -> None:
    rates = [rate / GBIT for rate, _ in rows[0].curve]
    axes.set_xscale("log")
    axes.set_xlim(rates[0] / EDGE, rates[-1] * EDGE)  # whole markers at both ends
    axes.xaxis.set_major_locator(FixedLocator(rates))
    axes.xaxis.set_minor_locator(NullLocator())
    plain_numbers(axes.xaxis)
    axes.set_xlabel("NIC bandwidth [Gbit/s]")
    axes.set_yscale("log", base=2)
    axes.set_ylim(lowest, highest)
    axes.yaxis.set_major_locator(LogLocator(base=2))
    plain_numbers(axes.yaxis)
    axes.yaxis.set_minor_formatter(NullFormatter())
