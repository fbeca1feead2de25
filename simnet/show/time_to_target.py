"""Times to a target as a page for a terminal, and as JSON."""

from collections.abc import Iterator

from simnet import calibration_draws, templates
from simnet.compare.time_to_target import AtBandwidth, TargetTime, TimesToTarget
from simnet.compare.whatif import SLOW_KERNEL_FACTOR
from simnet.show.notes import notes_lines
from simnet.show.page import Page
from simnet.show.table import Table
from simnet.show.text import count_text, hanging, nodes_text, workload_title
from simnet.units import format_bytes

NEVER = "never"
UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


def time_to_target_page(found: TimesToTarget) -> Page:
    """Return the table of all systems, the first one at each bandwidth, and the caveats."""
    return Page(
        [
            *_heading(found),
            "",
            Table(_heads(found), (_cells(found, name) for name in _order(found))),
            "",
            *(line for there in found.bandwidths for line in hanging("", verdict(found, there))),
            "",
            *(line for caveat in _caveats(found) for line in hanging("", caveat)),
            *(line for name, reason in found.left_out for line in hanging("", f"not predicted: {name}: {reason}")),
            *notes_lines([found.notes]),
        ]
    )


def _heading(found: TimesToTarget) -> Iterator[str]:
    cluster, measured = found.scenario.cluster, found.convergence
    goal = "at most" if measured.is_lower_better else "at least"
    unit = f" {measured.unit}" if measured.unit else ""
    yield (
        f"{measured.task}: {measured.metric} of {goal} {found.target:g}{unit}, trained on "
        f"{count_text(found.ranks, 'rank')}; steps of {workload_title(found.scenario)} on "
        f"{nodes_text(cluster.num_nodes)} x {cluster.ranks_per_node} GPUs"
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
        f"{one.title} *" if one.unmeasured else one.title,
        f"{one.num_reached} of {one.num_seeds}",
        NEVER if one.steps is None else f"{one.steps:,.0f}",
        "-" if one.sent_bytes is None else format_bytes(one.sent_bytes),
        "diverged" if one.final is None else f"{one.final:.4g}",
        *("-" if system is None else _time_text(system, unit_s) for system, unit_s in zip(systems, units, strict=True)),
    )


def _time_text(system: TargetTime, unit_s: float) -> str:
    """Return the time to the target with its interval: "12.1 (11.8 to 13.0)"."""
    if system.time_s is None or system.interval_s is None:
        return NEVER
    low, high = system.interval_s
    middle = _digits(system.time_s / unit_s)
    if (low, high) == (system.time_s, system.time_s):
        return middle
    return f"{middle} ({_digits(low / unit_s)} to {NEVER if high is None else _digits(high / unit_s)})"


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
    }
    return templates.paragraphs("time_to_target.txt", "verdict", given)


def _caveats(found: TimesToTarget) -> list[str]:
    """Return the limits of the conclusions, a sentence each."""
    baseline = found.convergence.systems[found.baseline].strategy
    given = {
        "draws_possible": calibration_draws.has_intervals(found.scenario),
        "draws": found.scenario.run.draws,
        "any_unmeasured": any(system.unmeasured for there in found.bandwidths for system in there.systems),
        "world_size": found.scenario.cluster.world_size,
        "ranks": found.ranks,
        "ranks_text": count_text(found.ranks, "rank"),
        "batch": found.convergence.batch,
        "scale": found.scale,
        "scale_text": _digits(found.scale, 4),
        "is_fp32_baseline": getattr(baseline, "wire_dtype", None) is None and found.scenario.workload.dtype == "fp32",
        "task": found.convergence.task,
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
        "bandwidths": [_at_object(found, there) for there in found.bandwidths],
        "left_out": dict(found.left_out),
        "caveats": _caveats(found),
        "notes": list(found.notes),
    }


def _at_object(found: TimesToTarget, there: AtBandwidth) -> dict[str, object]:
    return {
        "bandwidth_bytes_per_s": there.bandwidth,
        "verdict": verdict(found, there),
        "systems": [_system_object(system) for system in there.systems],
    }


def _system_object(system: TargetTime) -> dict[str, object]:
    speedup = system.speedup
    return {
        "name": system.name,
        "title": system.title,
        "num_seeds": system.num_seeds,
        "num_reached": system.num_reached,
        "steps_to_target": system.steps,
        "time_to_target_s": system.time_s,
        "time_to_target_interval_s": system.interval_s,
        "speedup_vs_baseline": speedup.value if speedup else None,
        "speedup_interval": speedup.interval if speedup else None,
        "pays": speedup.verdict if speedup else None,
        "nic_bytes_per_node_to_target": system.sent_bytes,
        "speedup_if_slow": speedup.if_kernels_slow if speedup else None,
        "unmeasured_kernels": list(system.unmeasured),
        "final": system.final,
        "first_step_extra_s": system.cost.first_s,
        "step_s": system.cost.step_s,
        "dense_step_s": system.cost.dense_s or None,
    }
