"""Tell who reaches a metric first: table, sentences and JSON of a race."""

from collections.abc import Iterator

from simnet import draws
from simnet.compare.advise.advice import PAYS, SLOW
from simnet.compare.racing.standings import Heat, Race, Runner
from simnet.show.notes import notes_lines
from simnet.show.text import aligned, count_text, hanging, nodes_text, printable
from simnet.strategies import AllReduce
from simnet.units import format_bytes, format_seconds

NEVER = "never"


def race_lines(race: Race) -> Iterator[str]:
    """Yield the lines of a report for people."""
    lines = [
        *_head(race),
        "",
        *aligned([_header(race), *(_cells(race, name) for name in _order(race))]),
        "",
        *(line for heat in race.heats for line in hanging("", verdict(race, heat))),
        "",
        *(line for text in _reservations(race) for line in hanging("", text)),
        *(line for name, reason in race.left_out for line in hanging("", f"left out: {name}: {reason}")),
        *notes_lines([race.notes]),
    ]
    yield from (printable(line).rstrip() for line in lines)


def _head(race: Race) -> Iterator[str]:
    cluster, found = race.scenario.cluster, race.convergence
    goal = "at most" if found.is_lower_better else "at least"
    unit = f" {found.unit}" if found.unit else ""
    yield (
        f"{found.task}: {found.metric} of {goal} {race.target:g}{unit}, trained on {count_text(race.ranks, 'rank')}; "
        f"steps of {race.scenario.workload.name} on {nodes_text(cluster.num_nodes)} x {cluster.ranks_per_node} GPUs"
    )


def _order(race: Race) -> list[str]:
    """Return the systems, the first to the target at the first bandwidth first."""
    names = [runner.name for runner in race.heats[0].runners]
    return names + [name for heat in race.heats for name in (one.name for one in heat.runners) if name not in names]


def _header(race: Race) -> tuple[str, ...]:
    rates = [f"{heat.bandwidth.text()} [{time_unit(race, heat)[1]}]" for heat in race.heats]
    return ("system", "reached", "steps", "out of a node", "final", *rates)


def time_unit(race: Race, heat: Heat) -> tuple[float, str]:
    """Return the unit in which the times of a heat are told: that of the baseline's whole training."""
    end_s = race.base_end_s(heat)
    units = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
    return next((unit for unit in units if end_s >= 2 * unit[0]), units[-1])


def _cells(race: Race, name: str) -> tuple[str, ...]:
    found = [heat.find(name) for heat in race.heats]
    one = next(runner for runner in found if runner is not None)
    units = [time_unit(race, heat)[0] for heat in race.heats]
    return (
        f"{one.title} *" if one.unmeasured else one.title,
        f"{one.num_reached} of {one.num_seeds}",
        NEVER if one.steps is None else f"{one.steps:,.0f}",
        "-" if one.sent_bytes is None else format_bytes(one.sent_bytes),
        "no number" if one.final is None else f"{one.final:.4g}",
        *("-" if runner is None else _time_text(runner, unit_s) for runner, unit_s in zip(found, units, strict=True)),
    )


def _time_text(runner: Runner, unit_s: float) -> str:
    """Return the time to the target with its interval: "12.1 (11.8 to 13.0)"."""
    if runner.time_s is None or runner.interval_s is None:
        return NEVER
    low, high = runner.interval_s
    middle = _digits(runner.time_s / unit_s)
    if (low, high) == (runner.time_s, runner.time_s):
        return middle
    return f"{middle} ({_digits(low / unit_s)} to {NEVER if high is None else _digits(high / unit_s)})"


def _digits(value: float, digits: int = 3) -> str:
    """Return so many digits of a number, or those before the point if they are more: "0.71", "1,854"."""
    return f"{value:.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"


def verdict(race: Race, heat: Heat) -> str:
    """Return who is first at a bandwidth, and whether that is worth it against the baseline."""
    at = f"{heat.bandwidth.text()} a NIC: "
    base = race.base(heat)
    if base.time_s is None:
        return f"{at}the baseline {base.title} misses the target in half or more of its trainings; choose a nearer one."
    ahead = heat.runners[: heat.runners.index(base)]
    known = [runner for runner in ahead if not runner.unmeasured]
    unknown = [runner.title for runner in ahead if runner.unmeasured]
    before = f" Before it may be, if their kernels are fast: {', '.join(unknown)}." if unknown else ""
    if not known:
        none = "none that can be estimated" if unknown else "none"
        return f"{at}{none} is sooner there than {base.title}, {format_seconds(base.time_s)}.{before}"
    return f"{at}{_won(known[0], base)}.{before}"


