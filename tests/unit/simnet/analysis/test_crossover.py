"""Where two strategies take the same time."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.analysis.crossing import bisect, bisect_by_guesses
from simnet.analysis.crossover import Crossover, search
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario, load_experiment
from simnet.engine.simulation import simulate
from tests.helpers.refusals import refused
from tests.helpers.report_samples import run_result
from tests.helpers.scenario_samples import pod, write

BANDWIDTH, LATENCY, NODES = "cluster.inter_node.bandwidth", "cluster.inter_node.latency", "cluster.num_nodes"
REPLACED = {"calibration": {"inter_node": {"latency": "9 us"}}}
Seconds = Callable[[Scenario], float]


def taking(seconds: Seconds) -> Callable[[Scenario], RunResult]:
    """Return a simulator in which the baseline takes 1 s, and the strategy what a function says."""

    def simulated(scenario: Scenario) -> RunResult:
        strategy, other = (
            replace(run_result().result, iterations_s=(iteration_s,)) for iteration_s in (seconds(scenario), 1.0)
        )
        return replace(run_result(), scenario=scenario, result=strategy, baseline=other)

    return simulated


@pytest.fixture
def find(tmp_path: Path) -> Callable[..., Crossover]:
    def found(key: str, start: object, end: object, seconds: Seconds | None, **more: Any) -> Crossover:
        data = {name: value for name, value in pod(**more.pop("changes", {})).items() if value is not None}
        experiment = load_experiment(str(write(tmp_path / "pod.toml", data)))
        return search(
            experiment, key=key, start=start, end=end, simulate=taking(seconds) if seconds else simulate, **more
        )

    return found


def test_a_quantity_is_found_within_the_tolerance(find: Callable[..., Crossover]) -> None:
    crossover = find(BANDWIDTH, "1 Gbit/s", "100 Gbit/s", lambda s: s.cluster.inter_node.bytes_per_s / 1.7e9)
    (crossing,) = crossover.crossings
    assert crossing.low.value <= 1.7e9 <= crossing.high.value
    assert 0 < crossing.relative_width <= 1e-4
    assert (crossing.low.is_faster, crossing.high.is_faster) == (True, False)
    assert crossing.high.text.startswith("13.6")
    assert crossing.high.text.endswith("Gbit/s")
    slowed = find("calibration.backward_slowdown", 1.0, 3, lambda s: s.calibration.backward_slowdown / 1.5)
    assert slowed.crossings[0].high.value == pytest.approx(1.5, rel=2e-4)


@pytest.mark.parametrize(
    ("ends", "faster", "crossings"),
    [
        ((1, 64), range(23, 65), [(22, 23)]),
        ((64, 1), range(23, 65), [(22, 23)]),
        ((1, 64), range(5, 40), [(4, 5), (39, 40)]),
    ],
)
def test_integers_are_found_exactly_each_where_it_changes(
    find: Callable[..., Crossover], ends: tuple[int, int], faster: range, crossings: list[tuple[int, int]]
) -> None:
    crossover = find(NODES, *ends, lambda s: 0.9 if s.cluster.num_nodes in faster else 1.1)
    assert [(crossing.low.value, crossing.high.value) for crossing in crossover.crossings] == crossings
    assert (crossover.strategy, crossover.baseline) == ("binsgdm", "all_reduce")


def test_a_range_from_zero_ends(find: Callable[..., Crossover]) -> None:
    (crossing,) = find(LATENCY, "0 s", "1 ms", lambda s: 0.5 if s.cluster.inter_node.alpha_s else 2.0).crossings
    assert crossing.low.value == 0
    assert crossing.high.value < 1e-10


@pytest.mark.parametrize(
    ("key", "start", "end"),
    [(BANDWIDTH, "1 MB/s", "1e308 B/s"), (LATENCY, "1e-300 s", "1 s"), (LATENCY, "0 s", "1e300 s")],
)
def test_ends_that_are_far_apart_are_searched(find: Callable[..., Crossover], key: str, start: str, end: str) -> None:
    limit = 1e100 if key == BANDWIDTH else 1e-100

    def seconds(scenario: Scenario) -> float:
        link = scenario.cluster.inter_node
        return 2.0 if (link.bytes_per_s if key == BANDWIDTH else link.alpha_s) > limit else 0.5

    crossover = find(key, start, end, seconds)
    values = [trial.value for trial in crossover.trials]
    assert len(set(values)) == 9
    assert values == sorted(values)
    (crossing,) = crossover.crossings
    assert crossing.low.value <= limit
    assert limit < crossing.high.value <= max(limit * 1.001, 1e-8 * values[-1])


@pytest.mark.parametrize(
    ("key", "start", "end", "message", "options"),
    [
        (BANDWIDTH, "1", "2 Gbit/s", f"--from: {BANDWIDTH}: '1': write a number and a unit", {}),
        (BANDWIDTH, "1 Gbit/s", 2, f"--to: {BANDWIDTH}: 2: write a number and a unit", {}),
        (BANDWIDTH, "1 Gbit/s", "1000 Mbit/s", "--from: '1 Gbit/s': equals --to; give two values", {}),
        ("cluster.num_node", 1, 2, "--from: cluster: unknown key 'num_node'. Did you mean 'num_nodes'?", {}),
        ("strategy.kind", "binsgdm", "qsgd", "--break-even: strategy.kind: 'binsgdm': not a number; give the key", {}),
        ("strategy.overlap", False, True, "--break-even: strategy.overlap: False: not a number", {}),
        ("cluster.slow_nodes", [{"node": 0}], [], "not a number", {}),
        *(
            (NODES, 1, 2, f"--tolerance: {tolerance}: must be from 1e-09 to 0.5", {"tolerance": tolerance})
            for tolerance in (math.nan, 0.0, 0.6)
        ),
        (NODES, 1, 2, "pod: nothing to compare with: tuned DDP is not known", {"changes": {"baseline": None}}),
    ],
)
def test_what_cannot_be_searched_is_refused(
    find: Callable[..., Crossover], key: str, start: object, end: object, message: str, options: dict[str, Any]
) -> None:
    with refused(message):
        find(key, start, end, None if "changes" in options else lambda _: 1.0, **options)


def test_keys_inside_lists_and_tables_are_reached(find: Callable[..., Crossover]) -> None:
    tables = {
        "cluster__slow_nodes": [{"node": 0}],
        "calibration": {"kernels": {"pack": {"time_per_element": "1 ns"}}},
    }
    times = itertools.count(1)
    for key, start, end in (
        ("cluster.slow_nodes.0.nic_slowdown", 1.0, 2.0),
        ("calibration.kernels.pack.time_per_element", "1 ns", "2 ns"),
    ):
        assert find(key, start, end, lambda _: 1 + next(times), changes=tables).trials


@pytest.mark.parametrize(
    ("changes", "key", "start", "end", "reason"),
    [
        ({}, "workload.batch_per_rank", 1, 64, "forward and backward are given as times of one micro-batch"),
        (REPLACED, LATENCY, "1 us", "1 ms", "calibration.inter_node.latency replaces it"),
        ({"cluster__num_nodes": 1}, BANDWIDTH, "1 Gbit/s", "2 Gbit/s", "one node sends nothing over its NIC"),
        ({"cluster__ranks_per_node": 1}, "cluster.intra_node.bandwidth", "1 GB/s", "2 GB/s", "nodes of one rank send"),
        ({}, "run.steps", 1, 9, "steps count in the end-to-end time alone"),
        ({}, "calibration.all_to_all_efficiency", 0.1, 0.2, "another limit decides"),
    ],
)
def test_a_key_without_effect_is_refused_with_a_reason(
    find: Callable[..., Crossover], changes: dict[str, object], key: str, start: object, end: object, reason: str
) -> None:
    seconds = (lambda _: 0.5) if key == "calibration.all_to_all_efficiency" else None
    with refused(f"give the same two times; {reason}", start=f"--break-even: {key}: has no effect here: all "):
        find(key, start, end, seconds, changes=changes)


def test_whether_the_strategy_pays_is_told_at_every_value(find: Callable[..., Crossover]) -> None:
    crossover = find(NODES, 1, 64, lambda s: {1: 1.0, 2: 1 / 1.04}.get(s.cluster.num_nodes, 0.5))
    verdicts = {trial.value: trial.speedup.verdict for trial in crossover.trials}
    assert (verdicts[1], verdicts[2], verdicts[64]) == ("does not pay", "does not pay", "pays")
    tie, _ = find(NODES, 1, 2, lambda s: float(s.cluster.num_nodes)).trials
    assert (tie.speedup.value, tie.is_faster) == (1.0, False)


def test_slow_kernels_count_in_whether_it_pays(find: Callable[..., Crossover]) -> None:
    def seconds(scenario: Scenario) -> float:
        slow = scenario.calibration.codec_efficiency < 0.5
        return scenario.cluster.inter_node.bytes_per_s / 1e9 * (2.0 if slow else 1.0)

    crossover = find(BANDWIDTH, "1 Gbit/s", "100 Gbit/s", seconds)
    verdicts = {trial.speedup.verdict for trial in crossover.trials if 1.2 < trial.speedup.value < 2.1}
    assert crossover.trials[0].speedup.verdict == "pays"
    assert verdicts == {"kernels not timed"}


SHAPES: dict[str, Callable[[float, float], float]] = {
    "hyperbola": lambda value, root: root / value - 1,
    "logarithm": lambda value, root: math.log(value / root),
    "step": lambda value, root: 1.0 if value < root else -2.0,
    "bent": lambda value, root: 1e-6 * (root - value) if value < root else 1e6 * (root - value),
    "touching": lambda value, root: max(0.0, 1 - value / root),
}


@given(
    low=st.floats(1e-3, 1e9),
    ratio=st.floats(1.01, 100.0),
    part=st.floats(0.0, 1.0),
    tolerance=st.sampled_from([1e-4, 1e-2, 0.3]),
    shape=st.sampled_from(sorted(SHAPES)),
)
def test_asking_little_finds_the_same_as_asking_at_every_middle(
    low: float, ratio: float, part: float, tolerance: float, shape: str
) -> None:
    high, root = low * ratio, low * ratio**part

    def excess(value: float) -> float:
        return SHAPES[shape](value, root)

    if (excess(low) > 0) == (excess(high) > 0):
        return
    assert bisect_by_guesses(low, high, tolerance, excess) == bisect(low, high, tolerance, lambda v: excess(v) > 0)


@pytest.mark.parametrize(("tolerance", "most"), [(1e-2, 7), (1e-6, 9)])
def test_a_smooth_function_is_asked_less_often_than_by_halving(tolerance: float, most: int) -> None:
    asked: list[float] = []

    def excess(value: float) -> float:
        asked.append(value)
        return 17.0 / value - 1

    bisect_by_guesses(10.0, 25.0, tolerance, excess)
    assert len(asked) <= most
    assert len(asked) == len(set(asked))
