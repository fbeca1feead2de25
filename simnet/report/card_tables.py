"""The tables of a card's page."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from simnet.calibration.card_folder import CardFolder
from simnet.calibration.comparison import Comparison, by_series, coverage
from simnet.calibration.compute_rows import MeasuredPass
from simnet.calibration.kernels import select_pairs
from simnet.calibration.measurement_file import Series
from simnet.calibration.optimizer_steps import DENSE, OptimizerStep
from simnet.core.units import format_bytes, format_seconds
from simnet.report.card_charts import OPTIMIZERS, numel_text
from simnet.report.table import Column, Table
from simnet.validation.card_estimates import TARGET, TARGET_FROM, KernelEstimate, StepEstimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

INSIDE = {None: "", True: "inside", False: "**outside**"}


def slowest_sizes(rows: Iterable[KernelEstimate]) -> list[KernelEstimate]:
    """Return each kernel at its slowest size from `TARGET_FROM` elements on, or at its largest; the worst first."""
    found = []
    for mine in _by_kernel(rows):
        large = [row for row in mine if row.num_elements >= TARGET_FROM]
        found.append(max(large, key=lambda row: row.ratio) if large else mine[-1])
    return sorted(found, key=lambda row: -row.ratio)


def largest_sizes(rows: Iterable[KernelEstimate]) -> list[KernelEstimate]:
    """Return each kernel at its largest size."""
    return [mine[-1] for mine in _by_kernel(rows)]


def _by_kernel(rows: Iterable[KernelEstimate]) -> list[list[KernelEstimate]]:
    groups: dict[str, list[KernelEstimate]] = {}
    for row in rows:
        groups.setdefault(row.kernel, []).append(row)
    return [sorted(mine, key=lambda row: row.num_elements) for mine in groups.values()]


def kernel_table(rows: Sequence[KernelEstimate]) -> Table:
    """Return a row a kernel, the worst first."""
    largest = {row.kernel: row for row in largest_sizes(rows)}
    columns = (
        Column("kernel", cell=lambda row: row.kernel + ("" if row.is_estimable else " *")),
        Column("elements", "right", cell=lambda row: numel_text(row.num_elements)),
        Column("time", "right", cell=lambda row: format_seconds(row.measured)),
        Column("between quartiles", "right", cell=lambda row: f"{row.spread:.1%}"),
        Column("bytes / bandwidth", "right", cell=lambda row: format_seconds(row.least_s)),
        Column("time over it", "right", cell=_ratio),
        Column("largest", "right", cell=lambda row: numel_text(largest[row.kernel].num_elements)),
        Column("time", "right", cell=lambda row: format_seconds(largest[row.kernel].measured)),
        Column("over bytes / bandwidth", "right", cell=lambda row: _ratio(largest[row.kernel])),
    )
    return Table.of(columns, slowest_sizes(rows))


def _ratio(row: KernelEstimate) -> str:
    text = f"{row.ratio:.2f}"
    return f"**{text}**" if row.is_estimable and row.ratio > TARGET and row.num_elements >= TARGET_FROM else text


def step_table(rows: Sequence[OptimizerStep]) -> Table:
    """Return a row for each optimizer on each model."""
    dense = {(row.num_elements, row.num_tensors): row.step_s for row in rows if row.optimizer == DENSE}
    columns = (
        Column("parameters", "right", cell=lambda row: f"{row.num_elements / 1e6:.3g} M"),
        Column("tensors", "right", cell=lambda row: str(row.num_tensors)),
        Column("optimizer", cell=lambda row: OPTIMIZERS.get(row.optimizer, row.optimizer)),
        Column("step", "right", cell=lambda row: format_seconds(row.step_s)),
        Column("between quartiles", "right", cell=lambda row: f"{row.spread:.1%}"),
        Column(
            "over AdamW",
            "right",
            cell=lambda row: _quotient(row.step_s, dense.get((row.num_elements, row.num_tensors))),
        ),
        Column("state [B a parameter]", "right", cell=lambda row: _quotient(row.state_bytes, row.num_elements)),
        Column("peak [B a parameter]", "right", cell=lambda row: _quotient(row.peak_bytes, row.num_elements)),
    )
    return Table.of(columns, rows)


def _quotient(value: float | None, of: float | None) -> str:
    return "-" if value is None or not of else f"{value / of:.2f}"


def model_table(passes: Sequence[MeasuredPass], shipped: Sequence[StepEstimate]) -> Table:
    """Return a row for each model, precision and batch."""
    estimates = {id(one.measured_pass): one for one in shipped}

    def estimated(one: MeasuredPass, written: Callable[[StepEstimate], str]) -> str:
        found = estimates.get(id(one))
        return written(found) if found is not None else "-"

    def share(one: MeasuredPass, name: str) -> str:
        return _share(getattr(one, name), getattr(estimates.get(id(one)), f"estimated_{name}", None))

    columns = (
        Column("model", cell=lambda one: f"{one.model}, {one.layout}" if one.layout else one.model),
        Column("precision", cell=lambda one: one.precision),
        Column("batch", "right", cell=lambda one: str(one.batch)),
        Column("both passes", "right", cell=lambda one: format_seconds(one.compute_s)),
        Column("samples/s", "right", cell=lambda one: _rate(one.samples_per_s)),
        Column(
            "shipped samples/s",
            "right",
            cell=lambda one: estimated(one, lambda of: f"{_rate(one.batch / of.predicted)} ({of.kind})"),
        ),
        Column(
            "measured / shipped",
            "right",
            cell=lambda one: estimated(one, lambda of: f"{one.samples_per_s / (one.batch / of.predicted):.2f}"),
        ),
        Column("forward (by FLOPs)", "right", cell=lambda one: share(one, "forward_share")),
        Column("half ready (by FLOPs)", "right", cell=lambda one: share(one, "half_ready")),
    )
    return Table.of(columns, passes)


def _share(measured: float | None, estimated: float | None) -> str:
    """Return a share with its estimate in brackets."""
    if measured is None:
        return "-"
    return f"{measured:.0%}" + (f" ({estimated:.0%})" if estimated is not None else "")


def _rate(samples_per_s: float) -> str:
    return f"{samples_per_s:,.0f}" if samples_per_s >= 1000 else f"{samples_per_s:.4g}"


def backward_table(folder: CardFolder) -> Table:
    """Return backward alone and beside each collective, as far as it was measured."""
    columns = (
        Column("", cell=lambda pair: pair.label),
        Column("alone", "right", cell=lambda pair: format_seconds(_median(pair.alone_s))),
        Column("during it", "right", cell=lambda pair: format_seconds(_median(pair.overlapped_s))),
        Column("slowdown", "right", cell=lambda pair: f"{_median(pair.overlapped_s) / _median(pair.alone_s):.3f}"),
    )
    return Table.of(columns, select_pairs(folder.measurements))


def _median(values: "NDArray[np.float64]") -> float:
    return float(median(values.tolist()))


def checks_table(folder: CardFolder, parts: Iterable[str]) -> Table:
    """Return what parts have compared, what failed first."""
    checks = [one for part in parts if part in folder.files for one in folder.files[part][1].checks]
    columns = (
        Column("check", cell=lambda one: one.name),
        Column("comparisons", "right", cell=lambda one: f"{one.count:,}"),
        Column("passed", cell=lambda one: "yes" if one.passed else "**no**"),
        Column("", cell=lambda one: one.detail),
    )
    return Table.of(columns, sorted(checks, key=lambda one: one.passed))


def training_steps(folder: CardFolder) -> Table:
    """Return the steps of trainings."""
    columns = (
        Column("model", cell=lambda one: str(one.labels["model"])),
        Column("strategy", cell=lambda one: str(one.labels["strategy"])),
        Column("batch a rank", "right", cell=lambda one: str(one.labels["batch"])),
        Column("step", "right", cell=lambda one: format_seconds(median(one.values))),
    )
    return Table.of(columns, folder.series("training", "training", "step"))


def links_table(folder: CardFolder) -> Table:
    """Return each collective at its largest message."""
    largest: dict[str, Series] = {}
    for one in folder.series("links", "collective"):
        known = largest.get(one.name)
        if known is None or one.count("message_bytes") > known.count("message_bytes"):
            largest[one.name] = one
    columns = (
        Column("collective", cell=lambda one: one.name),
        Column("ranks", "right", cell=lambda one: str(one.labels["group_size"])),
        Column("message", "right", cell=lambda one: format_bytes(one.number("message_bytes"))),
        Column("time", "right", cell=lambda one: format_seconds(median(one.values))),
        Column(
            "bytes / time",
            "right",
            cell=lambda one: f"{format_bytes(one.number('message_bytes') / median(one.values))}/s",
        ),
    )
    return Table.of(columns, largest.values())


def values_table(values: Iterable[Comparison]) -> Table:
    """Return single values of the calibration: estimate, interval, measured, ratio."""

    def text(one: Comparison, value: float) -> str:
        if one.label == "memory_bandwidth":
            return f"{format_bytes(value)}/s"
        return f"{value:.3f}" if one.label == "backward_slowdown" else format_seconds(value)

    columns = (
        Column("value", cell=lambda one: f"`{one.label}`"),
        Column("estimate", "right", cell=lambda one: text(one, one.predicted)),
        Column("interval", "right", cell=lambda one: " to ".join(text(one, end) for end in one.interval or ())),
        Column("measured", "right", cell=lambda one: text(one, one.measured)),
        Column("measured / estimate", "right", cell=lambda one: f"{1 / (1 + one.error):.2f}"),
        Column("", cell=lambda one: INSIDE[one.is_inside]),
    )
    return Table.of(columns, values)


def group_table(rows: Sequence[KernelEstimate]) -> Table:
    """Return how the estimates of each group of kernels did, small and large sizes apart."""
    cells = []
    for series, mine in by_series(rows).items():
        for is_large in (False, True):
            some = [row for row in mine if (row.num_elements >= TARGET_FROM) is is_large]
            if some:
                where = f"from {numel_text(TARGET_FROM)} on" if is_large else f"below {numel_text(TARGET_FROM)}"
                ratios = sorted(row.measured / row.predicted for row in some)
                inside, judged = coverage(some)
                cells.append(
                    (series, where, str(len(some)), f"{inside} of {judged}",
                     *(f"{ratio:.2f}" for ratio in (ratios[0], median(ratios), ratios[-1])))
                )  # fmt: skip
    heads = ("times", "inside the interval", "least ratio", "median", "largest")
    return Table(("kernels", "elements", *(Column(head, "right") for head in heads)), cells)


def estimates_csv(rows: Sequence[KernelEstimate]) -> str:
    """Return every kernel at every size as CSV, times in seconds."""
    columns = (
        Column("kernel", cell=lambda row: row.kernel),
        Column("num_elements", cell=lambda row: f"{row.num_elements:.0f}"),
        Column("estimate_s", cell=lambda row: f"{row.predicted:.4g}"),
        Column("low_s", cell=lambda row: f"{(row.interval or (row.predicted,))[0]:.4g}"),
        Column("high_s", cell=lambda row: f"{(row.interval or (row.predicted,))[-1]:.4g}"),
        Column("measured_s", cell=lambda row: f"{row.measured:.4g}"),
        Column("measured_over_estimate", cell=lambda row: f"{row.measured / row.predicted:.3f}"),
        Column("inside", cell=lambda row: "yes" if row.is_inside else "no"),
        Column("over_bytes", cell=lambda row: f"{row.ratio:.3f}"),
    )
    return Table.of(columns, rows).csv()
