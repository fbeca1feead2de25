"""Where a strategy is as fast as tuned DDP along one key: a bisection in which each evaluation is a simulation."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.analysis.crossing import Number, bisect_by_guesses, midpoint, transitions
from simnet.analysis.verdict import PAYS, Speedup
from simnet.core.errors import SimnetError
from simnet.core.units import Quantity
from simnet.engine.axes import Override
from simnet.engine.intervals import with_default_draws
from simnet.engine.result import References, RunResult
from simnet.engine.scenario import Experiment, Scenario

MIN_TOLERANCE, MAX_TOLERANCE = 1e-9, 0.5
# Values tried first, about evenly spaced on a logarithmic scale: two crossings within one gap go unnoticed.
PROBES = 9
NOTHING_TO_COMPARE = (
    "{}: nothing to compare with: tuned DDP is not known, as on the exact executor or where nothing fits the GPU; name "
    "a baseline, such as --set baseline=all_reduce"
)
NUM_STEPS = PROBES + 1
"""How many steps of its progress a search tells of: its probes, and all that narrows the crossings down."""


class Trial(Struct, frozen=True, kw_only=True):
    """The steps of a strategy and of what it is compared with at one value of the key.

    Attributes:
        text: the value as a user writes it.
        references: what it is compared with; None where that is the baseline of the scenario.
    """

    value: Number
    text: str
    iteration_s: float
    baseline_iteration_s: float
    speedup: Speedup
    references: References | None = None
    notes: tuple[str, ...] = ()

    @property
    def ahead_s(self) -> float:
        """By how much the strategy is faster than the baseline in an iteration [s]; below 0 where it is slower."""
        return self.baseline_iteration_s - self.iteration_s

    @property
    def is_faster(self) -> bool:
        """Tell whether the strategy is faster than the baseline."""
        return self.ahead_s > 0


class Crossing(Struct, frozen=True, kw_only=True):
    """Two values between which the faster side changes: neighbouring integers, or as near as the tolerance."""

    low: Trial
    high: Trial

    @property
    def relative_width(self) -> float:
        """Distance of the two values, relative to the higher one."""
        return 1 - self.low.value / self.high.value


class Crossover(Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        baseline: what the strategy is compared with: "tuned DDP", or the kind of the scenario's baseline.
        trials: the evenly spaced first ones, in ascending order.
        crossings: where the faster side changes.
        question: what the experiment asks.
        pays_in: between which values the strategy pays; None for an end beyond the values searched.
    """

    key: str
    strategy: str
    baseline: str
    trials: tuple[Trial, ...]
    crossings: tuple[Crossing, ...]
    pays_in: tuple[tuple[Number | None, Number | None], ...] = ()
    question: str = ""


