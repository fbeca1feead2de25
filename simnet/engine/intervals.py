"""What a result says between: calibrations drawn from given intervals, and the 90 % intervals that follow from them.

Every fitted value is drawn on its own: log-normal around the value, with its own width below and above it, so that 5 %
of the draws lie below the given interval and 5 % above. The draws of one value are spread evenly over its distribution,
one in each of as many equal parts (Latin hypercube). A file does not know how the errors of its values correlate:
errors that a fit made together (a latency too low and a bandwidth too low) are drawn as if they were independent, which
makes intervals wider than they need be. The model's own error depends on none of them: it is not drawn but integrated,
so that 50 draws are surer than 200 were with it (docs/explanation/verdicts.md).

Source: M. D. McKay, R. J. Beckman, W. J. Conover, "A Comparison of Three Methods for Selecting Values of Input
Variables in the Analysis of Output from a Computer Code", Technometrics 21, 1979.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration
from simnet.cluster.nccl_costs import BETWEEN_CLUSTERS
from simnet.core import files, schema
from simnet.core.bounded_types import Intervals
from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.units import Bandwidth, Duration
from simnet.engine.prepared_scenario import StepLanes, StepTimer, is_folded
from simnet.engine.result import Influence, References, RunResult, compared_with
from simnet.engine.scenario import Scenario, settings_of
from simnet.strategies import Strategy
from simnet.workload import training_step
from simnet.workload.workload import Workload

CONFIDENCE = 0.9
SIGMAS = 1.6448536269514722
"""The 95 % point of the standard normal distribution: a 90 % interval reaches so far on either side."""
DRAWS, LEAST_DRAWS = 50, 20
"""Draws where the user does not say, and the least."""
SEED = 0
MOST_DRAWN_RANKS = 4096
"""Ranks that are not alike of which an iteration takes at most some tens of milliseconds."""
LEAST_EFFECT = 0.01
"""Relative change of a result below which nobody asks what caused it."""
COMPUTE = ("forward", "backward")
"""What the key "compute" of a workload with times stands for."""
FREE_FACTORS = ("compute_factor", *BETWEEN_CLUSTERS)
"""Numbers that may lie on both sides of 1; of all others, one below 1 is a fraction, and stays one."""
ERROR_FILE = ("published", "model_error.toml")
Spread = Annotated[float, Meta(ge=1.0, le=1000.0)]


class ModelError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's own error: factors by which predictions are too large or too small at most, at 90 %.

    Predictions are that far off even where all that they rest on is known.

    Attributes:
        time: of a time.
        speedup: of a quotient of two times: errors that both times have cancel.
        source: the predictions that were compared with measurements.
    """

    time: Spread
    speedup: Spread
    source: str


