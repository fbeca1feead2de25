"""NCCL's all-reduce: where it is the default, what it loads, and what it shares."""

import numpy as np
import pytest
from msgspec.structs import replace

from simnet.analysis import whatif
from simnet.cluster import nccl_model
from simnet.cluster.hardware import Calibration, LinkCalibration, SlowNode
from simnet.cluster.network_costs import DOUBLING_FACTOR, LibraryCosts, NodesPoint
from simnet.cluster.schedule import GroupKind
from simnet.collectives import algorithms, broadcast, link_loads
from simnet.core import lanes
from simnet.core.units import Bandwidth
from simnet.engine import intervals
from simnet.engine.prepared_scenario import StepLanes
from simnet.engine.scenario import RunSettings
from simnet.engine.simulation import simulate
from simnet.report import text
from simnet.strategies import BinSGDM, DenseAllReduce, TopK
from tests.helpers.refusals import refused
from tests.helpers.step_samples import scenario
from tests.helpers.topologies import INTER_BYTES_PER_S, INTRA_BYTES_PER_S, NCCL_COSTS, run_exact, run_folded, topology

FITTED = Calibration(nccl=NCCL_COSTS)
ONE_NODE = Calibration(nccl=replace(NCCL_COSTS, inter_node_efficiency=None))


@pytest.mark.parametrize(
    ("calibration", "num_nodes", "label"),
    [
        (FITTED, 4, "tree LL"),
        (FITTED, 1, "ring LL"),
        (ONE_NODE, 1, "ring LL"),
        (ONE_NODE, 2, "ring"),
        (Calibration(), 4, "ring"),
        (replace(FITTED, all_reduce="tree"), 4, "tree"),
    ],
)
def test_nccl_is_the_default_where_its_costs_are_known(calibration: Calibration, num_nodes: int, label: str) -> None:
    assert algorithms.choose(None, topology(num_nodes, 8, calibration), 1024.0).label == label


def test_nccl_by_name_is_refused_where_its_costs_are_not_known() -> None:
    for calibration, missing in ((Calibration(), "nccl,"), (ONE_NODE, "nccl.inter_node_efficiency,")):
        with refused(f"needs calibration.{missing} which simnet calibrate fits"):
            algorithms.choose("nccl", topology(2, 8, calibration), 1024.0)
    for costs, changes, said in (
        (NCCL_COSTS, {"intra_node_efficiency": None, "inter_node_efficiency": None}, "intra_node_efficiency: missing"),
        (WITH_NVLS, {"nvls_efficiency": None}, "nvls_start, nvls_efficiency: must be given together"),
        (WITH_NVLS, {"ll_tree_rate": Bandwidth(0)}, "ll_tree_rate: '0 B/s': must be at least 1 MB/s"),
    ):
        with pytest.raises(ValueError, match=said):
            replace(costs, **changes)


def test_auto_takes_nccl_and_never_what_it_does_not_have() -> None:
    for size in (8.0, 1e5, 1e9):
        for calibration in (FITTED, Calibration()):
            network = topology(8, 8, calibration)
            chosen = algorithms.choose("auto", network, size)
            assert chosen.algorithm in {"ring", "tree"}
            assert bool(chosen.protocol) == (calibration is FITTED)
    assert algorithms.choose("any", topology(8, 8), 8.0).algorithm == "halving_doubling"
    run = simulate(scenario(BinSGDM(), 2, calibration=FITTED, baseline=DenseAllReduce()))
    assert text.titles([run]) == ["BinSGDM", "DDP (fp32, NCCL's choice)"]
    assert run.baseline is not None
    assert run.baseline.algorithm == "tree Simple"


def test_an_exchange_that_another_library_carries_knows_nothing_of_nccl() -> None:
    by_mpi = replace(FITTED, libraries={"mpi": LibraryCosts(carries=("binsgdm",))})
    dense, signs = (
        simulate(scenario(strategy, 2, calibration=by_mpi)).result for strategy in (DenseAllReduce(), BinSGDM())
    )
    assert dense.algorithm == "tree Simple"
    carried = {span.algorithm for span in signs.spans if span.stream == "communication"}
    assert not any(name.endswith(nccl_model.PROTOCOLS) for name in carried)


