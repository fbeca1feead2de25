"""Lay the figures of a sweep out for print and write them to files."""

import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from simnet.errors import SimnetError
from simnet.report import figures
from simnet.report.document import Document, Point, read_document
from simnet.report.files import write_file
from simnet.report.text import bandwidth_text, nodes_text

Format = Literal["png", "pdf", "svg"]
Draw = Callable[[Axes, Sequence[Point]], None]
Panels = dict[str, list[Point]]

MAX_PANELS = 12
# A figure is as wide as it is printed, one or two columns of a page, so that 8 pt stay 8 pt.
COLUMN_WIDTH_IN = {1: 3.5, 2: 7.16}
PANEL_HEIGHT_IN = 2.2
# An average character of a title and of a legend, a legend's marker, and a line.
CHARACTER_IN, LEGEND_CHARACTER_IN, LEGEND_HANDLE_IN, LINE_IN = 0.066, 0.058, 0.42, 0.17
TITLE_CHARACTERS = 38
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "legend.frameon": False,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "svg.hashsalt": "simnet",
}
# No dates in the files: the same results give the same bytes.
METADATA: dict[Format, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


class Drawing(NamedTuple):
    """One figure: what it shows, what it needs, and how a panel of it is drawn."""

    title: str
    draw: Draw
    needs_nodes: bool = False
    needs_bandwidth: bool = False
    needs_baseline: bool = False
    share_y: bool | Literal["row"] = False
    split: Callable[[Panels], Panels] = lambda panels: panels


def plot(results: Path, directory: Path, file_format: Format = "png") -> list[Path]:
    """Draw every figure for which the results have the axes.

    Args:
        results: The `results.json` of a sweep, or the sweep's folder.
        directory: Where the figures go; made if it is not there.
        file_format: What the figures are written as.

    Returns:
        The files written.

    Raises:
        SimnetError: the results are damaged, empty, of another format, or vary neither nodes nor bandwidth; or a
            figure cannot be written.
    """
    document = read_document(results)
    drawings = _possible(document, where=str(results))
    with mpl.rc_context(STYLE):
        images = {
            directory / f"{name}.{file_format}": _image(_figure(document, drawing), file_format)
            for name, drawing in drawings.items()
        }
    for path, image in images.items():
        write_file(path, image)
    return list(images)


def _possible(document: Document, *, where: str) -> dict[str, Drawing]:
    """Return the figures whose axes vary in these results."""
    num_nodes, num_rates = len(figures.node_counts(document.points)), len(figures.rates(document.points))
    if num_nodes < 2 and num_rates < 2:
        raise SimnetError(
            f"{where}: axes {[axis.key for axis in document.axes]!r}: figures need at least two values of "
            "cluster.num_nodes or of cluster.inter_node.bandwidth; sweep one of them"
        )
    if len(document.panels) > MAX_PANELS:
        raise SimnetError(
            f"{where}: {len(document.panels)} panels: at most {MAX_PANELS} fit one figure; sweep fewer values of the "
            "keys other than nodes and bandwidth"
        )
    compared = all(point.speedup is not None and point.baseline is not None for point in document.points)
    return {
        name: drawing
        for name, drawing in DRAWINGS.items()
        if num_nodes >= 2 or not drawing.needs_nodes
        if num_rates >= 2 or not drawing.needs_bandwidth
        if compared or not drawing.needs_baseline
    }


def _slowest_and_fastest_network(panels: Panels) -> Panels:
    """Split each panel in two: its lowest bandwidth and its highest."""
    return {
        f"{label}\n{bandwidth_text(rate)}": [point for point in points if point.nic_gbit_per_s == rate]
        for label, points in panels.items()
        for rate in dict.fromkeys((min(figures.rates(points)), max(figures.rates(points))))
    }


def _largest_cluster(panels: Panels) -> Panels:
    """Keep of each panel the points that differ in bandwidth alone, or else in nodes alone."""
    return dict(_one_dimension(label, points) for label, points in panels.items())


def _one_dimension(label: str, points: list[Point]) -> tuple[str, list[Point]]:
    if len(figures.rates(points)) < 2:
        return f"{label}\n{bandwidth_text(points[0].nic_gbit_per_s)}", points
    most = max(figures.node_counts(points))
    return f"{label}\n{nodes_text(most)}", [point for point in points if point.num_nodes == most]


def _figure(document: Document, drawing: Drawing) -> Figure:
    panels = drawing.split(document.panels)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(COLUMN_WIDTH_IN[columns], rows * PANEL_HEIGHT_IN), layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=drawing.share_y).flat)
    for axes, (label, points) in zip(grid, panels.items(), strict=False):
        drawing.draw(axes, points)
        axes.set_title(_wrapped(label, TITLE_CHARACTERS))
        if drawing.share_y and grid.index(axes) % columns:
            axes.set_ylabel("")
    for axes in grid[len(panels) :]:
        axes.remove()
    _frame(figure, drawing, document)
    return figure