def search(  # noqa: PLR0913 - the arguments of one command
    experiment: Experiment,
    *,
    key: str,
    start: object,
    end: object,
    tolerance: float = 1e-4,
    simulate: Callable[[Scenario], RunResult],
    progress: Callable[[int], object] = lambda _: None,
) -> Crossover:
    """Find the values of a key at which the faster of a strategy and what it is compared with changes.

    That is tuned DDP, tuned anew at each value, as `references` knows it; else the baseline that the scenario names.

    Args:
        experiment: what is asked about.
        key: dotted key of a number or a quantity.
        start: value at one end, as in a scenario file.
        end: value at the other end.
        tolerance: greatest relative distance of the two values around a crossing; integers are found exactly.
        simulate: what compares a scenario, such as `references.compared`.
        progress: called with the number of further steps done, of `NUM_STEPS`.

    Raises:
        SimnetError: a wrong tolerance, nothing to compare with, a key that is not a number or has no effect, or two
            equal ends.
    """
    if not MIN_TOLERANCE <= tolerance <= MAX_TOLERANCE:
        raise SimnetError(f"--tolerance: {tolerance!r}: must be from {MIN_TOLERANCE:g} to {MAX_TOLERANCE:g}")

    def at(value: object, origin: str = "--break-even") -> Scenario:
        override = Override(key=key, value=value, origin=origin)
        return experiment.base.with_overrides([*experiment.overrides, override]).converted(Scenario)

    limits = [_number(at(start, "--from"), key, start), _number(at(end, "--to"), key, end)]
    low, high = sorted(limits)
    if low == high:
        raise SimnetError(f"--from: {start!r}: equals --to; give two values")

    # As advise does: drawing at each value of the search would take a hundred times as long.
    drawn = simulate(with_default_draws(experiment.at({})))
    ends_here = drawn.intervals.get("speedup")
    relative = (ends_here and drawn.speedup and (ends_here[0] / drawn.speedup, ends_here[1] / drawn.speedup)) or None

    @cache
    def trial(value: Number) -> Trial:
        return _trial(value, simulate(_without_draws(at(value))), relative, simulate)

    def to_spare(value: Number) -> float:
        speedup = trial(value).speedup
        # A kernel without a time makes the speedup a bound from above: it never surely pays.
        return -PAYS if speedup.unmeasured else speedup.least - PAYS

    # All of them first: a bisection between the ends alone would miss two crossings.
    values = _spaced(low, high)
    for value in values:
        trial(value)
        progress(1)
    trials = tuple(map(trial, values))
    if all(_same_times(trial, trials[0]) for trial in trials):
        raise SimnetError(
            f"--break-even: {key}: has no effect here: all {len(trials)} values tried from {trials[0].text} to "
            f"{trials[-1].text} give the same two times; {_reason(at(low), key)}"
        )
    pairs = transitions(values, lambda value: trial(value).is_faster)
    around = [bisect_by_guesses(*pair, tolerance, lambda value: trial(value).ahead_s) for pair in pairs]
    crossings = tuple(Crossing(low=trial(below), high=trial(above)) for below, above in around)
    turns = transitions(values, lambda value: to_spare(value) > 0)
    ends: list[Number | None] = [max(bisect_by_guesses(*pair, tolerance, to_spare), key=to_spare) for pair in turns]
    if to_spare(values[0]) > 0:
        ends.insert(0, None)
    ends += [None] if to_spare(values[-1]) > 0 else []
    progress(NUM_STEPS - len(values))
    scenario = at(low)
    return Crossover(
        key=key,
        strategy=scenario.strategy.kind,
        baseline=_compared_with(scenario, trials),
        trials=trials,
        crossings=crossings,
        question=scenario.question,
        pays_in=tuple(zip(ends[::2], ends[1::2], strict=True)),
    )


def _spaced(low: Number, high: Number) -> list[Number]:
    """Return both ends and up to seven values between: midpoints, rounded as a user would write them."""
    values = [low, high]
    while len(values) < PROBES:
        between = [_rounded_midpoint(a, b) for a, b in itertools.pairwise(values)]
        longer = sorted({*values, *between})
        if len(longer) == len(values):
            break
        values = longer
    return values


def text_of(value: Number, digits: int) -> str:
    """Return a value as a user writes it, rounded; an integer as it is."""
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, Quantity):
        return f"{value:.{digits}g}"
    unit = next((unit for unit in value.shown if value >= value.factors[unit]), value.shown[-1])
    return f"{value / value.factors[unit]:.{digits}g} {unit}"


def _rounded_midpoint(low: Number, high: Number) -> Number:
    """Return a value in between that a user would write."""
    between = midpoint(low, high)
    rounded = between.parse(text_of(between, digits=3)) if isinstance(between, Quantity) else between
    return rounded if low < rounded < high else between


def _without_draws(scenario: Scenario) -> Scenario:
    return replace(scenario, run=replace(scenario.run, draws=0))


def _compared_with(scenario: Scenario, trials: Sequence[Trial]) -> str:
    """Return what a strategy is compared with: "tuned DDP", or the kind of the scenario's baseline."""
    titles = {trial.references.strategy.title for trial in trials if trial.references}
    if titles:
        return f"tuned {' or '.join(sorted(titles))}"
    assert scenario.baseline is not None
    return scenario.baseline.kind


