"""Times to a target as a page for a terminal, and as JSON."""

from collections.abc import Iterator
from typing import Literal

from simnet.analysis.time_to_target import AtBandwidth, TargetTime, TimesToTarget
from simnet.analysis.whatif import SLOW_KERNEL_FACTOR
from simnet.core import templates
from simnet.core.units import format_bytes, format_seconds
from simnet.engine import intervals
from simnet.report.page import Page
from simnet.report.table import Table
from simnet.report.text import count_text, gpus_text, hanging, nodes_text, notes_lines, workload_title
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


def time_to_target_page(found: TimesToTarget) -> Page:
    """Return the table of all systems, the first one at each bandwidth, and the caveats."""
    return Page(
        [
            *_heading(found),
            "",
            Table(_heads(found), (_cells(found, name) for name in _order(found))),
            *_prices(found),
            "",
            *(line for there in found.bandwidths for line in hanging("", verdict(found, there))),
            "",
            *(line for caveat in _caveats(found) for line in hanging("", caveat)),
            *(line for names, reason in _left_out(found) for line in hanging("not predicted: ", f"{names}: {reason}")),
            *notes_lines([found.notes]),
        ]
    )


def _left_out(found: TimesToTarget) -> Iterator[tuple[str, str]]:
    """Yield the systems that are left out for one reason, and the reason."""
    for reason in dict.fromkeys(reason for _, reason in found.left_out):
        yield ", ".join(name for name, other in found.left_out if other == reason), reason


def _heading(found: TimesToTarget) -> Iterator[str]:
    cluster, measured = found.scenario.cluster, found.convergence
    goal = "at most" if measured.is_lower_better else "at least"
    unit = f" {measured.unit}" if measured.unit else ""
    yield (
        f"{measured.task}: {measured.metric} of {goal} {found.target:g}{unit}, trained on "
        f"{count_text(found.ranks, 'rank')}; steps of {workload_title(found.scenario)} on "
        f"{nodes_text(cluster.num_nodes)} x {cluster.ranks_per_node} GPUs"
    )
    for there in found.bandwidths:
        both = there.references
        if both is not None:
            flat = "which does not fit" if both.flat_s is None else format_seconds(both.flat_s)
            yield (
                f"{there.bandwidth.text()}: a step takes {format_seconds(both.tuned_s)} with {both.tuned}; with "
                f"{both.flat}: {flat}"
            )


def _order(found: TimesToTarget) -> list[str]:
    """Return the systems, the first to the target at the first bandwidth first."""
    names = [system.name for system in found.bandwidths[0].systems]
    return names + [
        name for there in found.bandwidths for name in (one.name for one in there.systems) if name not in names
    ]


def _heads(found: TimesToTarget) -> tuple[str, ...]:
    rates = [f"{there.bandwidth.text()} [{time_unit(found, there)[1]}]" for there in found.bandwidths]
    return ("system", "reached", "steps", "NIC bytes", "final", *rates)


def time_unit(found: TimesToTarget, there: AtBandwidth) -> tuple[float, str]:
    """Return the unit of the times at a bandwidth: the one in which the baseline's training takes at least 2."""
    end_s = found.baseline_training_s(there)
    return next((unit for unit in UNITS if end_s >= 2 * unit[0]), UNITS[-1])


def _cells(found: TimesToTarget, name: str) -> tuple[str, ...]:
    systems = [there.find(name) for there in found.bandwidths]
    one = next(system for system in systems if system is not None)
    units = [time_unit(found, there)[0] for there in found.bandwidths]
    return (
        f"{one.title} {MARKS[kernels]}" if (kernels := kernels_of(one)) else one.title,
        f"{one.num_reached} of {one.num_seeds}",
        NEVER if one.steps is None else f"{one.steps:,.0f}",
        "-" if one.sent_bytes is None else format_bytes(one.sent_bytes),
        "diverged" if one.final is None else f"{one.final:.4g}",
        *("-" if system is None else _time_text(system, unit_s) for system, unit_s in zip(systems, units, strict=True)),
    )


def kernels_of(system: TargetTime) -> Kernels | None:
    """Return what kernels without a time rest on; None if all are timed, or there are none."""
    return "measure first" if system.unmeasured else "estimated" if system.has_estimated_kernels else None


def _prices(found: TimesToTarget) -> Iterator[str | Table]:
    """Yield a table of what the GPUs cost up to the target, if a price was given."""
    price_of_1_s = found.price_of(1.0)
    if price_of_1_s is None:
        return
    gpus = gpus_text(found.scenario.cluster.world_size)
    heads = ("system", *(there.bandwidth.text() for there in found.bandwidths))
    yield ""
    yield f"cost of {gpus} up to the target, at {found.price_per_gpu_hour:g} a GPU-hour:"
    yield ""
    yield Table(heads, (_price_cells(found, name, price_of_1_s) for name in _order(found)))


def _price_cells(found: TimesToTarget, name: str, price_of_1_s: float) -> tuple[str, ...]:
    systems = [there.find(name) for there in found.bandwidths]
    title = next(system.title for system in systems if system is not None)
    return (title, *("-" if system is None else _time_text(system, 1 / price_of_1_s) for system in systems))


def _time_text(system: TargetTime, unit: float) -> str:
    """Return the time to the target in a unit [s], with its interval: "12.1 (11.8 to 13.0)"."""
    if system.time_s is None or system.interval_s is None:
        return NEVER
    low, high = system.interval_s
    middle = _digits(system.time_s / unit)
    if (low, high) == (system.time_s, system.time_s):
        return middle
    return f"{middle} ({_digits(low / unit)} to {NEVER if high is None else _digits(high / unit)})"