class ModelErrors(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The error by where calibrations come from.

    Attributes:
        published: of calibrations fitted to some rows of a publication, which predict its others.
        measured: of calibrations measured on the cluster itself.
    """

    published: ModelError
    measured: ModelError


@cache
def model_errors() -> ModelErrors:
    """Read the errors that were found."""
    path = files.data_path(*ERROR_FILE)
    return schema.build(ModelErrors, files.read_file(path), files.label(path))


def model_error(calibration: Calibration) -> ModelError:
    """Return the error of predictions with a calibration.

    The model of an estimate is the same as that of a published calibration; what the estimate does not know is in its
    intervals.
    """
    return model_errors().measured if calibration.kind == "measured" else model_errors().published


# ---- intervals that are given


def plain_scenario(scenario: Scenario) -> Scenario:
    """Return a scenario whose intervals are all of plain keys: at its number of nodes, on its GPU, at its batch."""
    workload, interval = scenario.workload, training_step.compute_interval(scenario.workload, scenario.cluster)
    if interval is not None and "compute" not in workload.intervals:
        workload = replace(workload, intervals={**workload.intervals, "compute": interval})
    calibration = scenario.calibration.at_nodes(scenario.cluster.num_nodes)
    if spread := calibration.nccl_spread(scenario.cluster):
        between = {f"nccl.{key}": ends for key, ends in spread.items()}
        calibration = replace(calibration, intervals=calibration.intervals | between)
    return replace(scenario, calibration=calibration, workload=workload)


def has_intervals(scenario: Scenario) -> bool:
    """Tell whether anything of a scenario has an interval."""
    return bool(stated_intervals(plain_scenario(scenario)))


def stated_intervals(plain: Scenario) -> Intervals:
    """Return the intervals of a plain scenario by dotted key of the scenario; those without width are left out."""
    of_calibration = {f"calibration.{key}": ends for key, ends in calibration_intervals(plain.calibration).items()}
    of_workload = {f"workload.{key}": ends for key, ends in plain.workload.intervals.items() if ends != (1, 1)}
    return of_calibration | of_workload


def calibration_intervals(plain: Calibration) -> Intervals:
    """Return the intervals of a calibration and its libraries by dotted key; those without width are left out."""
    by_part = {
        "": plain.intervals,
        **{f"libraries.{name}.": library.intervals for name, library in plain.libraries.items()},
    }
    return {f"{part}{key}": ends for part, known in by_part.items() for key, ends in known.items() if ends != (1, 1)}


def changed(plain: Scenario, factors: Mapping[str, float]) -> Scenario:
    """Return a plain scenario with some of the values that have an interval multiplied.

    Args:
        plain: see `plain_scenario`.
        factors: on the values, by key of `stated_intervals`.

    Raises:
        SimnetError: an interval of a key that the scenario does not have, or that has no number.
    """
    by_part: dict[str, dict[str, float]] = {"calibration": {}, "workload": {}}
    for key, factor in factors.items():
        part, _, rest = key.partition(".")
        by_part[part][rest] = factor
    calibration = changed_calibration(plain.calibration, by_part["calibration"])
    return replace(plain, calibration=calibration, workload=_changed_workload(plain.workload, by_part["workload"]))


def changed_calibration(plain: Calibration, factors: Mapping[str, float]) -> Calibration:
    """Return a calibration with some of the values of `calibration_intervals` multiplied."""
    calibration: Calibration = _changed(plain, factors, f"{plain.label}: intervals")
    return calibration


def _changed_workload(workload: Workload, factors: Mapping[str, float]) -> Workload:
    by_key = dict(factors)
    changed, compute = workload, by_key.pop("compute", None)
    if compute is not None and workload.forward_s is None and (workload.compute or workload.work):
        rows = tuple(row.slower_by(compute) for row in workload.compute)
        changed = replace(workload, compute=rows, work=workload.work and workload.work.slower_by(compute))
    elif compute is not None:
        by_key = {**dict.fromkeys(COMPUTE, compute), **by_key}
    scaled: Workload = _changed(changed, by_key, f"{workload.label}: intervals")
    return scaled


def _changed(whole: Any, factors: Mapping[str, float], where: str, prefix: str = "") -> Any:
    """Return a struct or mapping with the values at dotted keys multiplied: every struct on the way is made once."""
    if not factors:
        return whole
    by_first: dict[str, dict[str, float]] = {}
    for key, factor in factors.items():
        first, _, rest = key.partition(".")
        by_first.setdefault(first, {})[rest] = factor
    is_mapping = isinstance(whole, dict)
    # msgspec.structs.fields would evaluate every annotation anew, which takes longer than a simulation.
    kind: Any = type(whole)
    names = {k: k for k in whole} if is_mapping else _field_names(kind)
    made = {}
    for first, inner in by_first.items():
        if first not in names:
            raise SimnetError(f"{where}: {prefix + first!r}: unknown key.{did_you_mean(first, list(names))}")
        value = whole[first] if is_mapping else getattr(whole, names[first])
        here = f"{prefix}{first}"
        made[names[first]] = (
            _scaled(first, value, inner[""], f"{where}: {here!r}")
            if "" in inner
            else _changed(value, inner, where, f"{here}.")
        )
    return {**whole, **made} if is_mapping else replace(whole, **made)


@lru_cache(maxsize=64)
def _field_names(kind: Any) -> dict[str, str]:
    """Return the names of a struct's fields by key."""
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def _scaled(name: str, value: Any, factor: float, where: str) -> Any:
    """Multiply a quantity, a factor of at least 1, a free factor, a fraction, or every fraction of a curve."""
    if isinstance(value, tuple):
        return tuple((size, min(1.0, share * factor)) for size, share in value)
    if isinstance(value, Bandwidth | Duration):
        return type(value)(value * factor)
    if isinstance(value, float | int) and not isinstance(value, bool):
        if name in FREE_FACTORS:
            return value * factor
        # A number below 1 is a fraction: no factor on a time is.
        is_fraction = name.endswith("efficiency") or value < 1
        return min(1.0, value * factor) if is_fraction else max(1.0, value * factor)
    raise SimnetError(f"{where}: holds no number to draw; drop it")


# ---- draws


def drawn_scenarios(scenario: Scenario, count: int) -> Iterator[Scenario]:
    """Yield so many scenarios whose calibration and workload are drawn from their intervals.

    Raises:
        SimnetError: the draws are too few, or an interval is of a key that is not there, or that has no number.
    """
    plain = plain_scenario(scenario)
    yield from (changed(plain, factors) for factors in _drawn_factors(stated_intervals(plain), count))


def drawn_calibrations(calibration: Calibration, count: int) -> Iterator[Calibration]:
    """Yield so many calibrations drawn from the intervals of one."""
    known = calibration_intervals(calibration)
    yield from (changed_calibration(calibration, factors) for factors in _drawn_factors(known, count))


def _drawn_factors(known: Intervals, count: int) -> Iterator[dict[str, float]]:
    """Yield the factors on all values of each draw, by key."""
    check_draws(count)
    columns = [(key, ends, normals(key, count)) for key, ends in known.items()]
    for draw in range(count):
        yield {key: _factor(normal[draw], ends) for key, ends, normal in columns}


def error_factors(error: float, count: int) -> list[float]:
    """Return so many factors of an error at 90 %, drawn beside whatever else `drawn_scenarios` draws."""
    return [math.exp(normal * math.log(error) / SIGMAS) for normal in normals("model error", count)]


def check_draws(count: int) -> None:
    """Refuse draws that are too few for an interval: the middle 90 % of one value is no wider than the value."""
    if 0 < count < LEAST_DRAWS:
        raise SimnetError(f"run.draws: {count}: must be 0, for no intervals, or at least {LEAST_DRAWS}")


def _factor(normal: float, ends: tuple[float, float]) -> float:
    width = math.log(ends[1]) if normal > 0 else -math.log(ends[0])
    return math.exp(normal * width / SIGMAS)


@lru_cache(maxsize=1024)
def normals(key: str, count: int) -> tuple[float, ...]:
    """Return values of the standard normal distribution, one in each of `count` equal parts of it, shuffled."""
    from random import Random  # both of which most runs need not load
    from statistics import NormalDist

    normal = NormalDist()
    quantiles = [normal.inv_cdf((part + 0.5) / count) for part in range(count)]
    Random(f"{SEED}/{key}").shuffle(quantiles)
    return tuple(quantiles)


# ---- intervals that follow


def middle_90_percent(values: Sequence[float], error: float = 1.0) -> tuple[float, float]:
    """Return the middle 90 % of at least one value, none below 0, each of which may be off by a factor at 90 %.

    Args:
        values: one a draw.
        error: the model's own, log-normal, as `ModelError` holds it; 1 for none.
    """
    # The model's own error is folded in exactly: 50 draws are surer so than 200 with the error drawn among them.
    ordered, tail = sorted(values), (1 - CONFIDENCE) / 2
    if error <= 1:
        return quantile(ordered, tail), quantile(ordered, 1 - tail)
    return _with_error(ordered, tail, error), _with_error(ordered, 1 - tail, error)


def _with_error(values: Sequence[float], share: float, error: float) -> float:
    """Return where a share of the distribution lies below: solve mean Phi((ln q - ln x) / sigma) = share for q."""
    sigma, below = math.log(error) / SIGMAS, share * len(values)
    places = [math.log(value) for value in values if 0 < value < math.inf]
    zeros = sum(value <= 0 for value in values)
    if below <= zeros or not places:
        return values[0]
    if below >= zeros + len(places):
        return values[-1]
    # Nine standard deviations beyond the outermost draw: less of the distribution lies there than a float tells.
    low, high = places[0] - 9 * sigma, places[-1] + 9 * sigma
    below -= zeros
    scale = sigma * math.sqrt(2)
    for _ in range(60):
        middle = (low + high) / 2
        covered = sum(math.erfc((place - middle) / scale) for place in places) / 2
        low, high = (middle, high) if covered < below else (low, middle)
        if high - low < 1e-9:
            break
    return math.exp((low + high) / 2)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of at least one ascending value lies, interpolated between neighbours.

    Each of n values stands for the middle of an nth of the distribution, as the draws do. So few of them give no
    narrower interval than many; beyond the first and the last nothing is known.

    Source: A. Hazen, 1914; definition 5 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996.
    """
    position = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def with_default_draws(scenario: Scenario, num_points: int = 1) -> Scenario:
    """Return a scenario that gives intervals with as many draws as are useful, unless it says how many.

    None are drawn for an ideal calibration, which is not for decisions, nor where a draw takes long: on the exact
    executor, on very many ranks that are not alike, or at many points with such ranks.
    """
    if scenario.run.draws is not None or scenario.calibration.kind == "ideal":
        return scenario
    # Draws of ranks that are not alike are arrays of ranks: seconds each on many ranks.
    if not is_folded(scenario):
        is_quick = scenario.run.fidelity != "exact" and scenario.cluster.world_size <= MOST_DRAWN_RANKS
        if not is_quick or num_points > 1:
            return scenario
    return replace(scenario, run=replace(scenario.run, draws=DRAWS))


def metrics_of(result: RunResult) -> dict[str, float]:
    """Return what of a result has an interval."""
    values = {
        "iteration_s": result.result.iteration_s,
        "total_s": result.result.total_s,
        "baseline_iteration_s": result.baseline.iteration_s if result.baseline else None,
        "baseline_total_s": result.baseline.total_s if result.baseline else None,
        "speedup": result.speedup,
        "end_to_end_speedup": result.end_to_end_speedup,
    }
    return {name: value for name, value in values.items() if value is not None}


def intervals(result: RunResult, *, with_model_error: bool) -> dict[str, tuple[float, float]]:
    """Return the 90 % intervals of a result by name.

    Args:
        result: as calibrated; its scenario says how many draws to make.
        with_model_error: whether the intervals hold the model's own error.
    """
    scenario, usual = result.scenario, metrics_of(result)
    known, plain = model_error(scenario.calibration), _of_one_iteration(scenario)
    check_draws(scenario.run.draws or 0)
    ratios = {name: [1.0] for name in usual}
    if has_intervals(scenario):
        # One draw serves strategy and baseline: their common errors cancel in the speedup. What varies between
        # iterations changes as one plain iteration does.
        def drawn(side: Scenario) -> list[Scenario]:
            return [side, *drawn_scenarios(side, scenario.run.draws or 0)]

        ratios = _ratios(plain, result.references, drawn)
    # A strategy against itself is as fast, whatever the model leaves out.
    compared = result.compared
    of_speedup = 1.0 if compared and scenario.strategy == compared.strategy else known.speedup
    errors = {name: known.time if name.endswith("_s") else of_speedup for name in usual}
    return {
        name: middle_90_percent([value * ratio for ratio in ratios[name]], errors[name] if with_model_error else 1.0)
        for name, value in usual.items()
    }


def influences(result: RunResult) -> tuple[Influence, ...]:
    """Return what a result is sensitive to, one value at a time at both ends of its interval, the largest first."""
    scenario = _of_one_iteration(plain_scenario(result.scenario))
    metric = "iteration_s" if result.speedup is None else "speedup"
    usual = metrics_of(result)[metric]
    known = stated_intervals(scenario)
    asked = [(key, factor) for key, ends in known.items() for factor in ends]
    if not asked:
        return ()

    def at_ends(side: Scenario) -> list[Scenario]:
        return [side, *(changed(side, {key: factor}) for key, factor in asked)]

    ratios = iter(_ratios(scenario, result.references, at_ends)[metric])
    influences = [
        Influence(key=key, interval=ends, values=(usual * next(ratios), usual * next(ratios)))
        for key, ends in known.items()
    ]
    matter = [influence for influence in influences if influence.effect(usual) >= LEAST_EFFECT]
    return tuple(sorted(matter, key=lambda influence: influence.effect(usual), reverse=True))


def _ratios(
    scenario: Scenario, references: References | None, varied: Callable[[Scenario], list[Scenario]]
) -> dict[str, list[float]]:
    """Return every metric of the variations of a scenario, relative to the first, whose programs all of them run."""
    steps, of_all = scenario.run.steps, {}
    lanes = _lanes(varied(scenario))
    sides = [("", scenario.strategy, lanes)]
    if compared := compared_with(scenario, references):
        is_cut_alike = settings_of(compared) == settings_of(scenario)
        sides.append(("baseline_", compared.strategy, lanes if is_cut_alike else _lanes(varied(compared))))
    mean_s: dict[str, list[float]] = {}
    for prefix, strategy, there in sides:
        stage = strategy.dense_stage(steps)
        iterations = there.iterations_s(strategy)
        dense = there.iterations_s(stage.strategy) if stage else [None] * len(iterations)
        of_all[f"{prefix}iteration_s"] = iterations
        mean_s[prefix] = there.of(strategy)
        totals = [total_s(strategy, steps, *stages) for stages in zip(iterations, dense, strict=True)]
        of_all[f"{prefix}total_s"] = [total for total in totals if total is not None]
    if "baseline_" in mean_s:
        for name, both in (
            ("speedup", (mean_s["baseline_"], mean_s[""])),
            ("end_to_end_speedup", (of_all["baseline_total_s"], of_all["total_s"])),
        ):
            of_all[name] = [baseline_s / own_s for baseline_s, own_s in zip(*both, strict=False) if own_s]
    return {
        name: [value / values[0] for value in values[1:]] for name, values in of_all.items() if values and values[0]
    }


def _lanes(scenarios: Sequence[Scenario]) -> StepLanes:
    return StepLanes(scenarios, StepTimer(scenarios[0]), in_arrays=False)


def total_s(strategy: Strategy, steps: int | None, iteration_s: float, dense_s: float | None) -> float | None:
    """Return the time of a training of so many steps, those of its dense stage as they are [s]; None without steps."""
    if steps is None:
        return None
    stage = strategy.dense_stage(steps)
    dense_steps = stage.steps if stage else 0
    return (steps - dense_steps) * iteration_s + dense_steps * (dense_s or 0.0)


def _of_one_iteration(scenario: Scenario) -> Scenario:
    """Return a scenario with one iteration of what is always there, collectives as wholes where ranks differ."""
    if is_folded(scenario):
        return scenario
    # What varies between iterations widens each iteration, not the mean that an interval is of.
    faults = tuple(fault for fault in scenario.cluster.faults if not fault.varies)
    run = replace(scenario.run, iterations=1)
    return replace(scenario, run=run, cluster=replace(scenario.cluster, faults=faults))
