"""Fits to measured collectives: what the simulator would take is what the fit finds again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from simnet.calibration import calibration_file, network
from simnet.calibration.fit import FittedPart
from simnet.calibration.measurement_file import MeasurementFile, Series
from simnet.calibration.network import TimedCollective
from simnet.cluster import topology
from simnet.cluster.hardware import Calibration, Cluster, Link, LinkCalibration
from simnet.cluster.network_costs import NodesPoint
from simnet.cluster.schedule import GroupKind, Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import direct, link_loads, ring
from simnet.core.units import Bandwidth, Duration
from tests.helpers.measurement_samples import measurements, setup
from tests.helpers.refusals import refused

SHAPES = ((2, 1, 1.25e8), (3, 1, 1.25e8), (4, 1, 2.5e7), (2, 2, 1.25e8), (8, 1, 2.5e7))
SIZES = (1e3, 3e4, 1e6, 2.5e7)
INTRA_BYTES_PER_S = 2e9
TRUE = Calibration(
    kind="measured",
    collective_launch_s=Duration(30e-6),
    message_s=Duration(40e-6),
    poll_s=Duration(15e-6),
    all_to_all_efficiency=0.65,
    intra_node=LinkCalibration(efficiency=0.8, alpha_s=Duration(20e-6)),
    inter_node=LinkCalibration(efficiency=0.95, alpha_s=Duration(200e-6)),
)


def cluster(nodes: int, per_node: int, nic_bytes_per_s: float) -> Cluster:
    intra = Link(bytes_per_s=Bandwidth(INTRA_BYTES_PER_S), alpha_s=Duration(0))
    inter = Link(bytes_per_s=Bandwidth(nic_bytes_per_s), alpha_s=Duration(0))
    return Cluster(num_nodes=nodes, ranks_per_node=per_node, intra_node=intra, inter_node=inter)


def schedules(nodes: Topology) -> Iterator[tuple[GroupKind, str, Schedule]]:
    kinds: tuple[GroupKind, ...] = ("world", "inter_node", "intra_node")
    for kind in kinds:
        group = nodes.group(kind)
        if group.size > 1:
            yield kind, "all_reduce", ring.all_reduce(group)
            yield kind, "all_gather", ring.all_gather(group)
            yield kind, "all_to_all", direct.all_to_all(group)


def simulated(calibration: Calibration, noise: float = 0.0, *, knows_nic: bool = True) -> MeasurementFile:
    """Return a measurement file in which every time is that of the simulator, with noise."""
    rng = np.random.default_rng(1)
    series = []
    for place, shape in enumerate(SHAPES):
        nodes = topology.build(cluster(*shape), calibration)
        for kind, name, schedule in schedules(nodes):
            for size in SIZES:
                time_s = link_loads.duration_s(nodes, schedule, size)
                lanes = {"world": 1, "inter_node": shape[1], "intra_node": shape[0]}[kind]
                labels = {
                    "group": kind, "group_size": nodes.group(kind).size, "message_bytes": int(size), "dtype": "uint8",
                    "num_groups": lanes,
                }  # fmt: skip
                values = tuple((time_s * np.exp(rng.normal(0, noise, 9))).tolist())
                series.append(
                    Series(kind="collective", name=name, setup=place, unit="s", labels=dict(labels), values=values)
                )
    return measurements(tuple(series), tuple(setup(*shape[:2], shape[2] if knows_nic else None) for shape in SHAPES))


def selected(calibration: Calibration = TRUE, **how: Any) -> list[TimedCollective]:
    return network.select_collectives([simulated(calibration, **how)], cluster(2, 2, 1.25e8))


def read_back(part: FittedPart) -> Calibration:
    return calibration_file.as_calibration(calibration_file.merge([part], {"kind": "measured"}))


@pytest.mark.slow
def test_what_the_simulator_takes_is_fitted_exactly_and_read_back() -> None:
    """Holds the terms of the fit and the simulator's schedules together, for every collective and group."""
    fitted = network.fit_collectives(selected(), [], draws=20)
    assert max(abs(residual.error) for residual in fitted.residuals) < 1e-3
    found = read_back(fitted)
    assert found.inter_node.alpha_s == pytest.approx(200e-6, rel=0.01)
    assert found.intra_node.alpha_s == pytest.approx(20e-6, rel=0.02)
    assert found.inter_node.efficiency == pytest.approx(0.95, rel=0.001)
    assert found.intra_node.efficiency == pytest.approx(0.8, rel=0.001)
    assert found.all_to_all_efficiency == pytest.approx(0.65, rel=0.001)
    assert [found.collective_launch_s, found.message_s, found.poll_s] == pytest.approx([30e-6, 40e-6, 15e-6], rel=0.02)
    assert found.inter_node.measured_on is None  # two bandwidths were measured


@pytest.mark.parametrize(
    ("backend", "latency_s", "window"), [("gloo", 0.0, "2 MiB"), ("nccl", 0.0, None), ("gloo", 2e-4, None)]
)
def test_gloo_without_a_latency_gets_its_window(backend: str, latency_s: float, window: str | None) -> None:
    link = LinkCalibration(efficiency=0.95, alpha_s=Duration(latency_s))
    whole = simulated(Calibration(inter_node=link, intra_node=link))
    whole = structs.replace(whole, setups=tuple(structs.replace(one, backend=backend) for one in whole.setups))
    rows = network.select_collectives([whole], cluster(2, 2, 1.25e8))
    table = network.fit_collectives(rows, [], draws=2).table
    assert isinstance(table["inter_node"], dict)
    assert isinstance(table["intra_node"], dict)
    assert table["inter_node"].get("window") == window
    assert "window" not in table["intra_node"]


