"""Where two strategies take the same time."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from simnet.analysis.crossover import Crossover, search
from simnet.core.errors import SimnetError
from simnet.engine.result import Breakdown, RunResult, StrategyResult
from simnet.engine.scenario import Scenario, load_experiment
from simnet.engine.simulation import simulate
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import pod, write

BANDWIDTH = "cluster.inter_node.bandwidth"


def _taking(seconds: Callable[[Scenario], float]) -> Callable[[Scenario], RunResult]:
    """Return a simulator in which the baseline takes 1 s, and the strategy what a function says."""

    def simulated(scenario: Scenario) -> RunResult:
        first, second = (_result(iteration_s) for iteration_s in (seconds(scenario), 1.0))
        return RunResult(scenario=scenario, world_size=scenario.cluster.num_nodes, result=first, baseline=second)

    return simulated


def _result(iteration_s: float) -> StrategyResult:
    parts = dict.fromkeys(Breakdown.__struct_fields__, 0.0)
    return StrategyResult(
        strategy="",
        fidelity="",
        algorithm="",
        iterations_s=(iteration_s,),
        samples_per_s=1.0,
        breakdown=Breakdown(**parts),
        comm_s=0.0,
        overlap=0.0,
        nic_bytes_per_node=0.0,
        compression_ratio=1.0,
        num_buckets=1,
    )


@pytest.fixture
def find(tmp_path: Path) -> Callable[..., Crossover]:
    experiment = load_experiment(str(write(tmp_path / "pod.toml", pod())))

    def found(key: str, start: object, end: object, seconds: Callable[[Scenario], float]) -> Crossover:
        return search(experiment, key=key, start=start, end=end, simulate=_taking(seconds))

    return found


def test_a_quantity_is_found_within_the_tolerance(find: Callable[..., Crossover]) -> None:
    found = find(BANDWIDTH, "1 Gbit/s", "100 Gbit/s", lambda s: s.cluster.inter_node.bytes_per_s / 1.7e9)
    (crossing,) = found.crossings
    assert crossing.low.value <= 1.7e9 <= crossing.high.value
    assert 0 < crossing.relative_width <= 1e-4
    assert crossing.low.is_faster
    assert not crossing.high.is_faster
    assert crossing.high.text.startswith("13.6")
    assert crossing.high.text.endswith("Gbit/s")


@pytest.mark.slow
@pytest.mark.parametrize("ends", [(1, 64), (64, 1)])
def test_an_integer_is_found_exactly(find: Callable[..., Crossover], ends: tuple[int, int]) -> None:
    found = find("cluster.num_nodes", *ends, lambda s: 0.9 if s.cluster.num_nodes >= 23 else 1.1)
    (crossing,) = found.crossings
    assert (crossing.low.value, crossing.high.value) == (22, 23)
    assert (found.strategy, found.baseline) == ("binsgdm", "all_reduce")


def test_more_than_one_crossing_is_found(find: Callable[..., Crossover]) -> None:
    found = find("cluster.num_nodes", 1, 64, lambda s: 0.9 if 5 <= s.cluster.num_nodes < 40 else 1.1)
    assert [crossing.high.value for crossing in found.crossings] == [5, 40]


def test_a_tie_counts_as_not_faster(find: Callable[..., Crossover]) -> None:
    found = find("cluster.num_nodes", 1, 2, lambda s: float(s.cluster.num_nodes))
    assert (found.trials[0].speedup.value, found.trials[0].is_faster) == (1.0, False)


def test_a_range_from_zero_ends(find: Callable[..., Crossover]) -> None:
    found = find("cluster.inter_node.latency", "0 s", "1 ms", lambda s: 0.5 if s.cluster.inter_node.alpha_s else 2.0)
    (crossing,) = found.crossings
    assert crossing.low.value == 0
    assert crossing.high.value < 1e-10


@pytest.mark.parametrize(
    ("key", "start", "end"),
    [
        (BANDWIDTH, "1 MB/s", "1e308 B/s"),
        ("cluster.inter_node.latency", "1e-300 s", "1 s"),
        ("cluster.inter_node.latency", "0 s", "1e300 s"),
    ],
)
def test_ends_that_are_far_apart_are_searched(find: Callable[..., Crossover], key: str, start: str, end: str) -> None:
    limit = 1e100 if key == BANDWIDTH else 1e-100

    def seconds(scenario: Scenario) -> float:
        link = scenario.cluster.inter_node
        return 2.0 if (link.bytes_per_s if key == BANDWIDTH else link.alpha_s) > limit else 0.5

    found = find(key, start, end, seconds)
    values = [trial.value for trial in found.trials]
    assert len(set(values)) == 9
    assert values == sorted(values)
    (crossing,) = found.crossings
    assert crossing.low.value <= limit
    assert limit < crossing.high.value <= max(limit * 1.001, 1e-8 * values[-1])


@pytest.mark.parametrize("tolerance", [math.nan, math.inf, 0.0, -1.0, 0.6])
def test_a_wrong_tolerance_is_refused(tmp_path: Path, tolerance: float) -> None:
    experiment = load_experiment(str(write(tmp_path / "pod.toml", pod())))
    with pytest.raises(SimnetError, match=rf"--tolerance: {tolerance}: must be from 1e-09 to 0.5"):
        search(experiment, key="cluster.num_nodes", start=1, end=2, tolerance=tolerance, simulate=simulate)


def test_a_float_is_bisected_too(find: Callable[..., Crossover]) -> None:
    found = find("calibration.backward_slowdown", 1.0, 3, lambda s: s.calibration.backward_slowdown / 1.5)
    assert found.crossings[0].high.value == pytest.approx(1.5, rel=2e-4)


@pytest.mark.parametrize(
    ("key", "start", "end", "message"),
    [
        (BANDWIDTH, "1", "2 Gbit/s", f"--from: {BANDWIDTH}: '1': write a number and a unit"),
        (BANDWIDTH, "1 Gbit/s", 2, f"--to: {BANDWIDTH}: 2: write a number and a unit"),
        (BANDWIDTH, "1 Gbit/s", "1000 Mbit/s", "--from: '1 Gbit/s': equals --to; give two values"),
        ("cluster.num_node", 1, 2, "--from: cluster: unknown key 'num_node'. Did you mean 'num_nodes'?"),
        (
            "strategy.kind",
            "binsgdm",
            "all_reduce",
            "--break-even: strategy.kind: 'binsgdm': not a number; give the key of",
        ),
        ("strategy.overlap", False, True, "--break-even: strategy.overlap: False: not a number"),
        ("cluster.slow_nodes", [{"node": 0}], [], "not a number"),
    ],
)
def test_a_wrong_key_or_end_is_refused(
    find: Callable[..., Crossover], key: str, start: object, end: object, message: str
) -> None:
    with refused(message):
        find(key, start, end, lambda _: 1.0)


def test_a_missing_baseline_is_asked_for(tmp_path: Path) -> None:
    data = pod()
    del data["baseline"]
    experiment = load_experiment(str(write(tmp_path / "pod.toml", data)))
    with pytest.raises(SimnetError, match="pod: baseline: missing; add --set baseline=all_reduce"):
        search(experiment, key="cluster.num_nodes", start=1, end=2, simulate=simulate)


def test_keys_inside_lists_and_tables_are_reached(tmp_path: Path) -> None:
    data = pod(cluster__slow_nodes=[{"node": 0}], calibration={"kernels": {"pack": {"time_per_element": "1 ns"}}})
    experiment = load_experiment(str(write(tmp_path / "pod.toml", data)))
    times = itertools.count(1)
    for key, start, end in (
        ("cluster.slow_nodes.0.nic_slowdown", 1.0, 2.0),
        ("calibration.kernels.pack.time_per_element", "1 ns", "2 ns"),
    ):
        assert search(experiment, key=key, start=start, end=end, simulate=_taking(lambda _: 1 + next(times))).trials


@pytest.mark.parametrize(
    ("changes", "key", "start", "end", "reason"),
    [
        ({}, "workload.batch_per_rank", 1, 64, "forward and backward are given as times of one micro-batch"),
        (
            {"calibration": {"inter_node": {"latency": "9 us"}}},
            "cluster.inter_node.latency",
            "1 us",
            "1 ms",
            "calibration.inter_node.latency replaces it",
        ),
        ({"cluster__num_nodes": 1}, BANDWIDTH, "1 Gbit/s", "2 Gbit/s", "one node sends nothing over its NIC"),
        ({"cluster__ranks_per_node": 1}, "cluster.intra_node.bandwidth", "1 GB/s", "2 GB/s", "nodes of one rank send"),
        ({}, "run.steps", 1, 9, "steps count in the end-to-end time alone"),
        ({}, "calibration.all_to_all_efficiency", 0.1, 0.2, "another limit decides"),
    ],
)
def test_a_key_without_effect_is_refused_with_a_reason(
    tmp_path: Path, changes: dict[str, object], key: str, start: object, end: object, reason: str
) -> None:
    experiment = load_experiment(str(write(tmp_path / "pod.toml", pod(**changes))))
    simulated = _taking(lambda _: 0.5) if key == "calibration.all_to_all_efficiency" else simulate
    with pytest.raises(SimnetError) as caught:
        search(experiment, key=key, start=start, end=end, simulate=simulated)
    assert str(caught.value).startswith(f"--break-even: {key}: has no effect here: all ")
    assert f"give the same two times; {reason}" in str(caught.value)


def test_whether_the_strategy_pays_is_told_at_every_value(find: Callable[..., Crossover]) -> None:
    found = find("cluster.num_nodes", 1, 64, lambda s: {1: 1.0, 2: 1 / 1.04}.get(s.cluster.num_nodes, 0.5))
    verdicts = {trial.value: trial.speedup.verdict for trial in found.trials}
    assert (verdicts[1], verdicts[2], verdicts[64]) == ("does not pay", "does not pay", "pays")


def test_slow_kernels_count_in_whether_it_pays(find: Callable[..., Crossover]) -> None:
    def seconds(scenario: Scenario) -> float:
        slow = scenario.calibration.codec_efficiency < 0.5
        return scenario.cluster.inter_node.bytes_per_s / 1e9 * (2.0 if slow else 1.0)

    found = find(BANDWIDTH, "1 Gbit/s", "100 Gbit/s", seconds)
    told = {trial.speedup.verdict for trial in found.trials if 1.2 < trial.speedup.value < 2.1}
    assert found.trials[0].speedup.verdict == "pays"
    assert told == {"kernels not timed"}