def _frame(figure: Figure, drawing: Drawing, document: Document) -> None:
    """Write on top what is shown, below the legend of all panels and what they rest on; the figure grows by it."""
    width, panels_height = figure.get_size_inches()
    title = _wrapped(_title(document, drawing), int(width / CHARACTER_IN))
    footer = _wrapped(_footer(document), int(width / CHARACTER_IN))
    handles = _breakdown_handles(document) if drawing.draw is figures.breakdown else _line_handles(figure.axes)
    legend_rows = _legend_rows(handles, width)
    footer_in = LINE_IN * (footer.count("\n") + 1) + 0.05
    strip_in = footer_in + LINE_IN * legend_rows + 0.1
    height = panels_height + strip_in + LINE_IN * (title.count("\n") + 1)
    figure.set_size_inches(width, height)
    figure.suptitle(title, x=0.01, ha="left")
    figure.text(0.01, footer_in / height / 2, footer, ha="left", va="center", color="#333333")
    if handles:
        columns = -(-len(handles) // legend_rows)
        figure.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, footer_in / height), ncols=columns)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, strip_in / height, 1, 1 - strip_in / height))


def _wrapped(text: str, characters: int) -> str:
    """Break each line of a text where it is too long."""
    return "\n".join(textwrap.fill(line, characters) for line in text.splitlines() if line)


def _title(document: Document, drawing: Drawing) -> str:
    point = document.points[0]
    baseline = point.baseline.strategy if point.baseline else ""
    return f"{document.question}\n{drawing.title.format(strategy=point.strategy, baseline=baseline)}"


def _footer(document: Document) -> str:
    calibrations = ", ".join(dict.fromkeys(point.calibration for point in document.points))
    versions = ", ".join(dict.fromkeys(point.version for point in document.points))
    return f"Simulated by simnet {versions}. Calibration: {calibrations}."


def _legend_rows(handles: Sequence[Artist], width: float) -> int:
    """Return how many rows a legend of these entries needs in a figure of this width [in]."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    fitting = int((width - 0.2) / (longest * LEGEND_CHARACTER_IN + LEGEND_HANDLE_IN))
    return -(-len(handles) // max(1, fitting))


def _line_handles(grid: Iterable[Axes]) -> list[Artist]:
    """Return one line for each label that any panel has."""
    by_label = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return list(by_label.values())


def _breakdown_handles(document: Document) -> list[Artist]:
    """Return the parts, top of the stack first, then how the two strategies' bars differ."""
    handles: list[Artist] = [Patch(color=colour, label=label) for label, colour in reversed(figures.PARTS.values())]
    point = document.points[0]
    if point.baseline is not None:
        bar: dict[str, Any] = {"facecolor": "#aaaaaa", "edgecolor": "white", "linewidth": 0}
        handles.append(Patch(label=f"left: {point.strategy}", **bar))
        handles.append(Patch(label=f"right: {point.baseline.strategy}", hatch=figures.BASELINE_HATCH, **bar))
    return handles


def _image(figure: Figure, file_format: Format) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, metadata=METADATA[file_format])
    return buffer.getvalue()


DRAWINGS = {
    "speedup_over_nodes": Drawing(
        "Speedup of {strategy} over {baseline}, by nodes",
        figures.speedup_over_nodes,
        needs_nodes=True,
        needs_baseline=True,
        share_y=True,
    ),
    "speedup_over_bandwidth": Drawing(
        "Speedup of {strategy} over {baseline}, by NIC bandwidth",
        figures.speedup_over_bandwidth,
        needs_bandwidth=True,
        needs_baseline=True,
        share_y=True,
    ),
    "throughput": Drawing(
        "Throughput against linear scaling, samples per rank fixed (weak scaling)",
        figures.throughput,
        needs_nodes=True,
        share_y="row",
        split=_slowest_and_fastest_network,
    ),
    "breakdown": Drawing(
        "Where the time of one iteration goes, on the slowest rank", figures.breakdown, split=_largest_cluster
    ),
    "heat_map": Drawing(
        "Speedup of {strategy} over {baseline}; the line parts faster from slower",
        figures.heat_map,
        needs_nodes=True,
        needs_bandwidth=True,
        needs_baseline=True,
    ),
}
