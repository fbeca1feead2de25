"""Costs by number of nodes and by library: interpolated between, kept and widened beyond."""

import math

import pytest
from msgspec import structs

from simnet.cluster import topology
from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.cluster.network_costs import DOUBLING_FACTOR, LibraryCosts, NodesPoint
from simnet.core.units import Duration, Size
from simnet.engine import intervals, scenario
from simnet.engine.simulation import simulate
from tests.helpers.refusals import refused

TWO = NodesPoint(nodes=2, efficiency=0.8, alpha_s=Duration(1e-5), intervals={"efficiency": (0.9, 1.1)})
EIGHT = NodesPoint(nodes=8, efficiency=0.2, alpha_s=Duration(4e-5))
BOTH = Calibration(by_nodes=(TWO, EIGHT), inter_node=LinkCalibration(efficiency=0.99))

OUTSIDE = {"nodes": 2, "efficiency": 0.5, "intervals": {"efficiency": [2.0, 3.0]}}


@pytest.mark.parametrize(("num_nodes", "efficiency", "alpha_s"), [(2, 0.8, 1e-5), (4, 0.4, 2e-5), (8, 0.2, 4e-5)])
def test_costs_go_evenly_over_the_logarithm_of_the_nodes(num_nodes, efficiency, alpha_s):
    there = BOTH.at_nodes(num_nodes)
    assert there.inter_node.efficiency == pytest.approx(efficiency)
    assert there.inter_node.alpha_s == pytest.approx(alpha_s)
    assert not there.by_nodes
    if num_nodes == 4:
        assert there.intervals["inter_node.efficiency"] == pytest.approx((0.9**0.5, 1.1**0.5))
    plain = Calibration(inter_node=LinkCalibration(efficiency=0.5), intervals={"inter_node.efficiency": (0.9, 1.1)})
    assert plain.at_nodes(num_nodes) is plain, "without points"


def test_beyond_the_points_the_nearest_stays_and_its_interval_grows_by_doublings():
    calibrations = [BOTH.at_nodes(num_nodes) for num_nodes in (8, 16, 32, 128)]
    assert {calibration.inter_node.efficiency for calibration in calibrations} == {0.2}
    assert "inter_node.efficiency" not in calibrations[0].intervals
    widths = [math.log(calibration.intervals["inter_node.efficiency"][1]) for calibration in calibrations[1:]]
    step = math.log(DOUBLING_FACTOR)
    assert widths == pytest.approx([step, step * math.sqrt(2), step * 2])
    alone = BOTH.at_nodes(1).intervals["inter_node.efficiency"]
    assert math.log(alone[1]) == pytest.approx(math.hypot(math.log(1.1), step))


def test_a_latency_that_no_point_holds_is_as_unsure_beyond_them() -> None:
    points = (NodesPoint(nodes=2, efficiency=0.8), NodesPoint(nodes=4, efficiency=0.8))
    link = LinkCalibration(efficiency=0.99, alpha_s=Duration(1e-5))
    calibration = Calibration(by_nodes=points, inter_node=link, intervals={"inter_node.latency": (0.9, 1.1)})
    inside, outside = (calibration.at_nodes(nodes).intervals["inter_node.latency"] for nodes in (4, 8))
    assert inside == pytest.approx((0.9, 1.1))
    assert outside[1] == pytest.approx(math.exp(math.hypot(math.log(1.1), math.log(DOUBLING_FACTOR))))
    plain = Calibration(by_nodes=points, inter_node=link)
    assert "inter_node.latency" not in plain.at_nodes(4).intervals
    assert "inter_node.latency" in plain.at_nodes(8).intervals


def test_curves_of_two_points_are_mixed_at_the_sizes_of_both():
    curve = ((Size(1000), 0.1), (Size(4000), 0.4))
    points = (NodesPoint(nodes=2, efficiency=curve), NodesPoint(nodes=8, efficiency=0.9))
    mixed = Calibration(by_nodes=points).at_nodes(4).inter_node.efficiency
    assert [size for size, _ in mixed] == [1000, 4000]
    assert [value for _, value in mixed] == pytest.approx([math.sqrt(0.1 * 0.9), math.sqrt(0.4 * 0.9)])


def test_a_library_has_costs_of_its_own_for_the_strategies_that_it_carries():
    mpi = LibraryCosts(carries=("one_bit_adam",), poll_s=Duration(5e-6), by_nodes=(TWO, EIGHT))
    calibration = Calibration(libraries={"mpi": mpi}, poll_s=Duration(1e-6)).at_nodes(4)
    assert calibration.for_strategy("one_bit_adam").poll_s == 5e-6
    assert calibration.for_strategy("one_bit_adam").inter_node.efficiency == pytest.approx(0.4)
    assert calibration.for_strategy("binsgdm").poll_s == 1e-6
    assert calibration.for_strategy("binsgdm").inter_node.efficiency == 1.0


