"""What trainings say of a system whose steps take a given time."""

from typing import Any

import pytest

from simnet.analysis.convergence import Convergence, TrainedSystem, TrainingCurve
from simnet.analysis.training_record import TrainingRecord, missed_otherwise, trained_as
from simnet.analysis.tuned_steps import StepCost, StepCosts
from simnet.strategies import QSGD, AnyStrategy, DenseAllReduce, OneBitAdam, SignSGD


def costs(
    *drawn_s: float, of: AnyStrategy | None = None, slow_s: float | None = None, dense_s: float = 0.0
) -> StepCosts:
    """Return what steps cost: as calibrated the median of the draws."""

    def cost(step_s: float) -> StepCost:
        return StepCost(strategy=of or SignSGD(), first_s=0.0, step_s=step_s, dense_s=dense_s)

    usual, slow = cost(sorted(drawn_s)[len(drawn_s) // 2]), slow_s and cost(slow_s)
    return StepCosts(usual, [*map(cost, drawn_s)], slow or None)


def curve(system: str, seed: int, *values: float | None, ranks: int = 2) -> TrainingCurve:
    steps = tuple(10 * number for number in range(1, len(values) + 1))
    return TrainingCurve(system=system, ranks=ranks, seed=seed, steps=steps, values=values)


def trainings(*curves: TrainingCurve, own: AnyStrategy, **changes: Any) -> Convergence:
    """Dense needs 30 steps with seed 0, and 40 with seed 1."""
    dense = curve("dense", 0, 4.0, 3.0, 2.0, 1.5), curve("dense", 1, 4.0, 3.0, 2.5, 2.0)
    systems = {"dense": DenseAllReduce(), "own": own}
    fields: dict[str, Any] = {
        "format": "simnet-convergence", "version": 2, "task": "a task", "metric": "loss", "better": "lower", "batch": 4,
        "target": 2.0, "source": "made up", "curves": (*dense, *curves),
        "systems": {name: TrainedSystem(title=name, strategy=strategy) for name, strategy in systems.items()},
    }  # fmt: skip
    return Convergence(**fields | changes)


def record(
    *curves: TrainingCurve, own: AnyStrategy, cost: StepCosts, dense: StepCosts, **error: float
) -> TrainingRecord:
    trained = trained_as(trainings(*curves, own=own), own)
    assert trained is not None
    return trained.record("task", cost, dense, **error)


def test_half_that_missed_is_a_miss_and_the_end_tells_what_diverged() -> None:
    curves = curve("own", 0, 2.0, 3.0, None), curve("own", 1, 4.0, 3.0, 3.0)
    half = record(*curves, own=SignSGD(), cost=costs(0.5), dense=costs(1.0))
    assert (half.num_reached, half.num_diverged, half.num_trainings) == (1, 1, 2)
    assert half.is_missed


def test_steps_of_a_dense_stage_take_their_own_time() -> None:
    adam = OneBitAdam(dense_steps=12)
    cost = costs(0.5, of=adam, dense_s=1.0)
    staged = record(curve("own", 0, 4.0, 2.0), own=adam, cost=cost, dense=costs(1.0))
    assert staged.speedup is not None
    assert staged.speedup.value == pytest.approx(30 / (12 * 1.0 + 8 * 0.5))


def test_draws_and_seeds_make_the_interval() -> None:
    cost, dense = costs(0.25, 0.5, 1.0, slow_s=1.0), costs(1.0, 1.0, 1.0)
    speedup = record(curve("own", 0, 2.0), own=SignSGD(), cost=cost, dense=dense, error=1.0).speedup
    assert speedup is not None
    assert speedup.interval == (3.0, 12.0)
    assert (speedup.value, speedup.if_kernels_slow) == (6.0, 3.0)


def test_a_topology_that_was_not_trained_has_no_record_and_others_that_missed_are_told() -> None:
    untrained = trainings(curve("own", 0, 4.0, 3.0), own=QSGD())
    assert trained_as(untrained, QSGD(topology="scatter_reduce")) is None
    assert missed_otherwise(untrained, QSGD(topology="scatter_reduce")) is True
    assert missed_otherwise(trainings(curve("own", 0, 2.0), own=QSGD()), QSGD(topology="hierarchical")) is False
    assert missed_otherwise(untrained, SignSGD()) is None


def test_without_a_target_or_a_baseline_that_ends_nothing_is_said() -> None:
    own, found = SignSGD(), curve("own", 0, 2.0)
    assert trained_as(trainings(found, own=own), own) is not None
    assert trained_as(trainings(found, own=own, target=None), own) is None
    assert trained_as(trainings(own=own, curves=(curve("dense", 0, 2.0, None), found)), own) is None
