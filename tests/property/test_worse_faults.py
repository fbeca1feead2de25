"""A worse fault never makes a step faster: whatever the strategy, more of it costs as much or more."""

from typing import Any, NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simnet.cluster.hardware import Calibration, Fault
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy, BinSGDM, DenseAllReduce, OneBitAdam
from simnet.workload.workload import Workload
from tests.helpers.fault_samples import cluster, fault

ROUNDING = 1e-9
NODES, PER_NODE = 3, 2
WORKLOAD = Workload(
    gradient_bytes=Size(40e6), forward_s=Duration(0.01), backward_s=Duration(0.02), optimizer_s=Duration(0.002)
)
STRATEGIES: list[AnyStrategy] = [
    DenseAllReduce(),
    DenseAllReduce(bucketing="fused", overlap=False),
    BinSGDM(),
    BinSGDM(topology="flat", overlap=False),
    OneBitAdam(),
]
node, rank = st.integers(0, NODES - 1), st.integers(0, NODES * PER_NODE - 1)


class Kind(NamedTuple):
    """A kind of fault: where it is, and how much of it there is, from little to much."""

    name: str
    where: st.SearchStrategy[dict[str, Any]]
    key: str
    amounts: tuple[Any, ...]


nodes = st.builds(lambda place: {"at_nodes": [place]}, node)
KINDS = [
    Kind("slow_rank", st.builds(lambda n, r: {"node": n, "local_rank": r}, node, st.integers(0, 1)),
         "compute_slowdown", (1.0, 1.1, 2.0, 9.0)),
    Kind("slow_node", st.builds(lambda place: {"node": place}, node), "compute_slowdown", (1.0, 1.3, 4.0)),
    Kind("slow_node", st.builds(lambda place: {"node": place}, node), "nic_slowdown", (1.0, 1.3, 4.0)),
    Kind("slow_link", st.builds(lambda place: {"place": place}, node), "rate", (1.0, 0.7, 0.1)),
    Kind("slow_link", st.builds(lambda place: {"link": "port", "place": place}, rank), "rate", (1.0, 1e-3, 1e-5)),
    Kind("added_latency", nodes, "added", ("0 s", "10 us", "3 ms")),
    Kind("background_traffic", nodes, "share", (0.001, 0.4, 0.9)),
    Kind("background_traffic", nodes, "flows", (1, 2, 20)),
    Kind("packet_loss", nodes | st.just({}), "probability", (1e-6, 1e-4, 0.02, 0.4)),
    Kind("pause", st.builds(lambda place: {"ranks": [place], "every": 2}, rank), "pause", ("0 s", "1 ms", "1 s")),
    Kind("pause", st.just({"pause": "20 ms"}), "probability", (0.01, 0.3, 1.0)),
    Kind("other_nodes", nodes, "compute_slowdown", (0.5, 1.0, 3.0)),
    Kind("other_nodes", nodes, "nic_slowdown", (0.5, 1.0, 3.0)),
]  # fmt: skip
FIXED = {"packet_loss": {"round_trip": "200 us"}}


def step(strategy: AnyStrategy, *faults: Fault) -> StrategyResult:
    calibration = Calibration(memory_bytes_per_s=Bandwidth(1e12), collective_launch_s=Duration(20e-6))
    return simulate(
        Scenario(
            cluster=cluster(*faults, num_nodes=NODES, ranks_per_node=PER_NODE),
            workload=WORKLOAD,
            strategy=strategy,
            calibration=calibration,
            run=RunSettings(iterations=3, fidelity="grouped"),
        )
    ).result


@settings(max_examples=2 * settings.default.max_examples)
@given(st.sampled_from(KINDS), st.sampled_from(STRATEGIES), st.data())
def test_more_of_a_fault_never_makes_a_step_faster(kind: Kind, strategy: AnyStrategy, data: st.DataObject) -> None:
    place = FIXED.get(kind.name, {}) | data.draw(kind.where)
    at = data.draw(st.integers(0, len(kind.amounts) - 2))
    less, more = (
        step(strategy, fault(kind.name, **place, **{kind.key: kind.amounts[at + more_by]})) for more_by in (0, 1)
    )
    assert more.iteration_s >= (1 - ROUNDING) * less.iteration_s - less.approximation * less.iteration_s


@given(st.sampled_from(KINDS), st.sampled_from(KINDS), st.data())
def test_one_fault_more_never_makes_a_step_faster(first_kind: Kind, other: Kind, data: st.DataObject) -> None:
    strategy = data.draw(st.sampled_from(STRATEGIES))
    first, second = (
        fault(kind.name, **FIXED.get(kind.name, {}), **data.draw(kind.where), **{kind.key: kind.amounts[-1]})
        for kind in (first_kind, other)
    )
    assume("slow_node" not in {first_kind.name, other.name} and not first.contradicts(second))
    alone, both = step(strategy, first), step(strategy, first, second)
    assert both.iteration_s >= (1 - ROUNDING - alone.approximation) * alone.iteration_s
