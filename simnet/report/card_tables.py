"""The tables of a card's page."""

from collections.abc import Iterable, Sequence
from statistics import median

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
    cells = (
        (
            row.kernel + ("" if row.is_estimable else " *"),
            numel_text(row.num_elements),
            format_seconds(row.measured),
            f"{row.spread:.1%}",
            format_seconds(row.least_s),
            _ratio(row),
            numel_text(largest[row.kernel].num_elements),
            format_seconds(largest[row.kernel].measured),
            _ratio(largest[row.kernel]),
        )
        for row in slowest_sizes(rows)
    )
    heads = (
        "elements",
        "time",
        "between quartiles",
        "bytes / bandwidth",
        "time over it",
        "largest",
        "time",
        "over bytes / bandwidth",
    )
    return Table(("kernel", *(Column(head, "right") for head in heads)), cells)


def _ratio(row: KernelEstimate) -> str:
    text = f"{row.ratio:.2f}"
    return f"**{text}**" if row.is_estimable and row.ratio > TARGET and row.num_elements >= TARGET_FROM else text


def step_table(rows: Sequence[OptimizerStep]) -> Table:
    """Return a row for each optimizer on each model."""
    dense = {(row.num_elements, row.num_tensors): row.step_s for row in rows if row.optimizer == DENSE}
    cells = (
        (
            f"{row.num_elements / 1e6:.3g} M",
            str(row.num_tensors),
            OPTIMIZERS.get(row.optimizer, row.optimizer),
            format_seconds(row.step_s),
            f"{row.spread:.1%}",
            _quotient(row.step_s, dense.get((row.num_elements, row.num_tensors))),
            *(_quotient(value, row.num_elements) for value in (row.state_bytes, row.peak_bytes)),
        )
        for row in rows
    )
    heads = ("step", "between quartiles", "over AdamW", "state [B a parameter]", "peak [B a parameter]")
    columns: tuple[Column | str, ...] = (
        Column("parameters", "right"),
        Column("tensors", "right"),
        "optimizer",
        *(Column(head, "right") for head in heads),
    )
    return Table(columns, cells)


def _quotient(value: float | None, of: float | None) -> str:
    return "-" if value is None or not of else f"{value / of:.2f}"


def model_table(passes: Sequence[MeasuredPass], shipped: Sequence[StepEstimate]) -> Table:
    """Return a row for each model, precision and batch."""
    estimates = {id(one.measured_pass): one for one in shipped}
    rates = ("batch", "both passes", "samples/s", "shipped samples/s", "measured / shipped")
    heads = (*rates, "forward (by FLOPs)", "half ready (by FLOPs)")
    cells = (_model_cells(one, estimates.get(id(one))) for one in passes)
    return Table(("model", "precision", *(Column(head, "right") for head in heads)), cells)


def _model_cells(one: MeasuredPass, estimate: StepEstimate | None) -> tuple[str, ...]:
    shares = (
        _share(one.forward_share, estimate.estimated_forward_share if estimate else None),
        _share(one.half_ready, estimate.estimated_half_ready if estimate else None),
    )
    shipped = ("-", "-")
    if estimate is not None:
        rate = one.batch / estimate.predicted
        shipped = f"{_rate(rate)} ({estimate.kind})", f"{one.samples_per_s / rate:.2f}"
    return (
        f"{one.model}, {one.layout}" if one.layout else one.model,
        one.precision,
        str(one.batch),
        format_seconds(one.compute_s),
        _rate(one.samples_per_s),
        *shipped,
        *shares,
    )


def _share(measured: float | None, estimated: float | None) -> str:
    """Return a share with its estimate in brackets."""
    if measured is None:
        return "-"
    return f"{measured:.0%}" + (f" ({estimated:.0%})" if estimated is not None else "")


def _rate(samples_per_s: float) -> str:
    return f"{samples_per_s:,.0f}" if samples_per_s >= 1000 else f"{samples_per_s:.4g}"