@pytest.mark.parametrize(("num_nodes", "tree_bytes"), [(2, 1.0), (3, 1.5), (4, 2.0), (8, 2.0), (13, 2.0)])
def test_nics_carry_what_rings_and_trees_send(num_nodes: int, tree_bytes: float) -> None:
    network = topology(num_nodes, 4, FITTED)
    ring, tree = (algorithms.nccl_all_reduce(network.group("world"), name, "Simple") for name in ("ring", "tree"))
    ranks = 4 * num_nodes
    assert link_loads.nic_bytes_per_node(network, ring, 1.0) == pytest.approx(2 * (ranks - 1) / ranks)
    assert link_loads.nic_bytes_per_node(network, tree, 1.0) == pytest.approx(tree_bytes)
    _, executor = run_exact(network, tree, 1e6)
    sent = [size for link, size in executor.network.bytes_sent.items() if link.kind == "nic_tx"]
    inflated = link_loads.phases(network, tree, 1e6)[0][0].inflated_bytes["nic_tx"]
    assert max(sent) == pytest.approx(inflated)


@pytest.mark.parametrize("kind", ["world", "inter_node", "intra_node"])
@pytest.mark.parametrize("size", [64.0, 1e6, 3e7, 1e9])
@pytest.mark.parametrize("layout", [(4, 2), (2, 8), (3, 1), (1, 8)])
def test_an_all_gather_takes_the_closed_form_in_both_executors(
    layout: tuple[int, int], size: float, kind: GroupKind
) -> None:
    network = topology(*layout, FITTED)
    group = network.group(kind)
    gather = algorithms.choose_all_gather(network, group, size)
    if group.size == 1:
        assert not gather.rounds
        return
    # The rails of a node send their messages through the same NICs.
    at = nccl_model.rates(NCCL_COSTS, network.intra_node.bytes_per_s, network.inter_node.bytes_per_s)
    rails = layout[1] if kind == "inter_node" else 1
    gathers = nccl_model.gather_candidates(NCCL_COSTS, group.nodes, group.members_per_node)
    least_s = min(gather_.latency_s + rails * size * nccl_model.s_per_byte(gather_, at) for gather_ in gathers)
    assert run_folded(network, gather, size) == pytest.approx(least_s)
    assert run_exact(network, gather, size)[0] == pytest.approx(run_folded(network, gather, size))


@pytest.mark.parametrize("way", ["broadcast", "reduce"])
@pytest.mark.parametrize(("layout", "rate"), [((1, 8), 0.8 * INTRA_BYTES_PER_S), ((4, 8), 0.6 * INTER_BYTES_PER_S)])
def test_a_long_broadcast_takes_its_bytes_at_the_fitted_bandwidth(
    way: broadcast.Way, layout: tuple[int, int], rate: float
) -> None:
    network = topology(*layout, FITTED)
    schedule = algorithms.choose_broadcast(None, network, 1e13, network.group("world"), way)
    assert schedule.label == "ring Simple"
    # What filling the pipeline adds is a quarter of a rank's part in one node.
    assert run_folded(network, schedule, 1e13) == pytest.approx(1e13 / rate, rel=0.04)
    assert algorithms.choose_broadcast(None, network, 8.0, network.group("world"), way).label == "ring LL"
    assert algorithms.choose_broadcast("tree", network, 8.0, network.group("world"), way).label == "tree"


@pytest.mark.parametrize("way", ["broadcast", "reduce"])
@pytest.mark.parametrize("layout", [(4, 8), (5, 2), (3, 1), (1, 4)])
def test_bytes_out_of_a_node_are_those_of_the_node_that_sends_most(way: broadcast.Way, layout: tuple[int, int]) -> None:
    network = topology(*layout)
    world = network.group("world")
    for schedule in (broadcast.tree(world, way), broadcast.pipeline(world, 16, way)):
        _, executor = run_exact(network, schedule, 1e6)
        sent = [size for link, size in executor.network.bytes_sent.items() if link.kind == "nic_tx"]
        assert link_loads.nic_bytes_per_node(network, schedule, 1e6) == pytest.approx(max(sent))


