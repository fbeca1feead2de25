"""Draw time lost by cause: bars of what each fault costs a step, the strategy's beside the baseline's."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simnet.engine.result import RunResult, StepTimes
from simnet.report.figure import current, new, shown, thin
from simnet.report.figures import BASELINE_COLOUR, BASELINE_HATCH, STRATEGY_COLOUR
from simnet.report.labels import titles
from simnet.report.lost_time import losing, rows_of
from simnet.report.run_figure import add_caption
from simnet.report.text import clipped

ROW_IN, FRAME_IN = 0.42, 0.95
BAR = 0.36
TAIL = "95th percentile, in the same way"
LABEL_CHARACTERS, NAME_CHARACTERS = 34, 40


def lost_time(run: RunResult) -> Figure:
    """Return the figure of a result that says what its faults cost, with its caption as label."""
    rows = list(rows_of(run))
    figure = new(current().page_in, FRAME_IN + ROW_IN * len(rows))
    absolute, relative = figure.subplots(1, 2, sharey=True)
    sides = [side for side, _ in losing(run).values()]
    longest_s = max(abs(one.p95_s) for _, times in rows for one in times)
    scale, unit = (1.0, "s") if longest_s >= 1 else (1e3, "ms")
    _bars(absolute, rows, titles([run]), [scale for _ in sides])
    _bars(relative, rows, titles([run]), [100 / side.iteration_s for side in sides])
    absolute.set_xlabel(f"lost in a step [{unit}]")
    relative.set_xlabel("of its own mean step [%]")
    absolute.set_yticks(range(len(rows)), [textwrap.fill(label, LABEL_CHARACTERS) for label, _ in rows])
    absolute.set_ylim(len(rows) - 0.5, -0.5)
    # Marks of percentiles stand before the bars, since lines do.
    (mark, *bars), (mark_label, *bar_labels) = absolute.get_legend_handles_labels()
    figure.legend([*bars, mark], [*bar_labels, mark_label], loc="outside lower center", ncols=3)
    add_caption(figure, run, "Time lost by cause")
    return figure


def _bars(axes: Axes, rows: Sequence[tuple[str, list[StepTimes]]], names: list[str], scales: Sequence[float]) -> None:
    """Draw a bar of the mean for each strategy in each row, and a mark at the 95th percentile.

    Args:
        axes: where.
        rows: labels with the times of each strategy.
        names: of the strategies.
        scales: from seconds to what is drawn, for each strategy.
    """
    colours = (STRATEGY_COLOUR, BASELINE_COLOUR)
    for index, (name, scale) in enumerate(zip(names, scales, strict=False)):
        places = [row + BAR * (index - (len(scales) - 1) / 2) for row in range(len(rows))]
        means = [times[index].mean_s * scale for _, times in rows]
        look: dict[str, Any] = {"color": shown(colours[index]), "edgecolor": current().ground, "linewidth": 0}
        hatch = BASELINE_HATCH if index else ""
        axes.barh(places, means, BAR, hatch=hatch, label=f"mean, {clipped(name, NAME_CHARACTERS)}", **look)
        tails = [times[index].p95_s * scale for _, times in rows]
        axes.plot(
            tails,
            places,
            color=current().ink,
            marker="|",
            markersize=thin(7),
            markeredgewidth=thin(1.4),
            linestyle="none",
            label=TAIL if not index else "_nolegend_",
        )
    axes.axvline(0, color=current().ink, linewidth=thin())
    axes.tick_params(axis="y", length=0)