def backward_table(folder: CardFolder) -> Table | None:
    """Return backward alone and beside each collective; None if it was not measured."""
    pairs = select_pairs(folder.measurements)
    if not pairs:
        return None
    cells = []
    for pair in pairs:
        alone, beside = (float(median(values.tolist())) for values in (pair.alone_s, pair.overlapped_s))
        cells.append((pair.label, format_seconds(alone), format_seconds(beside), f"{beside / alone:.3f}"))
    return Table(("", *(Column(head, "right") for head in ("alone", "during it", "slowdown"))), cells)


def checks_table(folder: CardFolder, parts: Iterable[str]) -> Table | None:
    """Return what parts have compared, what failed first; None if they have compared nothing."""
    checks = [one for part in parts if part in folder.files for one in folder.files[part][1].checks]
    if not checks:
        return None
    cells = (
        (one.name, f"{one.count:,}", "yes" if one.passed else "**no**", one.detail)
        for one in sorted(checks, key=lambda one: one.passed)
    )
    return Table(("check", Column("comparisons", "right"), "passed", ""), cells)


def training_steps(folder: CardFolder) -> Table | None:
    """Return the steps of trainings; None if there are none."""
    steps = folder.series("training", "training", "step")
    if not steps:
        return None
    cells = (
        (
            str(one.labels["model"]),
            str(one.labels["strategy"]),
            str(one.labels["batch"]),
            format_seconds(median(one.values)),
        )
        for one in steps
    )
    return Table(("model", "strategy", Column("batch a rank", "right"), Column("step", "right")), cells)


def links_table(folder: CardFolder) -> Table | None:
    """Return each collective at its largest message; None if there are none."""
    largest: dict[str, Series] = {}
    for one in folder.series("links", "collective"):
        known = largest.get(one.name)
        if known is None or one.count("message_bytes") > known.count("message_bytes"):
            largest[one.name] = one
    if not largest:
        return None
    cells = (
        (
            name,
            str(one.labels["group_size"]),
            format_bytes(one.number("message_bytes")),
            format_seconds(median(one.values)),
            f"{format_bytes(one.number('message_bytes') / median(one.values))}/s",
        )
        for name, one in largest.items()
    )
    return Table(
        ("collective", *(Column(head, "right") for head in ("ranks", "message", "time", "bytes / time"))), cells
    )


def values_table(values: Iterable[Comparison]) -> Table:
    """Return single values of the calibration: estimate, interval, measured, ratio."""
    heads = ("estimate", "interval", "measured", "measured / estimate")
    return Table(("value", *(Column(head, "right") for head in heads), ""), (_value_cells(one) for one in values))


def _value_cells(one: Comparison) -> tuple[str, ...]:
    def text(value: float) -> str:
        if one.label == "memory_bandwidth":
            return f"{format_bytes(value)}/s"
        return f"{value:.3f}" if one.label == "backward_slowdown" else format_seconds(value)

    interval = " to ".join(map(text, one.interval)) if one.interval else ""
    return (
        f"`{one.label}`",
        text(one.predicted),
        interval,
        text(one.measured),
        f"{1 / (1 + one.error):.2f}",
        INSIDE[one.is_inside],
    )


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
    heads = (
        "kernel",
        "num_elements",
        "estimate_s",
        "low_s",
        "high_s",
        "measured_s",
        "measured_over_estimate",
        "inside",
        "over_bytes",
    )
    cells = (
        (
            row.kernel, f"{row.num_elements:.0f}",
            *(f"{value:.4g}" for value in (row.predicted, *(row.interval or 2 * (row.predicted,)), row.measured)),
            f"{row.measured / row.predicted:.3f}", "yes" if row.is_inside else "no", f"{row.ratio:.3f}",
        )
        for row in rows
    )  # fmt: skip
    return Table(heads, cells).csv()
