"""Times of steps of many settings: the same as one simulation each gives."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.analysis.tune import dense_systems, systems
from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.cluster.kernel_times import HostCost
from simnet.core.units import Bandwidth, Duration
from simnet.engine import intervals
from simnet.engine.plan import LEAST_LANES
from simnet.engine.prepared_scenario import StepLanes, StepTimer
from simnet.engine.scenario import RunSettings
from simnet.engine.simulation import simulate
from simnet.strategies import BinSGDM, DenseAllReduce
from tests.helpers.advise_samples import FAST_CODEC, WORKLOAD, scenario

EVERY = {**systems(), **dense_systems("fp32")}
SLOWED_LINKS = LinkCalibration(overlap_efficiency=0.4, efficiency=0.8)
CALIBRATIONS = {
    "fast kernels": FAST_CODEC,
    "slow kernels": Calibration(memory_bytes_per_s=Bandwidth(20e9)),
    "no kernels": Calibration(),
    "costly messages": replace(FAST_CODEC, collective_launch_s=Duration(1e-4), message_s=Duration(1e-5)),
    "costly CPU": replace(FAST_CODEC, host=HostCost(launch_s=Duration(1e-3), s_per_byte=Duration(1e-9))),
    "slowed backward": replace(FAST_CODEC, backward_slowdown=1.4, hook_slowdown=1.1),
    "waits": replace(FAST_CODEC, compute_spread=0.05, host_pause_s=Duration(0.002)),
    "slowed links": replace(FAST_CODEC, intra_node=SLOWED_LINKS, inter_node=SLOWED_LINKS, backward_slowdown=1.2),
}
ROUNDING = 1e-9


@given(
    name=st.sampled_from(sorted(EVERY)),
    calibration=st.sampled_from(sorted(CALIBRATIONS)),
    gbit_per_s=st.floats(0.1, 800),
    backward_s=st.floats(1e-5, 1.0),
    num_nodes=st.sampled_from([1, 3, 4]),
    grad_accumulation=st.sampled_from([1, 3]),
    data=st.data(),
)
def test_a_step_takes_what_a_simulation_says(
    name: str, calibration: str, gbit_per_s: float, backward_s: float, num_nodes: int, grad_accumulation: int, data: Any
) -> None:
    asked = scenario(
        gbit_per_s=gbit_per_s,
        num_nodes=num_nodes,
        calibration=CALIBRATIONS[calibration],
        workload=replace(WORKLOAD, backward_s=Duration(backward_s)),
    )
    asked = replace(asked, run=RunSettings(grad_accumulation=grad_accumulation))
    strategy, other = (data.draw(st.sampled_from(EVERY[name])) for _ in range(2))
    steps, times = StepTimer(asked), {}
    for timed in (strategy, other):
        result = simulate(replace(asked, strategy=timed)).result
        dense_s = result.dense_iteration_s or result.iteration_s
        times[timed] = result.iteration_s + timed.dense_fraction * (dense_s - result.iteration_s)
        assert steps.of(timed) == pytest.approx(times[timed], rel=ROUNDING)
    assert times[steps.fastest((strategy, other))] == pytest.approx(min(times.values()), rel=ROUNDING)


@given(
    name=st.sampled_from(sorted(EVERY)),
    calibration=st.sampled_from(sorted(CALIBRATIONS)),
    num_nodes=st.sampled_from([1, 3, 4]),
    data=st.data(),
)
def test_many_bandwidths_together_give_what_each_gives_alone(name, calibration, num_nodes, data):
    """`auto` chooses anew at each of them."""
    strategy = data.draw(st.sampled_from(EVERY[name]))
    rates = data.draw(st.lists(st.floats(0.01, 800), min_size=LEAST_LANES, max_size=20))
    there = [scenario(gbit_per_s=rate, num_nodes=num_nodes, calibration=CALIBRATIONS[calibration]) for rate in rates]
    alone = [StepTimer(lane).of(strategy) for lane in there]
    assert StepLanes(there).of(strategy) == pytest.approx(alone, rel=ROUNDING)


@given(name=st.sampled_from(sorted(EVERY)), data=st.data())
def test_drawn_calibrations_run_the_program_of_the_calibrated_one(name, data):
    strategy = data.draw(st.sampled_from(EVERY[name]))
    ends = {"inter_node.efficiency": (0.3, 1.0), "memory_bandwidth": (0.5, 2.0), "host_pause": (0.1, 2.0)}
    wide = replace(CALIBRATIONS["waits"], intervals=ends)
    asked = replace(scenario(calibration=wide), strategy=strategy)
    base, drawn = StepTimer(asked), list(intervals.drawn_scenarios(asked, 20))
    together = StepLanes(drawn, base).iterations_s(strategy)
    assert StepLanes(drawn, base, in_arrays=False).iterations_s(strategy) == pytest.approx(together, rel=ROUNDING)
    alone = [StepTimer(lane).iteration_s(strategy) for lane in drawn]
    # Where links decide, another algorithm may be the faster one in a draw, which whoever chose did not know.
    assert all(kept >= chosen * (1 - ROUNDING) for kept, chosen in zip(together, alone, strict=True))
    chooses = "auto" in (getattr(strategy, "algorithm", None), getattr(strategy, "broadcast", "auto"))
    if strategy.bucketing != "mg_wfbp" and not chooses and "zero" not in strategy.kind:
        assert together == pytest.approx(alone, rel=ROUNDING)


def test_strategies_that_wait_for_hosts_and_others_have_numbers_of_their_own() -> None:
    there = [scenario(gbit_per_s=rate, calibration=CALIBRATIONS["waits"]) for rate in range(1, LEAST_LANES + 1)]
    for order in (("FSDP", "BinSGDM"), ("BinSGDM", "FSDP")):
        lanes = StepLanes(there)
        for name in order:
            alone = [StepTimer(lane).of(EVERY[name][0]) for lane in there]
            assert lanes.of(EVERY[name][0]) == pytest.approx(alone, rel=ROUNDING)


def test_kernels_are_those_of_the_program() -> None:
    for strategy in (BinSGDM(), BinSGDM(topology="flat"), DenseAllReduce(bucketing="mg_wfbp", wire_dtype="bf16")):
        asked = replace(scenario(), strategy=strategy)
        steps = StepTimer(asked)
        assert steps.kernels(strategy) == steps.prepared.plan(strategy).program.kernels
