"""The numbers and figures of docs/how-to/choose.md, from the committed results."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simnet.analysis.verdict import PAYS
from simnet.report import figure as figures
from studies import page, what_to_use
from studies.page import FIGURES
from studies.what_to_use import GROUPS, MICRO_BATCHES, MODELS, NODES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "choose.md"
BY_BANDWIDTH, BY_SIZE = FIGURES / "what_to_use_bandwidth.png", FIGURES / "what_to_use_limits.png"
SHOWN_NODES = 16
TITLES = {
    "rounding": "8 bits",
    "compression": "compression (BinSGDM)",
    "local_steps": "local steps (DiLoCo)",
}
MARKS = dict(zip(GROUPS, ("s", "D", "o", "^"), strict=True))
COLOURS = dict(zip(GROUPS, ("#000000", "#E69F00", "#0072B2", "#009E73"), strict=True))
HIGHEST = 800.0
"""Gbit/s that were tried at most."""


def write(folder: Path = what_to_use.RESULTS) -> None:
    """Write the regions of the page and its figures."""
    found = what_to_use.read(folder)
    page.write(PAGE, regions(found))
    with figures.styled():
        figures.write(_over_bandwidth(found), BY_BANDWIDTH)
        figures.write(_limits(found), BY_SIZE)


def regions(found: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {"choices": choices_sentence(found)}


def choices_sentence(found: Sequence[dict[str, Any]]) -> str:
    """Return the best of each group at the cluster's own bandwidth."""
    parts = []
    for row in _at(found, SHOWN_NODES, 1):
        best = [f"{one['label'].partition(',')[0]} {one['speedup']:.2f}x" for one in row["choices"].values()]
        parts.append(f"with {MODELS[row['model']]} parameters {', '.join(best)}")
    where = f"{SHOWN_NODES} nodes of 8 A100-80GB, 25 Gbit/s"
    return f"Best of each group over tuned DDP (or what fits), {where}: {'; '.join(parts)}."


def _limit(row: dict[str, Any], group: Any) -> float | None:
    return what_to_use.pays_up_to(row["gbit_per_s"], what_to_use.gains(row, group), PAYS)


def _at(found: Sequence[dict[str, Any]], nodes: int, micro_batches: int) -> list[dict[str, Any]]:
    return [one for one in found if (one["nodes"], one["micro_batches"]) == (nodes, micro_batches)]


def _over_bandwidth(found: Sequence[dict[str, Any]]) -> Any:
    """Draw how much faster each group is than what changes nothing, over the bandwidth; a panel for each model."""
    figure = figures.new(figures.PAGE_IN, 3.4)
    panels = figure.subplots(1, len(MODELS), sharey=True)
    for axes, row in zip(panels, _at(found, SHOWN_NODES, 1), strict=True):
        axes.axhline(1.0, color=COLOURS["same"], linewidth=1.2, label="the best that changes nothing")
        for group in GROUPS[1:]:
            look = {"color": COLOURS[group], "marker": MARKS[group], "label": TITLES[group]}
            axes.plot(row["gbit_per_s"], what_to_use.gains(row, group), **look)
        _bandwidths(axes.xaxis, axes)
        axes.set_xlabel("NIC of a node [Gbit/s]")
        axes.set_yscale("log", base=2)
        figures.plain_numbers(axes.yaxis)
        axes.set_title(f"{MODELS[row['model']]} parameters")
    panels[0].set_ylabel("speedup over the best that\nchanges nothing in training")
    panels[0].legend()
    figure.suptitle(f"{SHOWN_NODES} nodes of 8 A100-80GB, one micro-batch a step", x=0.01, ha="left")
    return figure


def _bandwidths(axis: Any, axes: "Axes") -> None:
    axes.set_xscale("log")
    axis.set_major_locator(_fixed((1, 2.5, 5, 10, 25, 50, 100, 200, 400, 800)))
    axis.set_minor_locator(_fixed(()))
    figures.plain_numbers(axis)


def _fixed(places: Sequence[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(list(places))


def _limits(found: Sequence[dict[str, Any]]) -> Any:
    """Draw the bandwidth up to which each group pays over micro-batches; a panel for each model and number of nodes."""
    figure = figures.new(figures.PAGE_IN, 4.6)
    panels = figure.subplots(len(MODELS), len(NODES), sharex=True, sharey=True, squeeze=False)
    for line, model in zip(panels, MODELS, strict=True):
        for axes, nodes in zip(line, NODES, strict=True):
            rows = [one for one in found if (one["model"], one["nodes"]) == (model, nodes)]
            for group in GROUPS[1:]:
                limits = [min(_limit(row, group) or math.nan, HIGHEST) for row in rows]
                axes.plot(MICRO_BATCHES, limits, color=COLOURS[group], marker=MARKS[group], label=TITLES[group])
            axes.set_xscale("log", base=4)
            axes.xaxis.set_major_locator(_fixed(MICRO_BATCHES))
            axes.xaxis.set_minor_locator(_fixed(()))
            figures.plain_numbers(axes.xaxis)
            axes.set_yscale("log")
            axes.set_ylim(9, 250)
            axes.yaxis.set_major_locator(_fixed((10, 25, 50, 100, 200)))
            axes.yaxis.set_minor_locator(_fixed(()))
            figures.plain_numbers(axes.yaxis)
            axes.set_title(f"{MODELS[model]} parameters, {nodes} nodes")
    for axes in panels[-1]:
        axes.set_xlabel("micro-batches a step")
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{PAYS:g} times as fast\nup to NICs of [Gbit/s]")
    panels[0][0].legend()
    return figure
