"""Tell who reaches a metric first: table, sentences and JSON."""

from collections.abc import Iterator

from simnet import draws
from simnet.compare.time_to_target import AtBandwidth, TargetTime, TimesToTarget
from simnet.compare.verdict import UNCERTAIN
from simnet.compare.whatif import SLOW_KERNEL_FACTOR
from simnet.show.notes import notes_lines
from simnet.show.page import Page
from simnet.show.table import Table
from simnet.show.text import count_text, hanging, nodes_text, workload_title
from simnet.units import format_bytes, format_seconds

NEVER = "never"


def race_page(race: TimesToTarget) -> Page:
    """Return a report for people."""
    return Page(
        [
            *_head(race),
            "",
            Table(_header(race), (_cells(race, name) for name in _order(race))),
            "",
            *(line for there in race.bandwidths for line in hanging("", verdict(race, there))),
            "",
            *(line for text in _reservations(race) for line in hanging("", text)),
            *(line for name, reason in race.left_out for line in hanging("", f"left out: {name}: {reason}")),
            *notes_lines([race.notes]),
        ]
    )


def _head(race: TimesToTarget) -> Iterator[str]:
    cluster, found = race.scenario.cluster, race.convergence
    goal = "at most" if found.is_lower_better else "at least"
    unit = f" {found.unit}" if found.unit else ""
    yield (
        f"{found.task}: {found.metric} of {goal} {race.target:g}{unit}, trained on {count_text(race.ranks, 'rank')}; "
        f"steps of {workload_title(race.scenario)} on {nodes_text(cluster.num_nodes)} x {cluster.ranks_per_node} GPUs"
    )


def _order(race: TimesToTarget) -> list[str]:
    """Return the systems, the first to the target at the first bandwidth first."""
    names = [system.name for system in race.bandwidths[0].systems]
    return names + [
        name for there in race.bandwidths for name in (one.name for one in there.systems) if name not in names
    ]


def _header(race: TimesToTarget) -> tuple[str, ...]:
    rates = [f"{there.bandwidth.text()} [{time_unit(race, there)[1]}]" for there in race.bandwidths]
    return ("system", "reached", "steps", "out of a node", "final", *rates)


def time_unit(race: TimesToTarget, there: AtBandwidth) -> tuple[float, str]:
    """Return the unit in which the times at a bandwidth are told: that of the baseline's whole training."""
    end_s = race.base_end_s(there)
    units = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
    return next((unit for unit in units if end_s >= 2 * unit[0]), units[-1])


def _cells(race: TimesToTarget, name: str) -> tuple[str, ...]:
    found = [there.find(name) for there in race.bandwidths]
    one = next(system for system in found if system is not None)
    units = [time_unit(race, there)[0] for there in race.bandwidths]
    return (
        f"{one.title} *" if one.unmeasured else one.title,
        f"{one.num_reached} of {one.num_seeds}",
        NEVER if one.steps is None else f"{one.steps:,.0f}",
        "-" if one.sent_bytes is None else format_bytes(one.sent_bytes),
        "no number" if one.final is None else f"{one.final:.4g}",
        *("-" if system is None else _time_text(system, unit_s) for system, unit_s in zip(found, units, strict=True)),
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
    """Return so many digits of a number, or those before the point if they are more: "0.71", "1,854"."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"


def verdict(race: TimesToTarget, there: AtBandwidth) -> str:
    """Return who is first at a bandwidth, and whether that is worth it against the baseline."""
    at = f"{there.bandwidth.text()} a NIC: "
    base = race.base(there)
    if base.time_s is None:
        return f"{at}the baseline {base.title} misses the target in half or more of its trainings; choose a nearer one."
    ahead = there.systems[: there.systems.index(base)]
    known = [system for system in ahead if not system.unmeasured]
    unknown = [system.title for system in ahead if system.unmeasured]
    before = f" Before it may be, if their kernels are fast: {', '.join(unknown)}." if unknown else ""
    if not known:
        none = "none that can be estimated" if unknown else "none"
        return f"{at}{none} is sooner there than {base.title}, {format_seconds(base.time_s)}.{before}"
    return f"{at}{_won(known[0], base)}.{before}"


def _won(first: TargetTime, base: TargetTime) -> str:
    speedup = first.speedup
    assert speedup is not None  # both reach the target
    low, high = speedup.interval or (speedup.value, speedup.value)
    known = [f"{low:.2f} to {high:.2f}"]
    if speedup.if_kernels_slow is not None:
        known.append(f"{speedup.if_kernels_slow:.2f} with kernels {SLOW_KERNEL_FACTOR:.1f} times as slow")
    if speedup.verdict == UNCERTAIN and speedup.model_error > 1:
        off = f"{100 * (speedup.model_error - 1):.0f} % off, as published speedups were on average"
        known.append(f"{speedup.value / speedup.model_error:.2f} if predicted {off}")
    judged, _, limit = speedup.verdict.partition(": ")
    judged += f" ({limit})" if limit else ""
    return (
        f"{first.title} is first and {judged}: {speedup.value:.2f} times ({'; '.join(known)}) as fast as {base.title}"
    )


def _reservations(race: TimesToTarget) -> Iterator[str]:
    """Yield what the reader must know to weigh the result."""
    found, cluster = race.convergence, race.scenario.cluster
    world_size = cluster.num_nodes * cluster.ranks_per_node
    yield f"intervals: the middle 90 % over {_sources(race)}"
    yield "speedups are medians over trainings with the same seed, and need not be the quotients of the times above"
    if any(system.unmeasured for there in race.bandwidths for system in there.systems):
        yield "* kernels of it have no time here and no estimate worth the name: times are bounds from below"
    if world_size != race.ranks:
        yield (
            f"convergence was measured on {count_text(race.ranks, 'rank')} at a batch of {found.batch} in all, the "
            f"cluster has {world_size}: how systems compare may change with the ranks"
        )
    if race.scale != 1:
        yield f"one measured step stands for {_digits(race.scale, 4)} steps of the training (curves stretched)"
    baseline = found.systems[race.baseline].strategy
    if getattr(baseline, "wire_dtype", None) is None and race.scenario.workload.dtype == "fp32":
        yield "the baseline sends fp32; what bf16 would gain without compression is told by simnet advise"
    yield f"convergence is that of {found.task}, steps are those of {workload_title(race.scenario)}: are they one task?"


def _sources(race: TimesToTarget) -> str:
    seeds = "trainings with different seeds"
    if not draws.are_possible(race.scenario):
        return f"{seeds}; the calibration is taken as exact, having no intervals"
    if not race.scenario.run.draws:
        return f"{seeds}; the calibration is taken as exact: --draws 100 draws from its intervals"
    return f"{seeds} and {race.scenario.run.draws} drawn calibrations"


def race_object(race: TimesToTarget) -> dict[str, object]:
    """Return the race as a JSON object, SI units."""
    return {
        "task": race.convergence.task,
        "metric": race.convergence.metric,
        "target": race.target,
        "ranks": race.ranks,
        "scale": race.scale,
        "baseline": race.baseline,
        "heats": [_at_object(race, there) for there in race.bandwidths],
        "left_out": dict(race.left_out),
        "reservations": list(_reservations(race)),
        "notes": list(race.notes),
    }


def _at_object(race: TimesToTarget, there: AtBandwidth) -> dict[str, object]:
    return {
        "bandwidth_bytes_per_s": there.bandwidth,
        "verdict": verdict(race, there),
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
