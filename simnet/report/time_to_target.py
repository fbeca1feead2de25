"""Times to a target as a page for a terminal, and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Literal

from simnet.analysis.time_to_target import AtBandwidth, TargetTime, TimesToTarget
from simnet.analysis.whatif import SLOW_KERNEL_FACTOR
from simnet.core import templates
from simnet.core.units import format_seconds
from simnet.engine import intervals
from simnet.report.rows import Field, Row, row_of
from simnet.report.table import Column, Page, Table
from simnet.report.text import count_text, gpus_text, hanging, nodes_text, notes_lines, printable, workload_title
from simnet.workload.training_step import num_elements

NEVER = "never"
UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
DAY_S, LONG_DAYS = 86_400.0, 2
Kernels = Literal["measure first", "estimated"]
MARKS: dict[Kernels, str] = {"measure first": "*", "estimated": "~"}
"""Behind titles in tables."""
KERNELS_TEXT: dict[Kernels | None, str] = {
    None: "",
    "estimated": " (kernels estimated)",
    "measure first": " (kernels: measure first)",
}
"""What the legend of a figure adds to a system, by what its kernels without a time rest on."""
NIC_BYTES = Field("nic_bytes_per_node_to_target", "B", float, "NIC bytes", of="sent_bytes")


def time_to_target_page(times: TimesToTarget) -> Page:
    """Return the table of all systems, the first one at each bandwidth, and the caveats."""
    systems = _systems(times)
    reasons: dict[str, list[str]] = {}
    for name, reason in times.left_out:
        reasons.setdefault(reason, []).append(name)
    return Page(
        [
            *_heading(times),
            "",
            Table.of(_columns(times), systems),
            *_prices(times, systems),
            "",
            *(line for there in times.bandwidths for line in hanging("", verdict(times, there))),
            "",
            *(line for caveat in _caveats(times) for line in hanging("", caveat)),
            *(
                line
                for reason, names in reasons.items()
                for line in hanging("not predicted: ", f"{', '.join(names)}: {reason}")
            ),
            *notes_lines([times.notes]),
        ]
    )


def time_to_target_line(times: TimesToTarget) -> str:
    """Return the first system at every bandwidth in one line."""
    firsts = [f"{there.bandwidth.text()}: {there.systems[0].title}" for there in times.bandwidths]
    return f"{printable(times.convergence.task)}, first at {times.target:g}: {', '.join(firsts)}"


def _heading(times: TimesToTarget) -> Iterator[str]:
    cluster, measured = times.scenario.cluster, times.convergence
    goal = "at most" if measured.is_lower_better else "at least"
    unit = f" {measured.unit}" if measured.unit else ""
    yield (
        f"{measured.task}: {measured.metric} of {goal} {times.target:g}{unit}, trained on "
        f"{count_text(times.ranks, 'rank')}; steps of {workload_title(times.scenario)} on "
        f"{nodes_text(cluster.num_nodes)} x {cluster.ranks_per_node} GPUs"
    )
    for there in times.bandwidths:
        both = there.references
        if both is not None:
            flat = "which does not fit" if both.flat_s is None else format_seconds(both.flat_s)
            yield (
                f"{there.bandwidth.text()}: a step takes {format_seconds(both.tuned_s)} with {both.tuned}; with "
                f"{both.flat}: {flat}"
            )


def _systems(times: TimesToTarget) -> list[TargetTime]:
    """Return the systems, each at the first bandwidth at which it could be predicted, the first to the target first."""
    systems: dict[str, TargetTime] = {}
    for there in times.bandwidths:
        for system in there.systems:
            systems.setdefault(system.name, system)
    return list(systems.values())


def _columns(times: TimesToTarget) -> list[Column]:
    return [
        Column("system", cell=lambda row: f"{row.title} {MARKS[kind]}" if (kind := kernels_of(row)) else row.title),
        Column("reached", cell=lambda row: f"{row.num_reached} of {row.num_seeds}"),
        Column("steps", cell=lambda row: NEVER if row.steps is None else f"{row.steps:,.0f}"),
        NIC_BYTES.column,
        Column("final", cell=lambda row: "diverged" if row.final is None else f"{row.final:.4g}"),
        *(
            _time_column(f"{there.bandwidth.text()} [{unit}]", there, unit_s)
            for there in times.bandwidths
            for unit_s, unit in [time_unit(times, there)]
        ),
    ]


def _time_column(title: str, there: AtBandwidth, unit: float) -> Column:
    """Return the column of the times at a bandwidth in a unit [s], with their intervals: "12.1 (11.8 to 13.0)"."""

    def cell(row: TargetTime) -> str:
        system = there.find(row.name)
        if system is None:
            return "-"
        if system.time_s is None or system.interval_s is None:
            return NEVER
        low, high = system.interval_s
        middle = _digits(system.time_s / unit)
        # One training without draws has no interval.
        if (low, high) == (system.time_s, system.time_s):
            return middle
        return f"{middle} ({_digits(low / unit)} to {NEVER if high is None else _digits(high / unit)})"

    return Column(title, cell=cell)


def time_unit(times: TimesToTarget, there: AtBandwidth) -> tuple[float, str]:
    """Return the unit of the times at a bandwidth: the one in which the baseline's training takes at least 2."""
    # In a larger unit most systems would take a fraction of 1.
    end_s = times.baseline_training_s(there)
    return next((unit for unit in UNITS if end_s >= 2 * unit[0]), UNITS[-1])