def _trial(
    value: Number,
    result: RunResult,
    relative: tuple[float, float] | None,
    simulate: Callable[[Scenario], RunResult],
) -> Trial:
    if result.baseline is None:
        raise SimnetError(NOTHING_TO_COMPARE.format(result.scenario.name))
    speedup = speedup_of(result, simulate)
    interval = relative and (speedup.value * relative[0], speedup.value * relative[1])
    return Trial(
        value=value,
        text=text_of(value, digits=6),
        iteration_s=result.result.step_s,
        baseline_iteration_s=result.baseline.step_s,
        speedup=replace(speedup, interval=interval),
        references=result.references,
        notes=result.notes,
    )


def speedup_of(result: RunResult, simulate: Callable[[Scenario], RunResult]) -> Speedup:
    """Return the speedup of a run as verdicts judge it: with its interval, and what slow kernels change."""
    assert result.baseline is not None
    scenario = result.scenario
    baseline_s = result.baseline.step_s
    value, interval = baseline_s / result.result.step_s, result.intervals.get("speedup")
    if value < PAYS:
        # It does not pay however fast the kernels are: the slow ones need no simulation.
        return Speedup(value=value, interval=interval)
    kernels = whatif.kernel_coverage(scenario.strategy, scenario)
    slow = simulate(whatif.slow_kernels(_without_draws(scenario))).result if kernels.are_estimated else None
    return Speedup(
        value=value,
        interval=interval,
        if_kernels_slow=baseline_s / slow.step_s if slow else None,
        unmeasured=kernels.unmeasured,
    )


def _same_times(trial: Trial, other: Trial) -> bool:
    """Tell whether two values give the same times, but for rounding."""
    return math.isclose(trial.iteration_s, other.iteration_s, rel_tol=1e-9) and math.isclose(
        trial.baseline_iteration_s, other.baseline_iteration_s, rel_tol=1e-9
    )


def _reason(scenario: Scenario, key: str) -> str:
    """Say why a key may change nothing, and what to do."""
    cluster, calibration = scenario.cluster, scenario.calibration
    part, _, field = key.rpartition(".")
    link = {"cluster.intra_node": calibration.intra_node, "cluster.inter_node": calibration.inter_node}.get(part)
    reasons = {
        "forward and backward are given as times of one micro-batch, so that its size changes samples/s alone; give "
        "compute rows instead, or search over workload.forward or workload.backward": (
            key == "workload.batch_per_rank" and scenario.workload.forward_s is not None
        ),
        f"calibration.{part.rpartition('.')[2]}.latency replaces it; search over that": (
            field == "latency" and link is not None and link.alpha_s is not None
        ),
        "one node sends nothing over its NIC; set cluster.num_nodes": "inter_node" in key and cluster.num_nodes == 1,
        "nodes of one rank send nothing inside; set cluster.ranks_per_node": (
            "intra_node" in key and cluster.ranks_per_node == 1
        ),
        "steps count in the end-to-end time alone: simnet simulate": key in ("run.steps", "strategy.dense_steps"),
    }
    other = "another limit decides, or the strategies do not use the key; search over another key"
    return next((reason for reason, holds in reasons.items() if holds), other)


def _number(scenario: Scenario, key: str, written: object) -> Number:
    """Return the number that a key has in a scenario."""
    value: Any = scenario
    for name in key.split("."):
        value = _member(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SimnetError(f"--break-even: {key}: {written!r}: not a number; give the key of a number or a quantity")
    return value


def _member(value: Any, name: str) -> Any:
    """Return a field by its name in the file, an item of a list by its index, or a value of a table by its key."""
    if isinstance(value, Struct):
        return getattr(
            value,
            dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)).get(name, "kind"),
            None,
        )
    return value[int(name)] if isinstance(value, tuple) else value[name]