def test_an_all_gather_is_half_of_a_ring_all_reduce() -> None:
    network = topology(4, 8, FITTED)
    world = network.group("world")
    gather = algorithms.choose_all_gather(network, world, 1e9)
    both = algorithms.nccl_all_reduce(world, "ring", "Simple")
    assert gather.label == "ring Simple"
    start_s = float(NCCL_COSTS.start_s)
    assert 2 * (run_folded(network, gather, 1e9) - start_s) == pytest.approx(run_folded(network, both, 1e9) - start_s)
    assert algorithms.choose_all_gather(network, world, 1e3).label == "ring LL"
    for calibration, num_nodes in ((Calibration(), 4), (ONE_NODE, 2)):  # without costs for these nodes
        network = topology(num_nodes, 8, calibration)
        assert algorithms.choose_all_gather(network, network.group("world"), 1e6).label == "ring"
    assert (
        algorithms.choose_all_gather(topology(2, 8, ONE_NODE), topology(2, 8).group("intra_node"), 1e3).protocol == "LL"
    )


def test_a_system_takes_at_each_bandwidth_the_protocol_that_is_fastest_there() -> None:
    gathering = TopK(ratio=1e-4, bucketing="fused", overlap=False)
    asked = scenario(gathering, 4, calibration=FITTED)
    there = [whatif.at_bandwidth(asked, 10.0**power) for power in range(4, 17)]
    alone = [simulate(at_rate).result.iteration_s for at_rate in there]
    assert StepLanes(there).of(gathering) == pytest.approx(alone)


def test_a_slow_nic_slows_the_whole_pipeline() -> None:
    slow = topology(4, 2, FITTED, slow_nodes=(SlowNode(node=2, nic_slowdown=3.0),))
    even = topology(4, 2, FITTED)
    schedule, size = algorithms.nccl_all_reduce(even.group("world"), "ring", "Simple"), 1e9
    latency_s = link_loads.lower_bound_s(even, schedule)
    bytes_s = run_exact(even, schedule, size)[0] - latency_s
    assert run_exact(slow, schedule, size)[0] == pytest.approx(latency_s + 3 * bytes_s)


def test_drawn_costs_move_the_time_and_fractions_stay_fractions() -> None:
    keys = ("start", "inter_node_hop", "exposed", "inter_node_efficiency")
    wide = replace(FITTED, intervals={f"nccl.{key}": (0.5, 3.0) for key in keys}, inter_node=LinkCalibration())
    drawn = [calibration.nccl for calibration in intervals.drawn_calibrations(wide, 20)]
    assert len({costs.exposed for costs in drawn if costs}) > 10
    assert all(costs is not None and costs.exposed <= 1 and costs.inter_node_efficiency <= 1 for costs in drawn)  # type: ignore[operator]
    result = simulate(scenario(DenseAllReduce(), 2, calibration=wide, run=RunSettings(draws=20)))
    low, high = result.intervals["iteration_s"]
    assert low < result.result.iteration_s < high


def test_the_bandwidth_is_less_sure_on_more_nodes_than_were_measured() -> None:
    key = "nccl.inter_node_efficiency"
    points = (NodesPoint(nodes=2, efficiency=0.5), NodesPoint(nodes=4, efficiency=0.5))
    fitted = replace(FITTED, by_nodes=points, intervals={key: (0.98, 1.02)})
    assert all(fitted.at_nodes(nodes).intervals[key] == pytest.approx((0.98, 1.02)) for nodes in (1, 2, 4))
    assert fitted.at_nodes(8).intervals[key][1] == pytest.approx(DOUBLING_FACTOR, rel=0.01)
    assert fitted.at_nodes(64).intervals[key][0] < 1 / DOUBLING_FACTOR


WITH_NVLS = replace(NCCL_COSTS, nvls_start_s=type(NCCL_COSTS.start_s)(2e-4), nvls_efficiency=0.5)