@pytest.mark.slow
def test_a_bandwidth_that_changes_with_the_number_of_nodes_is_fitted_by_points() -> None:
    points = tuple(NodesPoint(nodes=nodes, efficiency=one) for nodes, one in ((2, 0.9), (4, 0.6), (8, 0.5)))
    true = structs.replace(TRUE, by_nodes=points)
    fitted = network.fit_collectives([row for row in selected(true) if row.send_bytes > 1e4], [], draws=20)
    found = read_back(fitted)
    wanted = {nodes: true.at_nodes(nodes).inter_node.efficiency for nodes in (2, 3, 4, 8)}
    assert {point.nodes: point.efficiency for point in found.by_nodes} == pytest.approx(wanted, rel=0.06)
    # One number for all, which the fit without points finds, is off by as much as the bandwidths differ.
    assert max(abs(residual.error) for residual in fitted.residuals) < 0.15
    assert all("efficiency" in point.intervals for point in found.by_nodes)


def test_one_measured_number_of_nodes_is_one_point_and_larger_clusters_are_beyond_it() -> None:
    found = read_back(network.fit_collectives([row for row in selected() if row.num_nodes == 4], [], draws=20))
    assert [(point.nodes, point.efficiency) for point in found.by_nodes] == [(4, found.inter_node.efficiency)]
    at = [found.at_nodes(nodes).intervals["inter_node.efficiency"] for nodes in (4, 8)]
    assert at[1][0] < at[0][0]


def test_few_numbers_of_nodes_and_fewer_that_are_slower_are_said() -> None:
    points = (NodesPoint(nodes=2, efficiency=0.5), NodesPoint(nodes=4, efficiency=0.9))
    rows = selected(structs.replace(TRUE, by_nodes=points))
    some = [row for row in rows if row.num_nodes in {2, 4} and row.level == "inter_node"]
    notes = network.fit_collectives(some, [], draws=5).notes
    assert any(note.startswith("2 numbers of nodes: beyond 4 nodes nothing shows") for note in notes)
    assert any(note.startswith("2 nodes reach 0.") and "fewer nodes are slower" in note for note in notes)


@pytest.mark.slow
def test_intervals_of_noisy_times_hold_the_truth() -> None:
    found = read_back(network.fit_collectives(selected(noise=0.05), [], draws=30))
    for key, value, true in (
        ("inter_node.latency", found.inter_node.alpha_s, 200e-6),
        ("inter_node.efficiency", found.inter_node.efficiency, 0.95),
    ):
        low, high = found.intervals[key]
        # doubled: one 90 % interval in ten misses
        assert isinstance(value, float)
        assert abs(true / value - 1) < 2 * max(1 - low, high - 1), (key, value, low, high)
        assert high - low < 0.3, key


@pytest.mark.slow
def test_an_efficiency_by_size_is_fitted_where_one_number_explains_badly() -> None:
    curve = ((1e3, 0.02), (1e4, 0.05), (3e5, 0.4), (1e7, 0.95))
    bent = Calibration(inter_node=LinkCalibration(efficiency=tuple((b, e) for b, e in curve), alpha_s=Duration(1e-5)))  # type: ignore[misc]
    rows = [row for row in network.select_collectives([simulated(bent)], None) if row.level == "inter_node"]
    fitted = network.fit_collectives([row for row in rows if not row.at_once], [], draws=20)
    link = fitted.table["inter_node"]
    assert isinstance(link, dict)
    assert isinstance(link["efficiency"], list)
    assert link["efficiency"][-1][1] == pytest.approx(0.95, rel=0.1)


def test_without_a_nominal_rate_the_fastest_measured_stands_for_it() -> None:
    rows = [
        row for row in network.select_collectives([simulated(TRUE, knows_nic=False)], None) if row.level == "intra_node"
    ]
    fitted = network.fit_collectives(rows, [], draws=20)
    assert fitted.table["intra_node"] == {
        "latency": fitted.table["intra_node"]["latency"],  # type: ignore[index]
        "measured_on": "12.8 Gbit/s",
        "efficiency": 1.0,
        "source": "12 series of collectives",
    }
    assert any("no nominal bandwidth" in note for note in fitted.notes)


def test_rows_that_are_held_out_are_predicted_and_not_fitted() -> None:
    rows = selected()
    fitted = network.fit_collectives(rows[::2], rows[1::2], draws=20)
    unseen = [residual for residual in fitted.residuals if residual.role == "held out"]
    assert len(unseen) == len(rows[1::2])
    assert max(abs(residual.error) for residual in unseen) < 0.01


def test_what_no_bandwidth_explains_or_too_few_rows_tell_is_refused() -> None:
    rows = selected()
    across = [row for row in rows if row.level == "inter_node"]
    tiny = min(row.send_bytes for row in across if not row.at_once)
    # Bytes take no time there, and all else takes longer than what was measured.
    wrong = [
        replace(row, samples_s=row.samples_s / 2) if row.num_nodes == 8 else row
        for row in across
        if not row.at_once and (row.num_nodes != 8 or row.send_bytes == tiny)
    ]
    for given, message in (
        (wrong, "collectives on 8 nodes: no bandwidth explains them"),
        (rows[:2], "2 collectives: at least 3"),
        ([row for row in across if row.at_once], "measure all_reduce or all_gather"),
    ):
        with refused(message):
            network.fit_collectives(given, [], draws=20)


@pytest.mark.slow
def test_a_bandwidth_known_for_a_part_of_the_files_is_refused() -> None:
    mixed = network.select_collectives([simulated(TRUE), simulated(TRUE, knows_nic=False)], None)
    with refused("only some of the files name the nominal bandwidth"):
        network.fit_collectives([row for row in mixed if row.level == "inter_node"], [], draws=20)
