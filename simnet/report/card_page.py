"""The page of a measured card, its tables, and the files that go with it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from statistics import median
from typing import TYPE_CHECKING

from simnet.calibration.card_folder import PARTS, CardFolder, archive, versions_text
from simnet.calibration.comparison import Comparison, by_series, coverage
from simnet.calibration.compute_rows import MeasuredPass
from simnet.calibration.kernels import select_pairs
from simnet.calibration.measurement_file import Series
from simnet.calibration.optimizer_steps import DENSE, OptimizerStep, optimizer_steps
from simnet.core import templates
from simnet.core.files import read_text
from simnet.core.units import format_bytes, format_seconds
from simnet.report import card_charts
from simnet.report.card_charts import OPTIMIZERS, numel_text
from simnet.report.page import Page
from simnet.report.table import Column, Table
from simnet.report.text import hanging, printable
from simnet.validation.card_estimates import TARGET, TARGET_FROM, CardResult, KernelEstimate, StepEstimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CALIBRATIONS = PurePosixPath("scenarios/calibrations")
WORKLOADS = PurePosixPath("scenarios/workloads")
EVIDENCE = PurePosixPath("docs/evidence")
MEASURED = ", measured"
"""What follows the card in the title of its page."""


FILLS = {
    "kernels": "`kernels`, `memory_bandwidth` and `kernel_launch` of the card's calibration; the page",
    "models": "measured `[[compute]]` rows in `scenarios/workloads/`; the page",
    "interference": "`backward_slowdown` of the calibration; the page",
}
"""What the parts fill that fill more than the page."""
INSIDE = {None: "", True: "inside", False: "**outside**"}
IN_TABLE = "its bytes / bandwidth"
"""In the notes of the part `kernels` that list slow kernels, as the table of the page does."""


def page_name(found: CardResult) -> str:
    """Return the file name of the page."""
    return f"gpu-{found.folder.stem}.md"


def _archive_name(found: CardResult) -> str:
    """Return the file name of the samples."""
    return f"gpu-{found.folder.stem}.zip"


def files_of(found: CardResult) -> dict[PurePosixPath, bytes]:
    """Return everything that is written, by path in a checkout."""
    made: dict[PurePosixPath, bytes] = {EVIDENCE / page_name(found): page(found).encode()}
    made[EVIDENCE / _archive_name(found)] = archive(found.folder)
    if found.calibration:
        made[CALIBRATIONS / f"{found.folder.stem}.toml"] = found.calibration.encode()
    made |= {WORKLOADS / f"{name}.toml": text.encode() for name, text in found.workloads.items()}
    made |= {EVIDENCE / "figures" / _picture(found, name): png for name, png in card_charts.drawn(found).items()}
    if found.kernels:
        made[EVIDENCE / _csv_name(found)] = estimates_csv(found.kernels).encode()
    return made


def summary(found: CardResult) -> Page:
    """Return the outcome for a terminal."""
    lines = [line for text in headlines(found) for line in hanging("", text.replace("**", "").replace("`", ""))]
    missing = [f"not measured: {PARTS[part]}" for part in found.folder.missing()]
    left_out = [
        line
        for reason, names in _by_reason(found.fitted.left_out).items()
        for line in hanging("not fitted: ", f"{', '.join(names)}: {reason}")
    ]
    return Page([f"{found.folder.label}, {versions_text(found.folder)}", "", *lines, *missing, *left_out])


def page(found: CardResult) -> str:
    """Return the page as Markdown; its links expect the figures in `figures/`."""
    folder, slowdown = found.folder, found.fitted.slowdown
    steps = optimizer_steps(folder)
    given = {
        **_facts(found),
        "title": f"{folder.label}{MEASURED}" if folder.is_card else f"A trial of this page ({folder.label})",
        "is_card": folder.is_card,
        "is_quick": folder.about.quick,
        "date": folder.about.created[:10],
        "machine": _machine(folder),
        "versions": versions_text(folder),
        "stem": folder.stem,
        "base": found.base,
        "has_calibration": bool(found.calibration),
        "workloads": sorted(found.workloads),
        "card_notes": [*map(printable, folder.about.notes)],
        "headlines": headlines(found),
        "missing": {part: (PARTS[part], printable(why)) for part, why in folder.missing().items()},
        "picture": lambda name: _picture(found, name),
        "archive_name": _archive_name(found),
        "csv_name": _csv_name(found),
        "kernels": bool(found.kernels),
        "kernel_table": _markdown(kernel_table(found.kernels)),
        "left_out": _by_reason(found.fitted.left_out),
        "poor": found.fitted.poor,
        "fit_notes": _by_reason([note for part in found.fitted.parts for note in part.notes]),
        "steps": _markdown(step_table(steps)),
        "models": _markdown(model_table(found.passes, found.steps)),
        "has_shipped_rows": bool(found.steps),
        "shipped_gpus": list(dict.fromkeys(one.gpu for one in found.steps)),
        "without_workload": [*map(printable, found.without_workload)],
        "backward": _markdown(backward_table(folder)),
        "slowdown": f"{slowdown[0]:.3f} (90 %: {slowdown[1][0]:.3f} to {slowdown[1][1]:.3f})" if slowdown else "",
        "checks": _markdown(checks_table(folder, [part for part in folder.files if part != "training"])),
        "training": "\n\n".join(
            filter(None, map(_markdown, (checks_table(folder, ["training"]), training_steps(folder))))
        ),
        "values": _markdown(values_table(found.values.values())),
        "groups": _markdown(group_table(found.kernels)),
        "links": _markdown(links_table(folder)),
        "num_cards": folder.num_cards,
        "notes": [
            printable(note if note.startswith(f"{part}: ") else f"{part}: {note}")
            for part, (_, whole) in folder.files.items()
            for note in whole.notes
            if not (found.kernels and IN_TABLE in note)
        ],
    }
    return templates.page("card.md", given).rstrip("\n") + "\n"


def index_line(folder: CardFolder) -> str:
    """Return the line of docs/README.md that names the page of a card."""
    about = "what one takes for kernels, steps and models, and how wrong the estimates were"
    return f"- [{folder.label}, measured](evidence/gpu-{folder.stem}.md): {about}."


def with_page(index: str, folder: CardFolder) -> str:
    """Return docs/README.md with the line of a card below those of other cards; "" where there is no place for it."""
    lines = [line for line in index.splitlines() if f"](evidence/gpu-{folder.stem}.md)" not in line]
    places = [number for number, line in enumerate(lines) if "](evidence/gpu" in line]
    if not places:
        return ""
    return "\n".join([*lines[: places[-1] + 1], index_line(folder), *lines[places[-1] + 1 :]]) + "\n"


def measured_cards(evidence: Path) -> dict[str, str]:
    """Return the pages of cards in docs/evidence, each with its card, by file name."""
    titles = {path.name: read_text(path).partition("\n")[0] for path in sorted(evidence.glob("gpu-*.md"))}
    return {name: title.removeprefix("# ").removesuffix(MEASURED) for name, title in titles.items()}


def cards_page(cards: Mapping[str, str]) -> str:
    """Return docs/evidence/gpu.md: which cards were measured, and what no test can show without one.

    Args:
        cards: as `measured_cards` returns them.
    """
    rows = [(f"`{part}`", about, FILLS.get(part, "the page of the card")) for part, about in PARTS.items()]
    given = {"cards": dict(sorted(cards.items())), "parts": Table(("part", "measures", "fills"), rows).markdown()}
    return templates.page("gpu.md", given).rstrip("\n") + "\n"


def headlines(found: CardResult) -> list[str]:
    """Return the headline numbers, a sentence or two each."""
    checks = [one for whole in found.folder.measurements for one in whole.checks]
    ratios = _step_ratios(found.folder)
    slowdown = found.fitted.slowdown
    judged = [row for row in slowest_sizes(found.kernels) if row.is_estimable and row.num_elements >= TARGET_FROM]
    largest = [row for row in largest_sizes(found.kernels) if row.is_estimable and row.num_elements >= TARGET_FROM]
    outside = [row for row in found.kernels if not row.is_inside]
    inside, num_estimates = coverage(found.kernels)
    given = {
        **_facts(found),
        "judged": judged,
        "fast": sum(row.ratio <= TARGET for row in judged),
        "fast_at_largest": sum(row.ratio <= TARGET for row in largest),
        "slowest": judged[0] if judged and judged[0].ratio > TARGET else None,
        "step_ratios": [f"{ratio:.2f}" for _, ratio in ratios],
        "step_sizes": [f"{size / 1e6:.3g} M" for size, _ in ratios],
        "slowdown": f"{slowdown[0]:.3f}" if slowdown else "",
        "num_estimates": num_estimates,
        "num_inside": inside,
        "outside": bool(outside),
        "num_above": sum(row.measured > row.predicted for row in outside),
        "num_below": sum(row.measured < row.predicted for row in outside),
        "num_checks": f"{count:,}" if (count := sum(one.count for one in checks)) else "",
        "num_passed": f"{sum(one.count for one in checks if one.passed):,}",
        "failed": [*map(printable, found.folder.failed_checks)],
    }
    text = templates.paragraphs("card_headlines.md", "headlines", given)
    return text.split("\n\n") if text else []


def _facts(found: CardResult) -> dict[str, object]:
    """Return what both page and headlines say."""
    copies, launch_s = found.fitted.copy_bytes_per_s, found.fitted.launch_s
    collectives = {str(one.labels["collective"]) for one in found.folder.series("interference", "interference")}
    return {
        "label": found.folder.label,
        "copies": f"{format_bytes(copies)}/s" if copies is not None else "",
        "launch": format_seconds(launch_s) if launch_s is not None else "",
        "target": TARGET,
        "target_from": numel_text(TARGET_FROM),
        "copies_only": collectives == {"copy"},
        "estimate": found.estimate.name,
        "estimate_is_of_card": found.estimate.is_of_card,
    }


def _by_reason(sentences: Sequence[str]) -> dict[str, list[str]]:
    """Return the kernels of sentences "kernel NAME: ..." by what is said of them."""
    found: dict[str, list[str]] = {}
    for sentence in sentences:
        kernel, _, reason = sentence.removeprefix("kernel ").partition(": ")
        found.setdefault(printable(reason), []).append(printable(kernel))
    return found


def _step_ratios(folder: CardFolder) -> list[tuple[int, float]]:
    """Return parameters, and BinSGDM's step over that of AdamW."""
    steps = {(one.optimizer, one.num_elements, one.num_tensors): one.step_s for one in optimizer_steps(folder)}
    return [
        (size, step_s / steps[DENSE, size, tensors])
        for (name, size, tensors), step_s in steps.items()
        if name == "binsgdm" and (DENSE, size, tensors) in steps
    ]


def _machine(folder: CardFolder) -> str:
    card = folder.about.card
    known = [f"compute capability {card.compute_capability}"] if card.compute_capability else []
    known += [f"{card.memory_bytes / 1e9:.0f} GB"] if card.memory_bytes else []
    return printable(f"{folder.num_cards} x {', '.join([card.name or 'CPU', *known])}")


def _picture(found: CardResult, name: str) -> str:
    return f"gpu_{found.folder.stem}_{name}.png"


def _csv_name(found: CardResult) -> str:
    return f"gpu-{found.folder.stem}-estimates.csv"


def _markdown(table: Table) -> str:
    """Return a table; "" of one without rows."""
    return table.markdown() if table.rows else ""


# ---- tables


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