@pytest.mark.parametrize("num_nodes", [2, 4, 8])
@pytest.mark.parametrize("size", [1e6, 1e9])
def test_nvlstree_takes_the_closed_form_in_both_executors(num_nodes: int, size: float) -> None:
    costs = replace(WITH_NVLS, below_16_mib=1.5, from_16_mib=0.8)
    network = topology(num_nodes, 8, Calibration(nccl=costs))
    at = nccl_model.rates(costs, network.intra_node.bytes_per_s, network.inter_node.bytes_per_s)
    (nvls,) = [
        candidate for candidate in nccl_model.candidates(costs, num_nodes, 8) if candidate.algorithm == "nvls_tree"
    ]
    assert nvls.inter_bytes == (1.0 if num_nodes == 2 else 2.0)
    expected_s = costs.factor(size) * nccl_model.seconds(nvls, at, size)
    schedule = algorithms.nccl_all_reduce(network.group("world"), "nvls_tree", "Simple")
    assert run_folded(network, schedule, size) == pytest.approx(expected_s)
    assert run_exact(network, schedule, size)[0] == pytest.approx(expected_s)
    assert link_loads.lower_bound_s(network, schedule) <= expected_s


def test_nvlstree_is_chosen_where_it_is_the_fastest_and_calibrated() -> None:
    fast_nics = replace(WITH_NVLS, inter_node_efficiency=0.6, nvls_start_s=type(NCCL_COSTS.start_s)(5e-5))
    group = topology(2, 8, FITTED).group("world")
    assert "nvls_tree" in {schedule.algorithm for schedule in algorithms.nccl_variants(group, WITH_NVLS)}
    assert "nvls_tree" not in {schedule.algorithm for schedule in algorithms.nccl_variants(group, NCCL_COSTS)}
    assert algorithms.choose("nccl", topology(2, 8, Calibration(nccl=fast_nics)), 1e9).label == "nvls_tree Simple"


def test_factors_by_size_are_drawn_on_both_sides() -> None:
    spread = {"nccl.below_1_mib": (0.5, 2.0), "nccl.below_16_mib": (0.5, 2.0), "nccl.from_16_mib": (0.5, 2.0)}
    drawn = list(intervals.drawn_calibrations(replace(FITTED, intervals=spread), 20))
    factors = [calibration.nccl.from_16_mib for calibration in drawn if calibration.nccl]
    assert min(factors) < 0.7
    assert max(factors) > 1.4
    times = [
        link_loads.duration_s(net := topology(4, 8, calibration), algorithms.choose(None, net, 1e9), 1e9)
        for calibration in drawn
    ]
    assert [time / factor for time, factor in zip(times, factors, strict=True)] == pytest.approx(
        [times[0] / factors[0]] * 20
    )


def test_costs_that_differ_in_every_number_stand_side_by_side_as_lanes() -> None:
    rates = (2e9, 3e9)
    costs = [replace(WITH_NVLS, ll_tree_rate=Bandwidth(rate), from_16_mib=rate / 2e9) for rate in rates]
    group = topology(4, 8, FITTED).group("world")
    together = lanes.stacked(costs)
    for algorithm, protocol in (("tree", "LL"), ("nvls_tree", "Simple")):
        candidate = nccl_model.candidate(together, "all_reduce", algorithm, protocol, group.nodes, 8)
        at = nccl_model.rates(together, INTRA_BYTES_PER_S, INTER_BYTES_PER_S)
        whole = nccl_model.largest(
            candidate.intra_bytes / at.in_node(candidate.limit), candidate.inter_bytes / at.inter_node
        ) * np.ones(2)
        alone = [
            nccl_model.s_per_byte(
                nccl_model.candidate(lane, "all_reduce", algorithm, protocol, group.nodes, 8),
                nccl_model.rates(lane, INTRA_BYTES_PER_S, INTER_BYTES_PER_S),
            )
            for lane in costs
        ]
        assert whole.tolist() == pytest.approx(alone), algorithm
