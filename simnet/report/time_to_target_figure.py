"""Draw the metric over simulated time, a panel for each bandwidth."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from simnet.analysis.convergence import median_values
from simnet.analysis.time_to_target import AtBandwidth, TargetTime, TimesToTarget
from simnet.report.figure import current, label, new, thin
from simnet.report.time_to_target import Kernels, kernels_of, time_unit

# Systems of each panel that are drawn in colour: the first ones to the target.
NUM_NAMED = 3
PANEL_HEIGHT_IN, LEGEND_HEIGHT_IN = 2.3, 0.9
LEGEND_COLUMNS = 2
# End of the time axis, in times of the baseline's training.
MARGIN = 1.15
# Of lines, by what the kernels without a time rest on; solid where all are timed.
STYLES: dict[Kernels | None, str] = {None: "-", "estimated": "--", "measure first": "-."}
KERNELS_TEXT: dict[Kernels | None, str] = {
    None: "",
    "estimated": " (kernels estimated)",
    "measure first": " (kernels: measure first)",
}


def time_to_target_figure(found: TimesToTarget) -> Figure:
    """Return the figure."""
    num_rows = math.ceil(len(found.bandwidths) / 2)
    num_columns = min(2, len(found.bandwidths))
    height_in = PANEL_HEIGHT_IN * num_rows + LEGEND_HEIGHT_IN
    figure = new(current().page_in, height_in)
    panels = list(figure.subplots(num_rows, num_columns, squeeze=False, sharey=True).flat)
    colours = _colours(found)
    for axes, there in zip(panels, found.bandwidths, strict=False):
        _panel(axes, found, there, colours)
    for axes in panels[len(found.bandwidths) :]:
        axes.remove()
    figure.legend(handles=_handles(panels[0], found, colours), loc="outside lower center", ncols=LEGEND_COLUMNS)
    return figure


def draw_time_to_target(axes: Axes, found: TimesToTarget) -> None:
    """Draw the metric over simulated time at the first bandwidth."""
    colours = _colours(found)
    _panel(axes, found, found.bandwidths[0], colours)
    axes.legend(handles=_handles(axes, found, colours))


def _colours(found: TimesToTarget) -> dict[str, str]:
    """Return the colours of the systems that are first in some panel, by name."""
    named: dict[str, None] = {}
    for there in found.bandwidths:
        reached = [one.name for one in there.systems if one.time_s is not None and one.name != found.baseline]
        named.update(dict.fromkeys(reached[:NUM_NAMED]))
    return {found.baseline: current().ink} | dict(zip(named, current().colours, strict=False))


def _panel(axes: Axes, found: TimesToTarget, there: AtBandwidth, colours: dict[str, str]) -> None:
    end_s = MARGIN * found.baseline_training_s(there)
    unit_s, unit = time_unit(found, there)
    for system in sorted(there.systems, key=lambda one: one.name in colours):
        _line(axes, found, system, colours.get(system.name, current().others), unit_s)
    axes.axhline(found.target, color=current().ink, linewidth=thin(0.7), linestyle=":")
    axes.set_xlim(0, end_s / unit_s)
    axes.set_ylim(*_shown(found))
    axes.set_title(f"NIC {there.bandwidth.text()}")
    axes.set_xlabel(f"simulated time [{unit}]")
    place = axes.get_subplotspec()
    if place is None or place.is_first_col():
        measured = found.convergence
        axes.set_ylabel(label(f"{measured.metric} [{measured.unit}]" if measured.unit else measured.metric))


def _line(axes: Axes, found: TimesToTarget, system: TargetTime, colour: str, unit_s: float) -> None:
    rows = median_values(found.convergence.of(system.name, found.ranks))
    times = [system.cost.elapsed_s(step * found.scale) / unit_s for step, *_ in rows]
    style = STYLES[kernels_of(system)]
    is_named = colour != current().others
    marker = "o" if len(rows) == 1 else None  # a line of one point is not seen
    width = thin(1.4 if is_named else 0.8)
    axes.plot(times, [row[1] for row in rows], color=colour, linewidth=width, linestyle=style, marker=marker)
    if is_named:
        lows, highs = [row[2] for row in rows], [row[3] for row in rows]
        axes.fill_between(times, lows, highs, color=colour, alpha=0.15, linewidth=0)


def _shown(found: TimesToTarget) -> tuple[float, float]:
    """Return the range of the metric: from the best of all medians to where the baseline was first evaluated.

    Where that gave no number, to the worst of all.
    """
    rows = median_values(found.convergence.of(found.baseline, found.ranks))
    names = {system.name for there in found.bandwidths for system in there.systems}
    medians = [row[1] for name in names for row in median_values(found.convergence.of(name, found.ranks))]
    best, worst = min([*medians, found.target]), max([*medians, found.target])
    if not found.convergence.is_lower_better:
        best, worst = worst, best
    start = rows[0][1] if rows else worst
    margin = 0.05 * abs(start - best) or 1.0
    return (best - margin, start + margin) if best < start else (start - margin, best + margin)


def _handles(axes: Axes, found: TimesToTarget, colours: dict[str, str]) -> list[Line2D]:
    systems = {system.name: system for there in reversed(found.bandwidths) for system in there.systems}
    entries = {
        _entry(found, systems[name]): (colour, 1.4, STYLES[kernels_of(systems[name])])
        for name, colour in colours.items()
    }
    others = dict.fromkeys(kernels_of(system) for name, system in systems.items() if name not in colours)
    entries |= {f"others{KERNELS_TEXT[kernels]}": (current().others, 0.8, STYLES[kernels]) for kernels in others}
    entries[f"target {found.target:g}"] = (current().ink, 0.7, ":")
    return [
        axes.plot([], [], color=colour, linewidth=thin(width), linestyle=style, label=title)[0]
        for title, (colour, width, style) in entries.items()
    ]


def _entry(found: TimesToTarget, system: TargetTime) -> str:
    """Return a system's name in the legend, with what its kernels rest on."""
    role = " (baseline)" if system.name == found.baseline else ""
    return label(system.title) + role + KERNELS_TEXT[kernels_of(system)]