def test_a_topology_is_built_with_the_costs_of_its_number_of_nodes_and_its_library():
    asked = load({"cluster.num_nodes": 4})
    mpi = LibraryCosts(carries=("one_bit_adam",), efficiency=0.6)
    calibration = structs.replace(asked.calibration, by_nodes=(TWO, EIGHT), libraries={"mpi": mpi})
    assert topology.build(asked.cluster, calibration).inter_node.curve == ((1.0, pytest.approx(0.4)),)
    assert topology.build(asked.cluster, calibration, "one_bit_adam").inter_node.curve == ((1.0, 0.6),)


def test_a_library_slows_the_strategy_that_it_carries_and_not_its_baseline():
    before = load({"strategy": {"kind": "one_bit_adam"}, "baseline": {"kind": "all_reduce"}})
    slow = LibraryCosts(carries=("one_bit_adam",), efficiency=0.01)
    after = simulate(structs.replace(before, calibration=structs.replace(before.calibration, libraries={"mpi": slow})))
    first = simulate(before)
    assert after.baseline.iteration_s == first.baseline.iteration_s
    assert after.result.iteration_s > 2 * first.result.iteration_s


def test_a_result_beyond_the_measured_nodes_says_so_and_is_wider():
    points = [{"nodes": 2, "efficiency": 0.5}, {"nodes": 4, "efficiency": 0.4}]
    measured = [*points, {"nodes": 64, "efficiency": 0.4}]
    inside, outside = (simulate(load({"cluster.num_nodes": 64}, known, draws=20)) for known in (measured, points))
    assert not any("the network was measured" in note for note in inside.notes)
    assert "the network was measured on 2, 4 nodes, not on 64: " in " ".join(outside.notes)
    assert outside.result.iteration_s == inside.result.iteration_s
    low, high = outside.intervals["iteration_s"]
    assert low < 0.9 * outside.result.iteration_s < 1.1 * outside.result.iteration_s < high
    inner_low, inner_high = inside.intervals["iteration_s"]
    assert low < inner_low < inner_high < high


def test_the_costs_of_a_library_are_drawn_within_their_intervals():
    mpi = LibraryCosts(carries=("one_bit_adam",), efficiency=0.5, intervals={"efficiency": (0.5, 2.0)})
    calibration = Calibration(libraries={"mpi": mpi})
    drawn = {lane.libraries["mpi"].efficiency for lane in intervals.drawn_calibrations(calibration, 20)}
    assert len(drawn) > 15


def test_the_all_reduce_that_the_bandwidths_go_with_is_the_default_and_a_named_one_is_taken() -> None:
    fitted = {"calibration.all_reduce": "hierarchical"}
    assert simulate(load(fitted)).baseline.algorithm == "hierarchical"
    assert simulate(load(fitted | {"baseline.algorithm": "ring"})).baseline.algorithm == "ring"
    assert simulate(load({})).baseline.algorithm == "ring"


@pytest.mark.parametrize(
    ("changes", "points", "sentence"),
    [
        (
            {},
            [{"nodes": 4, "efficiency": 0.5}, {"nodes": 2, "efficiency": 0.6}],
            "by_nodes: nodes [4, 2]: must increase",
        ),
        (
            {},
            [{"nodes": 2, "efficiency": 0.5}, {"nodes": 2, "efficiency": 0.6}],
            "by_nodes: nodes [2, 2]: must increase",
        ),
        ({}, [{"nodes": 2, "efficiency": 1.5}], "efficiency"),
        ({}, [{"nodes": 0, "efficiency": 0.5}], "nodes"),
        ({}, [OUTSIDE], "two factors with 1 between them"),
        ({}, [OUTSIDE | {"intervals": {"efficiency": [1.1, 0.9]}}], "two factors with 1 between them"),
        ({}, [{"nodes": 2, "intervals": {"latency": [0.5, 2.0]}}], "'latency': needs a value in the same table"),
        ({"calibration.all_reduce": "rings"}, [], "all_reduce: 'rings': unknown. Did you mean 'ring'"),
        (
            {"calibration.libraries": {"mpi": {"carries": ["one_bit_adm"], "efficiency": 0.5}}},
            [],
            "libraries.mpi.carries: 'one_bit_adm': unknown strategy. Did you mean",
        ),
    ],
)
def test_points_and_libraries_that_cannot_be_are_refused(changes, points, sentence):
    with refused(sentence):
        simulate(load(changes, points))


def load(changes, points=(), draws=0):
    """Return a shipped experiment with changed keys and points."""
    more = {"calibration.by_nodes": points} if points else {}
    return scenario.load("bert_base_10gbit", {"calibration": "ideal", "run.draws": draws, **more, **changes})
