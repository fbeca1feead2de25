"""Times of steps of many settings: the same as one simulation each gives, and few of them are run."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet import folded_runner
from simnet.compare.tune import dense_systems, systems
from simnet.hardware import Calibration
from simnet.scenario import RunSettings
from simnet.simulate import BOUND_ROUNDING, StepTimer, simulate
from simnet.strategies import DenseAllReduce, Marsit, OneBitAdam, SignSGD, TopK
from simnet.units import Bandwidth, Duration
from tests.helpers.advise_samples import FAST_CODEC, WORKLOAD, scenario

EVERY = {**systems(), **dense_systems("fp32")}
CALIBRATIONS = {
    "fast kernels": FAST_CODEC,
    "slow kernels": Calibration(memory_bytes_per_s=Bandwidth(20e9)),
    "no kernels": Calibration(),
    "costly messages": replace(FAST_CODEC, collective_launch_s=Duration(1e-4), message_s=Duration(1e-5)),
    "slowed backward": replace(FAST_CODEC, backward_slowdown=1.4),
}


@given(
    name=st.sampled_from(sorted(EVERY)),
    calibration=st.sampled_from(sorted(CALIBRATIONS)),
    gbit_per_s=st.floats(0.1, 800),
    backward_s=st.floats(1e-5, 1.0),
    num_nodes=st.sampled_from([1, 3, 4]),
    grad_accumulation=st.sampled_from([1, 3]),
)
def test_no_step_is_shorter_than_its_bound_and_the_fastest_is_found(**drawn: Any) -> None:
    """The bound may lie above the time by rounding alone."""
    workload = replace(WORKLOAD, backward_s=Duration(drawn["backward_s"]))
    given_ = scenario(
        gbit_per_s=drawn["gbit_per_s"],
        num_nodes=drawn["num_nodes"],
        calibration=CALIBRATIONS[drawn["calibration"]],
        workload=workload,
    )
    given_ = replace(given_, run=RunSettings(grad_accumulation=drawn["grad_accumulation"]))
    tried = EVERY[drawn["name"]]
    steps, times = StepTimer(given_), []
    for strategy in tried:
        result = simulate(replace(given_, strategy=strategy)).result
        bound_s = steps._prepared.lower_bound_s(steps._prepared.plan(strategy))
        assert bound_s <= result.iteration_s * (1 + BOUND_ROUNDING / 100)
        dense_s = result.dense_iteration_s or result.iteration_s
        times.append(result.iteration_s + strategy.dense_fraction * (dense_s - result.iteration_s))
        assert StepTimer(given_).of(strategy) == times[-1]
    assert steps.fastest(tried) == tried[times.index(min(times))]


def test_what_only_has_to_wait_takes_its_longest_chain() -> None:
    """DDP without a cast has no kernel that shares the GPU with backward."""
    given_ = replace(scenario(), strategy=DenseAllReduce())
    steps = StepTimer(given_)
    bound_s = steps._prepared.lower_bound_s(steps._prepared.plan(given_.strategy))
    assert bound_s == pytest.approx(simulate(given_).result.iteration_s, rel=1e-9)


@pytest.mark.parametrize("strategy", [TopK(ratio=0.01), Marsit()])
def test_where_the_gpu_is_always_busy_the_bound_is_its_work(strategy: Any) -> None:
    given_ = replace(scenario(gbit_per_s=800), strategy=strategy)
    steps = StepTimer(given_)
    bound_s = steps._prepared.lower_bound_s(steps._prepared.plan(strategy))
    assert bound_s == pytest.approx(simulate(given_).result.iteration_s, rel=0.01)


def test_few_of_the_settings_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[str] = Counter()

    def counted(*given_: Any) -> Any:
        runs["run"] += 1
        return run(*given_)

    run = folded_runner.run
    monkeypatch.setattr(folded_runner, "run", counted)
    steps = StepTimer(scenario(gbit_per_s=0.1))
    steps.fastest(EVERY["QSGD 4 bit"])
    assert runs["run"] == 2 < len(EVERY["QSGD 4 bit"])
    steps.fastest(EVERY["QSGD 4 bit"])
    assert runs["run"] == 2


def test_of_equals_the_first_is_taken() -> None:
    alike = (OneBitAdam(dense_steps=3), OneBitAdam(dense_steps=2), OneBitAdam())
    assert StepTimer(scenario()).fastest(alike) == alike[0]


def test_plans_are_shared_where_they_are_the_same_at_all_bandwidths() -> None:
    """Schedules and programs compare by value."""
    slow, fast = (scenario(gbit_per_s=rate) for rate in (0.3, 300))
    plans: dict[Any, Any] = {}
    first, second = StepTimer(slow, plans), StepTimer(fast, plans)
    alone = StepTimer(fast)
    shared = set()
    for strategies in EVERY.values():
        for strategy in strategies:
            first.of(strategy)
            assert second.of(strategy) == alone.of(strategy)
            shared |= {strategy.kind} if first._plan(strategy) is second._plan(strategy) else set()
    assert {"sign_sgd", "marsit", "qsgd", "top_k"} <= shared
    assert not {"all_reduce", "binsgdm", "power_sgd", "random_k", "one_bit_adam"} & shared


def test_a_class_that_is_derived_does_not_inherit_that_rates_are_ignored() -> None:
    class Choosing(SignSGD, frozen=True, tag="sign_sgd"):
        """Might choose an algorithm by its time."""

    plans: dict[Any, Any] = {}
    first, second = StepTimer(scenario(), plans), StepTimer(scenario(), plans)
    assert first._plan(SignSGD()) is second._plan(SignSGD())
    assert first._plan(Choosing()) is not second._plan(Choosing())
