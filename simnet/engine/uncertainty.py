"""What a result says between: 90 % intervals over draws, and the values that it hangs on most."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from simnet.engine import calibration_draws, model_error
from simnet.engine.calibration_draws import Draw
from simnet.engine.prepared_scenario import is_folded, is_grouped
from simnet.engine.result import Influence, RunResult
from simnet.engine.scenario import Scenario

MOST_DRAWS, LEAST_DRAWS, DRAWS_IN_ALL = 200, 20, 1000
MOST_DRAWN_RANKS = 4096
"""Ranks that are not alike of which an iteration takes at most some tens of milliseconds."""
LEAST_EFFECT = 0.01
"""Relative change of a result below which nobody asks what caused it."""
Metrics = Mapping[str, float]
"""What of a result has an interval, by name."""


def default_draws(num_points: int = 1) -> int:
    """Return how many draws make the intervals of each of so many points, where the user does not say.

    Draws of a whole command take about a second: many points get fewer, whose intervals are less sure.
    """
    return max(LEAST_DRAWS, min(MOST_DRAWS, DRAWS_IN_ALL // num_points))


def with_default_draws(scenario: Scenario, num_points: int = 1) -> Scenario:
    """Return a scenario that gives a speedup with as many draws as are useful, unless it says how many.

    None are drawn for an ideal calibration, which is not for decisions, nor where a draw takes long: on the exact
    executor, on very many ranks that are not alike, or at many points with such ranks.
    """
    is_left = scenario.run.draws is not None or scenario.baseline is None or scenario.calibration.kind == "ideal"
    if is_left:
        return scenario
    draws = default_draws(num_points)
    if not is_folded(scenario):
        is_quick = is_grouped(scenario) and scenario.cluster.world_size <= MOST_DRAWN_RANKS
        if not is_quick or num_points > 1:
            return scenario
        draws = LEAST_DRAWS
    return replace(scenario, run=replace(scenario.run, draws=draws))


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


def intervals(
    result: RunResult, metrics: Callable[[Scenario], Metrics], *, with_model_error: bool
) -> dict[str, tuple[float, float]]:
    """Return the 90 % intervals of a result by name.

    Args:
        result: as calibrated; its scenario says how many draws to make.
        metrics: simulates a scenario.
        with_model_error: whether the intervals hold the model's own error.
    """
    scenario = result.scenario
    usual = metrics_of(result)
    is_drawn = calibration_draws.has_intervals(scenario)
    drawn_from = _of_one_iteration(scenario)
    # Draws change one plain iteration; what varies between iterations changes in the same ratio.
    plain = metrics(drawn_from) if is_drawn and drawn_from is not scenario else usual
    found: dict[str, list[float]] = {}
    # One draw serves strategy and baseline: their common errors cancel in the speedup.
    for draw in calibration_draws.draws(scenario.run.draws or 0):
        drawn = metrics(calibration_draws.draw_scenario(drawn_from, draw)) if is_drawn else usual
        for name, value in drawn.items():
            factor = _model_factor(scenario, name, draw) if with_model_error else 1.0
            scaled = value if plain is usual else usual[name] * (value / plain[name])
            found.setdefault(name, []).append(scaled * factor)
    return {name: calibration_draws.middle_90_percent(values) for name, values in found.items()}


def _of_one_iteration(scenario: Scenario) -> Scenario:
    """Return a scenario with one iteration of what is always there, by the grouped executor where ranks differ."""
    if is_folded(scenario):
        return scenario
    faults = tuple(fault for fault in scenario.cluster.faults if not fault.varies)
    fidelity = "grouped" if is_grouped(scenario) else scenario.run.fidelity
    run = replace(scenario.run, iterations=1, fidelity=fidelity)
    return replace(scenario, run=run, cluster=replace(scenario.cluster, faults=faults))


def _model_factor(scenario: Scenario, metric: str, draw: Draw) -> float:
    known = model_error.of(scenario.calibration)
    if metric.endswith("_s"):
        return calibration_draws.model_error_factor(known.time, draw)
    # A strategy against itself is as fast, whatever the model leaves out.
    is_same = scenario.strategy == scenario.baseline
    return 1.0 if is_same else calibration_draws.model_error_factor(known.speedup, draw)


def influences(result: RunResult, metrics: Callable[[Scenario], Metrics]) -> tuple[Influence, ...]:
    """Return what a result hangs on, one value at a time at both ends of its interval, the largest effect first."""
    scenario = _of_one_iteration(calibration_draws.plain_scenario(result.scenario))
    metric = "iteration_s" if result.speedup is None else "speedup"
    usual = metrics_of(result)[metric]
    scale = 1.0 if is_folded(scenario) else usual / metrics(scenario)[metric]
    found = []
    for key, ends in calibration_draws.intervals(scenario).items():
        low, high = (scale * metrics(calibration_draws.changed(scenario, key, factor))[metric] for factor in ends)
        found.append(Influence(key=key, interval=ends, values=(low, high)))
    known = [one for one in found if one.effect(usual) >= LEAST_EFFECT]
    return tuple(sorted(known, key=lambda one: one.effect(usual), reverse=True))
