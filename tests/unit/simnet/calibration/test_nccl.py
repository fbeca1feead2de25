"""The model of NCCL explains logs of nccl-tests, and each log is used for what it measures."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace as changed

from simnet.calibration import calibration_file, nccl, nccl_log, network
from simnet.calibration.fit import FittedPart, Interval
from simnet.calibration.nccl_log import NcclLog
from simnet.cluster import nccl_model, topology
from simnet.cluster.hardware import Calibration
from simnet.cluster.nccl_costs import NcclCosts
from simnet.collectives import algorithms, link_loads
from simnet.core import files
from simnet.core.units import Duration
from simnet.validation import shipped_parts as shipped
from tests.helpers.golden import GOLDEN
from tests.helpers.nccl_logs import Run
from tests.helpers.refusals import refused

LARGE = 16 * 1024**2
AZURE = shipped.cluster("azure_nd_a100_v4")


@cache
def log(gpus: int) -> NcclLog:
    name = f"a100_azure_nd_v4_{gpus}gpus.log"
    shipped = files.data_path("published", "nccl-tests", name)
    return nccl_log.read(shipped if gpus > 1 else GOLDEN / name)


def fit_of(rows: nccl.Rows) -> tuple[NcclCosts, dict[str, Interval]]:
    return nccl.fit_costs(rows, nccl.nominal_rates(AZURE))


@cache
def costs(*gpus: int) -> NcclCosts:
    return fit_of(nccl.select([log(count) for count in gpus]))[0]


def error(fitted: NcclCosts, gpus: int, least_bytes: int = LARGE) -> float:
    """Return the mean absolute relative error from a size on, up to 16 times that size if it is below 16 MiB."""
    (rows,) = nccl.select([log(gpus)], least_bytes)
    inside = rows if least_bytes >= LARGE else rows.select(rows.message_bytes < 16 * least_bytes)
    return float(np.mean(np.abs(inside.modelled_s(fitted) / inside.times_s - 1)))


def test_what_few_rows_leave_open_has_an_interval_as_wide_as_other_clusters_differ() -> None:
    few = replace(log(16), rows=log(16).rows[7:17])  # three sizes below 1 MiB
    fitted = nccl.fit_part([few], [], None)
    whole = calibration_file.merge([fitted], {"kind": "measured"})
    intervals = whole["intervals"]
    assert isinstance(intervals, dict)
    # What the rows leave open is as wide as it is over clusters.
    low, high = intervals["nccl.inter_node_hop"]
    assert high / low > 15
    low, high = intervals["nccl.inter_node_efficiency"]
    assert high / low < 1.3
    assert any("at two nodes a tree sends half as much as beyond" in note for note in fitted.notes)


@pytest.mark.parametrize(("gpus", "bound"), [(2, 0.02), (4, 0.02), (8, 0.04), (16, 0.035), (32, 0.04)])
def test_all_logs_are_fitted_together_within_five_percent(gpus: int, bound: float) -> None:
    assert error(costs(2, 4, 8, 16, 32), gpus) < bound


@pytest.mark.parametrize("known", [(8, 16), (2, 4, 8, 16)])
def test_32_gpus_are_predicted_from_fewer_within_five_percent(known: tuple[int, ...]) -> None:
    assert error(costs(*known), 32) < 0.05
    assert error(costs(*known), 32, 1024**2) < (0.062 if 2 in known else 0.11)


def chosen(fitted: NcclCosts, num_nodes: int, message_bytes: float) -> str:
    at = nccl.rates_of(fitted)
    return nccl_model.fastest(nccl_model.candidates(fitted, num_nodes, 8), at, message_bytes).name


def test_protocol_and_algorithm_change_with_size() -> None:
    fitted, sizes = costs(2, 4, 8, 16), (4096, 2**20, 2**30)
    assert [chosen(fitted, 4, size) for size in sizes] == ["tree LL", "tree LL128", "ring Simple"]
    assert [chosen(fitted, 1, size) for size in sizes] == ["ring LL", "ring LL128", "ring Simple"]


GIVEN = NcclCosts(
    start_s=Duration(4e-5),
    ll_start_s=Duration(8e-6),
    ll_hop_s=Duration(1.5e-6),
    inter_node_hop_s=Duration(3e-6),
    ll_efficiency=0.1,
    exposed=0.3,
    intra_node_efficiency=2e11,
    inter_node_efficiency=1e11,
)


def test_fitting_what_the_model_made_gives_its_costs_back() -> None:
    seen = nccl.select([log(count) for count in (2, 4, 8, 16)])
    made = tuple(replace(one, times_s=one.modelled_s(GIVEN)) for one in seen)
    found, intervals = fit_of(made)
    assert len(intervals) == 10
    for name, (low, high) in intervals.items():
        given = getattr(GIVEN, name) or GIVEN.inter_node_hop_s
        if name == "ll_tree_rate":  # the trees of GIVEN are as fast as its rings
            continue
        assert low / 1.1 < given / getattr(found, name) < high * 1.1, name
        if "efficiency" in name or name == "start_s":
            assert getattr(found, name) == pytest.approx(given, rel=0.03), name


def as_calibration(part: FittedPart) -> Calibration:
    return calibration_file.as_calibration(calibration_file.merge([part], {"kind": "measured"}))


def test_a_calibration_simulated_with_the_defaults_takes_the_fitted_times_at_every_size_and_group() -> None:
    known = costs(2, 4, 8, 16)
    calibrated = as_calibration(nccl.fit_part([log(count) for count in (2, 4, 8, 16)], [], AZURE))
    for one in map(log, (2, 4, 8, 16, 32)):
        nodes = topology.build(changed(AZURE, num_nodes=one.num_nodes, ranks_per_node=one.ranks_per_node), calibrated)
        sizes = np.array([float(row.message_bytes) for row in one.rows])
        expected = nccl.TimedShape(
            num_nodes=one.num_nodes, ranks_per_node=one.ranks_per_node, message_bytes=sizes, times_s=sizes
        ).modelled_s(known)
        simulated = [link_loads.duration_s(nodes, algorithms.choose(None, nodes, size), size) for size in sizes]
        # the file rounds its numbers to four digits or so
        assert simulated == pytest.approx(expected.tolist(), rel=1e-3), one.world_size


def test_intervals_hold_the_value_and_are_narrow_where_many_rows_tell_it() -> None:
    fitted = nccl.fit_part([log(8), log(16)], [log(32)], None)
    low, high = fitted.intervals["nccl.inter_node_efficiency"]
    assert 0.9 < low < 1 < high < 1.1
    assert {residual.role for residual in fitted.residuals if "32 GPUs" in residual.series} == {"held out"}
    (part,) = nccl.fit_logs([IN_NODE, ACROSS], [], AZURE, is_needed=True)
    assert all("(90 %:" in text for text in part.shown.values())
    assert all(low < 1 < high for low, high in (part.intervals[f"nccl.{key}"] for key in nccl.BEYOND))


def test_too_few_large_messages_and_a_cluster_slower_than_its_logs_are_refused() -> None:
    small = replace(log(8), rows=tuple(row for row in log(8).rows if row.message_bytes < LARGE // 16))
    with refused("0 times from 1 MiB on"):
        nccl.fit_costs(nccl.select([small]))
    with refused("inter_node: 25 GB/s: the logs reach ", " must be at least as fast"):
        nccl.fit_part([log(8), log(16)], [], changed(AZURE, nics_per_node=1))


def test_the_latency_of_a_far_cluster_is_written_and_counts_for_its_own() -> None:
    near, away = (
        nccl.fit_part(
            [log(8), log(16)], [], changed(AZURE, inter_node=changed(AZURE.inter_node, alpha_s=Duration(one)))
        )
        for one in (4e-6, 3e-3)
    )
    assert "fabric_latency" not in near.table["nccl"]
    assert away.table["nccl"] == {**near.table["nccl"], "fabric_latency": "3 ms"}
    found = as_calibration(away).nccl
    assert found is not None
    assert nccl_model.added_hop_s(found, 3e-3) == 0


def made(num_nodes: int, ranks_per_node: int, program: str, bytes_per_us: float, ratio: float) -> NcclLog:
    run = Run(
        num_nodes=num_nodes, ranks_per_node=ranks_per_node, program=f"{program}_perf", latency_us=90.0 * num_nodes,
        bytes_per_us=bytes_per_us, ratio=ratio,
    )  # fmt: skip
    (found,) = nccl_log.parse(run.text(), f"{program} {num_nodes} x {ranks_per_node}")
    return found


IN_NODE = made(1, 8, "all_reduce", 200e3, 14 / 8)


ACROSS = made(2, 8, "all_reduce", 40e3, 30 / 16)


def fitted(*logs: NcclLog) -> FittedPart:
    (found,) = nccl.fit_logs(logs, [], None, is_needed=True)
    return found


def test_reduce_scatters_and_broadcasts_are_fitted_at_their_own_bytes() -> None:
    for program, ratio in (("reduce_scatter", 15 / 16), ("broadcast", 1.0), ("reduce", 1.0)):
        shown = fitted(made(2, 8, program, 30e3, ratio)).shown
        assert shown["inter_node_efficiency"].startswith(("29", "30")), program


def test_all_to_alls_tell_by_how_much_less_they_fill_the_nics() -> None:
    # Of S bytes of a rank, 8 in 16 leave the node, from each of 8 ranks: 4 S through the NICs.
    all_to_all = made(2, 8, "alltoall", 5e3, 15 / 16)
    found = fitted(IN_NODE, ACROSS, all_to_all)
    expected = 4 * 5e3 / (15 / 16) / 40e3
    assert found.table["all_to_all_efficiency"] == pytest.approx(expected, rel=0.05)
    low, high = found.intervals["all_to_all_efficiency"]
    assert 0.8 < low <= 1 <= high < 1.2
    assert {one.series.partition(",")[0] for one in found.residuals} == {"all_reduce"}


def test_sends_inside_a_node_tell_its_links_where_nothing_else_does() -> None:
    send = made(1, 2, "sendrecv", 100e3, 1.0)
    assert nccl.sort([send]).sends == (send,)
    rows = [row for row in network.select_sends([send], None) if row.send_bytes >= LARGE]
    found = network.fit_collectives(rows, [], draws=10)
    assert float(found.table["intra_node"]["measured_on"].split()[0]) == pytest.approx(800, rel=0.02)  # type: ignore[index]
    assert nccl.sort([send, IN_NODE]).sends == ()


FAILED = "n1: Test NCCL failure"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (made(2, 1, "sendrecv", 11e3, 1.0), "send between nodes: one flow does not fill the NICs of a node"),
        (made(1, 8, "alltoall", 100e3, 7 / 8), "all_to_all inside a node: no part of a calibration"),
        (made(1, 8, "hypercube", 100e3, 7 / 8), "hypercube: no part of a calibration is fitted to it"),
        (replace(ACROSS, rows=ACROSS.rows[:9], failure=FAILED), "2.048 kB (the run failed: n1: Test"),
        (replace(ACROSS, rows=ACROSS.rows[:18]), "the time of its largest messages hardly grows with them"),
        (replace(ACROSS, collective="unknown"), "nothing names its program"),
        (replace(ACROSS, num_nodes=1, ranks_per_node=1), "one GPU sends nothing"),
    ],
)
def test_logs_that_tell_nothing_of_links_are_skipped_with_the_reason(log: NcclLog, why: str) -> None:
    found = fitted(IN_NODE, log)
    assert any(why in note and note.endswith(": skipped") for note in found.notes), found.notes
    assert found.table == fitted(IN_NODE).table
    with refused(why, ": no log is left"):
        fitted(log)
    notes = fitted(replace(IN_NODE, failure=FAILED)).notes
    assert any(note.endswith(f"the run failed then: {FAILED}") for note in notes)


@pytest.mark.slow
def test_fewer_nodes_that_are_slower_than_more_are_said_and_so_are_two_numbers_of_nodes() -> None:
    slow = made(2, 8, "all_reduce", 20e3, 30 / 16)
    more = made(4, 8, "all_reduce", 40e3, 62 / 32)
    notes = fitted(slow, more).notes
    assert any("2 nodes reach 20" in note and "4 nodes 40" in note and "measure it again" in note for note in notes)
    assert any("2 numbers of nodes: beyond 4 nodes nothing shows" in note for note in notes)
    notes = fitted(IN_NODE, ACROSS, more).notes
    assert not any("nodes reach" in note or "numbers of nodes: beyond" in note for note in notes)


HOPPER = changed(AZURE, gpu="H100-80GB")


def test_a_tree_through_nvswitches_explains_two_nodes_faster_than_their_nics_by_bus_bandwidth() -> None:
    """NVLSTree sends S over a node's NICs at two nodes, where a ring sends 1.875 S."""
    fast = made(2, 8, "all_reduce", 350e3, 30 / 16)
    rates = nccl.nominal_rates(HOPPER)
    assert rates.inter_bytes_per_s == pytest.approx(200e9)
    (part,) = nccl.fit_logs([fast], [], HOPPER, is_needed=True)
    assert isinstance(part.table["nccl"], dict)
    assert part.table["nccl"]["nvls_efficiency"] * rates.intra_bytes_per_s == pytest.approx(350e9 * 16 / 30, rel=0.05)
    assert part.table["nccl"]["inter_node_efficiency"] <= 1