def _hours_text(time_s: float) -> str:
    """Return a time in hours, with the days of a long one: "9.15 h", "412 h (17.2 days)"; a short one in its unit."""
    unit_s, unit = next((one for one in UNITS if time_s >= one[0]), UNITS[-1])
    days = f" ({_digits(time_s / DAY_S)} days)" if time_s >= LONG_DAYS * DAY_S else ""
    return f"{_digits(time_s / unit_s)} {unit}{days}"


def _digits(value: float, digits: int = 3) -> str:
    """Return a number with this many digits, or with all before the point if these are more: "0.71", "1,854"."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"


def verdict(found: TimesToTarget, there: AtBandwidth) -> str:
    """Return the first system to the target at a bandwidth, and whether it pays against the baseline."""
    baseline = found.baseline_at(there)
    sooner = there.systems[: there.systems.index(baseline)]
    given = {
        "rate": there.bandwidth.text(),
        "baseline": baseline,
        "first": next((system for system in sooner if not system.unmeasured), None),
        "unmeasured": [system.title for system in sooner if system.unmeasured],
        "slow_kernel_factor": SLOW_KERNEL_FACTOR,
        "assumption": _assumption(found),
        "to_target": lambda system: _to_target(found, system),
    }
    return templates.paragraphs("time_to_target.txt", "verdict", given)


def _assumption(found: TimesToTarget) -> str:
    """Return what a conclusion holds under, if curves and steps are of two models."""
    return (
        "" if found.is_same_task else f", if {workload_title(found.scenario)} trained as {found.convergence.task} does"
    )


def _to_target(found: TimesToTarget, system: TargetTime) -> str:
    """Return time and price of a system up to the target: "9.15 h for 1,464"."""
    assert system.time_s is not None
    price = found.price_of(system.time_s)
    return _hours_text(system.time_s) + ("" if price is None else f" for {_digits(price, 4)}")


def _caveats(found: TimesToTarget) -> list[str]:
    """Return the limits of the conclusions, a sentence each."""
    baseline = found.convergence.systems[found.baseline].strategy
    given = {
        "draws_possible": intervals.has_intervals(found.scenario),
        "draws": found.scenario.run.draws,
        "max_seeds": max(system.num_seeds for there in found.bandwidths for system in there.systems),
        "any_unmeasured": any(system.unmeasured for there in found.bandwidths for system in there.systems),
        "world_size": found.scenario.cluster.world_size,
        "ranks": found.ranks,
        "ranks_text": count_text(found.ranks, "rank"),
        "batch": found.convergence.batch,
        "scale": found.scale,
        "scale_text": _digits(found.scale, 4),
        "is_fp32_baseline": getattr(baseline, "wire_dtype", None) is None and found.scenario.workload.dtype == "fp32",
        "task": found.convergence.task,
        "is_same_task": found.is_same_task,
        "trained_parameters": found.convergence.num_parameters,
        "simulated_parameters": num_elements(found.scenario.workload),
        "any_estimated": any(kernels_of(one) == "estimated" for there in found.bandwidths for one in there.systems),
        "workload": workload_title(found.scenario),
    }
    return templates.paragraphs("time_to_target.txt", "caveats", given).split("\n\n")


def time_to_target_object(found: TimesToTarget) -> dict[str, object]:
    """Return the times as a JSON object, SI units."""
    return {
        "task": found.convergence.task,
        "metric": found.convergence.metric,
        "target": found.target,
        "ranks": found.ranks,
        "scale": found.scale,
        "baseline": found.baseline,
        "same_task": found.is_same_task,
        "num_gpus": found.scenario.cluster.world_size,
        "price_per_gpu_hour": found.price_per_gpu_hour,
        "bandwidths": [_at_object(found, there) for there in found.bandwidths],
        "left_out": dict(found.left_out),
        "caveats": _caveats(found),
        "notes": list(found.notes),
    }


def rows(found: TimesToTarget) -> Iterator[dict[str, object]]:
    """Yield a row for each system at each bandwidth."""
    for there in found.bandwidths:
        for system in there.systems:
            yield {"bandwidth_bytes_per_s": there.bandwidth} | _system_object(found, system)


def _at_object(found: TimesToTarget, there: AtBandwidth) -> dict[str, object]:
    return {
        "bandwidth_bytes_per_s": there.bandwidth,
        "flat_iteration_s": there.references and there.references.flat_s,
        "tuned_iteration_s": there.references and there.references.tuned_s,
        "verdict": verdict(found, there),
        "systems": [_system_object(found, system) for system in there.systems],
    }


def _system_object(found: TimesToTarget, system: TargetTime) -> dict[str, object]:
    speedup = system.speedup
    ends_s = system.interval_s or (None, None)
    return {
        "name": system.name,
        "title": system.title,
        "num_seeds": system.num_seeds,
        "num_reached": system.num_reached,
        "steps_to_target": system.steps,
        "time_to_target_s": system.time_s,
        "time_to_target_interval_s": system.interval_s,
        "price_to_target": _price_of(found, system.time_s),
        "price_to_target_interval": [_price_of(found, end_s) for end_s in ends_s] if system.interval_s else None,
        "speedup_vs_baseline": speedup.value if speedup else None,
        "speedup_interval": speedup.interval if speedup else None,
        "pays": speedup.verdict if speedup else None,
        "nic_bytes_per_node_to_target": system.sent_bytes,
        "speedup_if_slow": speedup.if_kernels_slow if speedup else None,
        "unmeasured_kernels": list(system.unmeasured),
        "kernels_without_time": kernels_of(system),
        "final": system.final,
        "first_step_extra_s": system.cost.first_s,
        "step_s": system.cost.step_s,
        "dense_step_s": system.cost.dense_s or None,
    }


def _price_of(found: TimesToTarget, time_s: float | None) -> float | None:
    return None if time_s is None else found.price_of(time_s)