def _won(first: Runner, base: Runner) -> str:
    low, high = first.speedup_interval or (0.0, 0.0)
    known = [f"{low:.2f} to {high:.2f}"]
    if first.speedup_if_slow is not None:
        known.append(f"{first.speedup_if_slow:.2f} with kernels {SLOW:.1f} times as slow")
    text = f"{first.title} is first, {first.speedup or 0.0:.2f} times ({'; '.join(known)}) as fast as {base.title}"
    return text if (first.least_speedup or 0.0) >= PAYS else f"none surely pays: {text}"


def _reservations(race: Race) -> Iterator[str]:
    """Yield what the reader must know to weigh the result."""
    found, cluster = race.convergence, race.scenario.cluster
    world_size = cluster.num_nodes * cluster.ranks_per_node
    yield f"intervals: the middle 90 % over {_sources(race)}"
    yield "speedups are medians over trainings with the same seed, and need not be the quotients of the times above"
    if any(runner.unmeasured for heat in race.heats for runner in heat.runners):
        yield "* kernels of it have no time here and no estimate worth the name: times are bounds from below"
    if world_size != race.ranks:
        yield (
            f"convergence was measured on {count_text(race.ranks, 'rank')} at a batch of {found.batch} in all, the "
            f"cluster has {world_size}: how systems compare may change with the ranks"
        )
    if race.scale != 1:
        yield f"one measured step stands for {_digits(race.scale, 4)} steps of the training (curves stretched)"
    baseline = found.systems[race.baseline].strategy
    if isinstance(baseline, AllReduce) and baseline.payload is None and race.scenario.workload.dtype == "fp32":
        yield "the baseline sends fp32; what bf16 would gain without compression is told by simnet advise"
    yield f"convergence is that of {found.task}, steps are those of {race.scenario.workload.name}: are they one task?"


def _sources(race: Race) -> str:
    seeds = "trainings with different seeds"
    if not draws.are_possible(race.scenario):
        return f"{seeds}; the calibration is taken as exact, having no intervals"
    if not race.scenario.run.draws:
        return f"{seeds}; the calibration is taken as exact: --draws 100 draws from its intervals"
    return f"{seeds} and {race.scenario.run.draws} drawn calibrations"


def race_object(race: Race) -> dict[str, object]:
    """Return the race as a JSON object, SI units."""
    return {
        "task": race.convergence.task,
        "metric": race.convergence.metric,
        "target": race.target,
        "ranks": race.ranks,
        "scale": race.scale,
        "baseline": race.baseline,
        "heats": [_heat_object(race, heat) for heat in race.heats],
        "left_out": dict(race.left_out),
        "reservations": list(_reservations(race)),
        "notes": list(race.notes),
    }


def _heat_object(race: Race, heat: Heat) -> dict[str, object]:
    return {
        "bandwidth_bytes_per_s": heat.bandwidth,
        "verdict": verdict(race, heat),
        "systems": [_runner_object(runner) for runner in heat.runners],
    }


def _runner_object(runner: Runner) -> dict[str, object]:
    return {
        "name": runner.name,
        "title": runner.title,
        "num_seeds": runner.num_seeds,
        "num_reached": runner.num_reached,
        "steps_to_target": runner.steps,
        "time_to_target_s": runner.time_s,
        "time_to_target_interval_s": runner.interval_s,
        "speedup_vs_baseline": runner.speedup,
        "speedup_interval": runner.speedup_interval,
        "nic_bytes_per_node_to_target": runner.sent_bytes,
        "speedup_if_slow": runner.speedup_if_slow,
        "unmeasured_kernels": list(runner.unmeasured),
        "final": runner.final,
        "first_step_extra_s": runner.pace.first_s,
        "step_s": runner.pace.step_s,
        "dense_step_s": runner.pace.dense_s or None,
    }