def test_nvlstree_is_believed_of_gpus_that_have_it_and_of_no_others() -> None:
    rows, alone = nccl.select([ACROSS]), nccl.select([made(2, 1, "all_reduce", 20e3, 1.0)])
    given = ((rows, HOPPER), (rows, AZURE), (alone, HOPPER), (rows, None))
    assert [bool(nccl.with_nvls(*one)) for one in given] == [True, False, False, False]


@pytest.mark.slow
def test_small_messages_of_another_number_of_nodes_tell_latencies() -> None:
    whole = made(4, 8, "all_reduce", 40e3, 62 / 32)
    few = replace(whole, rows=whole.rows[:13])
    (part,) = nccl.fit_logs([ACROSS, few], [], None, is_needed=True)
    assert {one.series for one in part.residuals} == {f"all_reduce, {one.layout_text}" for one in (ACROSS, few)}
    curves = part.table["by_nodes"]
    assert isinstance(curves, list)
    assert [one["nodes"] for one in curves] == [2]


def test_what_nccl_might_take_is_fitted_and_written() -> None:
    rows, only = [log(count) for count in (2, 4, 8, 16)], nccl.Allowed("ring", "Simple")
    part = nccl.fit_part(rows, [], AZURE, allowed=only)
    table = part.table["nccl"]
    assert isinstance(table, dict)
    assert (table["algorithm"], table["protocol"]) == ("ring", "Simple")
    assert {one.label.partition(", ")[2].removesuffix(", in place") for one in part.residuals} == {"ring Simple"}
    nodes = topology.build(changed(AZURE, num_nodes=4), as_calibration(part))
    assert {algorithms.choose(None, nodes, size).label for size in (8.0, 1e6, 1e9)} == {"ring Simple"}
    assert nccl.fit_part(rows, [], AZURE).table["nccl"].keys() & {"algorithm", "protocol"} == set()  # type: ignore[attr-defined]