def kernels_of(system: TargetTime) -> Kernels | None:
    """Return what kernels without a time rest on; None if all are timed, or there are none."""
    return "measure first" if system.unmeasured else "estimated" if system.has_estimated_kernels else None


def _prices(times: TimesToTarget, systems: Sequence[TargetTime]) -> Iterator[str | Table]:
    """Yield a table of what the GPUs cost up to the target, if a price was given."""
    price_of_1_s = times.price_of(1.0)
    if price_of_1_s is None:
        return
    gpus = gpus_text(times.scenario.cluster.world_size)
    yield ""
    yield f"cost of {gpus} up to the target, at {times.price_per_gpu_hour:g} a GPU-hour:"
    yield ""
    # A price is a time in another unit: that in which one unit of money is spent.
    prices = (_time_column(there.bandwidth.text(), there, 1 / price_of_1_s) for there in times.bandwidths)
    yield Table.of([Column("system", cell=lambda row: row.title), *prices], systems)


def _digits(value: float, digits: int = 3) -> str:
    """Return a number with this many digits, or with all before the point if these are more: "0.71", "1,854"."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"


def verdict(times: TimesToTarget, there: AtBandwidth) -> str:
    """Return the first system to the target at a bandwidth, and whether it pays against the baseline."""
    baseline = times.baseline_at(there)
    # Of what is sooner, a system whose kernels nobody has timed has a lower bound only: it is no first.
    sooner = there.systems[: there.systems.index(baseline)]
    facts = {
        "rate": there.bandwidth.text(),
        "baseline": baseline,
        "first": next((system for system in sooner if not system.unmeasured), None),
        "unmeasured": [system.title for system in sooner if system.unmeasured],
        "slow_kernel_factor": SLOW_KERNEL_FACTOR,
        "workload": workload_title(times.scenario),
        "task": times.convergence.task,
        "is_same_task": times.is_same_task,
        "to_target": lambda system: _to_target(times, system),
    }
    return templates.paragraphs("time_to_target.txt", "verdict", facts)


def _to_target(times: TimesToTarget, system: TargetTime) -> str:
    """Return time and price of a system up to the target: "9.15 h for 1,464", "412 h (17.2 days)", a short one in s."""
    time_s = system.time_s
    assert time_s is not None
    unit_s, unit = next((known for known in UNITS if time_s >= known[0]), UNITS[-1])
    days = f" ({_digits(time_s / DAY_S)} days)" if time_s >= LONG_DAYS * DAY_S else ""
    price = times.price_of(time_s)
    return f"{_digits(time_s / unit_s)} {unit}{days}" + ("" if price is None else f" for {_digits(price, 4)}")


def _caveats(times: TimesToTarget) -> list[str]:
    """Return the limits of the conclusions, a sentence each."""
    baseline = times.convergence.systems[times.baseline].strategy
    facts = {
        "draws_possible": intervals.has_intervals(times.scenario),
        "draws": times.scenario.run.draws,
        "max_seeds": max(system.num_seeds for there in times.bandwidths for system in there.systems),
        "any_unmeasured": any(system.unmeasured for there in times.bandwidths for system in there.systems),
        "world_size": times.scenario.cluster.world_size,
        "ranks": times.ranks,
        "ranks_text": count_text(times.ranks, "rank"),
        "batch": times.convergence.batch,
        "scale": times.scale,
        "scale_text": _digits(times.scale, 4),
        "is_fp32_baseline": getattr(baseline, "wire_dtype", None) is None and times.scenario.workload.dtype == "fp32",
        "task": times.convergence.task,
        "is_same_task": times.is_same_task,
        "trained_parameters": times.convergence.num_parameters,
        "simulated_parameters": num_elements(times.scenario.workload),
        "any_estimated": any(
            kernels_of(system) == "estimated" for there in times.bandwidths for system in there.systems
        ),
        "workload": workload_title(times.scenario),
    }
    return templates.paragraphs("time_to_target.txt", "caveats", facts).split("\n\n")


def system_fields(times: TimesToTarget) -> tuple[Field, ...]:
    """Return the fields of each system at a bandwidth."""

    def prices(row: TargetTime) -> list[float | None] | None:
        return row.interval_s and [times.price_of(end_s) for end_s in row.interval_s]

    return (
        Field("name", "", str, "name in the file of trainings"),
        Field("title", "", str, "system"),
        Field("num_seeds", "", int, "trainings"),
        Field("num_reached", "", int, "trainings that reached the target"),
        Field("steps_to_target", "", float, "steps to the target", of="steps"),
        Field("time_to_target_s", "s", float, "time to the target", of="time_s"),
        Field("time_to_target_interval_s", "s", tuple, "its 90 % interval", of="interval_s"),
        Field("price_to_target", "money", float, "price of the GPUs", of=lambda row: times.price_of(row.time_s)),
        Field("price_to_target_interval", "money", list, "its 90 % interval", of=prices),
        Field("speedup_vs_baseline", "speedup", float, "speedup", of="speedup.value"),
        Field("speedup_interval", "speedup", tuple, "its 90 % interval", of="speedup.interval"),
        Field("pays", "", str, "verdict", of="speedup.verdict"),
        NIC_BYTES,
        Field("speedup_if_slow", "speedup", float, "speedup with slow kernels", of="speedup.if_kernels_slow"),
        Field("unmeasured_kernels", "", list, "kernels without a time or an estimate", of="unmeasured"),
        Field("kernels_without_time", "", str, "what kernels without a time rest on", of=kernels_of),
        Field("final", "", float, "last value of the metric"),
        Field("first_step_extra_s", "s", float, "what the first step takes more than another", of="cost.first_s"),
        Field("step_s", "s", float, "step", of="cost.step_s"),
        Field("dense_step_s", "s", float, "step of the dense stage", of=lambda row: row.cost.dense_s or None),
    )


def rows(times: TimesToTarget) -> Iterator[Row]:
    """Yield a row for each system at each bandwidth."""
    fields = system_fields(times)
    for there in times.bandwidths:
        for system in there.systems:
            yield {"bandwidth_bytes_per_s": there.bandwidth} | row_of(fields, system)


def _bandwidth_fields(times: TimesToTarget) -> tuple[Field, ...]:
    return (
        Field("bandwidth_bytes_per_s", "", float, "bandwidth of a NIC", of="bandwidth"),
        Field("flat_iteration_s", "s", float, "step of flat DDP", of="references.flat_s"),
        Field("tuned_iteration_s", "s", float, "step of tuned DDP", of="references.tuned_s"),
        Field("verdict", "", str, "the first to the target", of=lambda there: verdict(times, there)),
        Field("systems", "", list, "systems, the first to the target first", parts=system_fields(times)),
    )


FIELDS = (
    Field("task", "", str, "task", of="convergence.task"),
    Field("metric", "", str, "metric", of="convergence.metric"),
    Field("target", "", float, "target"),
    Field("ranks", "", int, "ranks that trained"),
    Field("scale", "", float, "steps that a measured step stands for"),
    Field("baseline", "", str, "baseline"),
    Field("same_task", "", bool, "whether the trained model is the simulated one", of="is_same_task"),
    Field("num_gpus", "", int, "GPUs", of="scenario.cluster.world_size"),
    Field("price_per_gpu_hour", "money", float, "price of a GPU hour"),
    Field(
        "bandwidths", "", list, "bandwidths",
        of=lambda times: [row_of(_bandwidth_fields(times), there) for there in times.bandwidths],
    ),
    Field("left_out", "", dict, "systems that are left out, and why", of=lambda times: dict(times.left_out)),
    Field("caveats", "", list, "limits of the conclusions", of=_caveats),
    Field("notes", "", list, "what to know to trust the numbers"),
)  # fmt: skip
"""Of the times to a target, SI units."""
