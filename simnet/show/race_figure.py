"""Draw the metric over simulated time, a panel for each bandwidth."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simnet.compare.convergence import median_values
from simnet.compare.time_to_target import AtBandwidth, TargetTime, TimesToTarget
from simnet.show.figure import BLUE, GREEN, ORANGE, PAGE_IN, PURPLE, SKY, VERMILION, label, new
from simnet.show.race import time_unit

# The baseline is black.
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, "#882255")
BASELINE_COLOUR, OTHERS_COLOUR = "black", "#CCCCCC"
NUM_NAMED = 3
"""Systems drawn in colour: the first so many of every panel."""
PANEL_HEIGHT_IN, LEGEND_HEIGHT_IN = 2.3, 0.6
ROOM = 1.15
"""The time axis ends so many times later than the baseline's training."""


def race_figure(race: TimesToTarget) -> Figure:
    """Return the figure."""
    num_rows = math.ceil(len(race.bandwidths) / 2)
    num_columns = min(2, len(race.bandwidths))
    height_in = PANEL_HEIGHT_IN * num_rows + LEGEND_HEIGHT_IN
    figure = new(PAGE_IN, height_in)
    panels = list(figure.subplots(num_rows, num_columns, squeeze=False, sharey=True).flat)
    colours = _colours(race)
    for axes, there in zip(panels, race.bandwidths, strict=False):
        _panel(axes, race, there, colours)
    for axes in panels[len(race.bandwidths) :]:
        axes.remove()
    _legend(figure, race, colours)
    return figure


def _colours(race: TimesToTarget) -> dict[str, str]:
    """Return the colours of the systems that are first in some panel, by name."""
    named: dict[str, None] = {}
    for there in race.bandwidths:
        reached = [one.name for one in there.systems if one.time_s is not None and one.name != race.baseline]
        named.update(dict.fromkeys(reached[:NUM_NAMED]))
    return {race.baseline: BASELINE_COLOUR} | dict(zip(named, COLOURS, strict=False))


def _panel(axes: Axes, race: TimesToTarget, there: AtBandwidth, colours: dict[str, str]) -> None:
    end_s = ROOM * race.base_end_s(there)
    unit_s, unit = time_unit(race, there)
    for system in sorted(there.systems, key=lambda one: one.name in colours):
        _line(axes, race, system, colours.get(system.name, OTHERS_COLOUR), unit_s)
    axes.axhline(race.target, color="black", linewidth=0.7, linestyle=":")
    axes.set_xlim(0, end_s / unit_s)
    axes.set_ylim(*_shown(race))
    axes.set_title(f"{there.bandwidth.text()} a NIC")
    axes.set_xlabel(f"simulated time [{unit}]")
    if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        found = race.convergence
        axes.set_ylabel(label(f"{found.metric} [{found.unit}]" if found.unit else found.metric))


def _line(axes: Axes, race: TimesToTarget, system: TargetTime, colour: str, unit_s: float) -> None:
    rows = median_values(race.convergence.of(system.name, race.ranks))
    times = [system.cost.elapsed_s(step * race.scale) / unit_s for step, *_ in rows]
    is_named = colour != OTHERS_COLOUR
    marker = "o" if len(rows) == 1 else None  # a line of one point is not seen
    axes.plot(times, [row[1] for row in rows], color=colour, linewidth=1.4 if is_named else 0.8, marker=marker)
    if is_named:
        lows, highs = [row[2] for row in rows], [row[3] for row in rows]
        axes.fill_between(times, lows, highs, color=colour, alpha=0.15, linewidth=0)


def _shown(race: TimesToTarget) -> tuple[float, float]:
    """Return the range of the metric: from the best of all medians to where the baseline was first evaluated.

    Where that gave no number, to the worst of all.
    """
    rows = median_values(race.convergence.of(race.baseline, race.ranks))
    names = {system.name for there in race.bandwidths for system in there.systems}
    medians = [row[1] for name in names for row in median_values(race.convergence.of(name, race.ranks))]
    best, worst = min([*medians, race.target]), max([*medians, race.target])
    if not race.convergence.is_lower_better:
        best, worst = worst, best
    start = rows[0][1] if rows else worst
    margin = 0.05 * abs(start - best) or 1.0
    return (best - margin, start + margin) if best < start else (start - margin, best + margin)


def _legend(figure: Figure, race: TimesToTarget, colours: dict[str, str]) -> None:
    systems = race.convergence.systems
    entries = {label(systems[name].title): (colour, 1.4, "-") for name, colour in colours.items()}
    if any(system.name not in colours for there in race.bandwidths for system in there.systems):
        entries["the others"] = (OTHERS_COLOUR, 0.8, "-")
    entries[f"target {race.target:g}"] = ("black", 0.7, ":")
    axes = figure.axes[0]
    lines = [
        axes.plot([], [], color=colour, linewidth=width, linestyle=style, label=title)[0]
        for title, (colour, width, style) in entries.items()
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=4)
