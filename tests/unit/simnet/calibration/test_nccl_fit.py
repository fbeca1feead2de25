"""Logs of nccl-tests: both layouts are read, and the model of NCCL explains them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed

from simnet.calibration import calibration_file, nccl_calibration, nccl_fit, nccl_log
from simnet.calibration.nccl_log import NcclLog
from simnet.cluster import nccl_model, topology
from simnet.cluster.hardware import Calibration
from simnet.cluster.nccl_costs import NcclCosts
from simnet.collectives import algorithms, link_loads, ring
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.validation import shipped_parts as shipped
from tests.helpers.golden import GOLDEN

LARGE = 16 * 1024**2
HEADER = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid  1 on a device  0 [0000:07:00] NVIDIA H100
#  Rank  1 Group  0 Pid  1 on a device  1 [0000:0f:00] NVIDIA H100
"""
NEW = f"""{HEADER}\
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576        262144     float     sum      -1    10.00  104.86  104.86       0    11.00   95.33   95.33     N/A
# Out of bounds values : 0 OK
"""
OLD = f"""{HEADER}\
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
     1048576        262144     float     sum    10.00  104.86  104.86  0e+00    11.00   95.33   95.33    N/A
"""


def log(gpus: int) -> NcclLog:
    name = f"a100_azure_nd_v4_{gpus}gpus.log"
    shipped = files.data_path("published", "nccl-tests", name)
    return nccl_log.read(shipped if gpus > 1 else GOLDEN / name)


def costs(*gpus: int) -> NcclCosts:
    return nccl_fit.fit_costs(nccl_fit.select_all_reduces([log(count) for count in gpus]))


def error(fitted: NcclCosts, gpus: int, least_bytes: int = LARGE) -> float:
    """Return the mean absolute relative error from a size on, up to 16 times that size if it is below 16 MiB."""
    (rows,) = nccl_fit.select_all_reduces([log(gpus)], least_bytes)
    inside = rows if least_bytes >= LARGE else rows.select(rows.message_bytes < 16 * least_bytes)
    return float(np.mean(np.abs(inside.relative_errors(fitted))))


@pytest.mark.parametrize("text", [NEW, OLD, "".join(f"[1,0]<stdout>:{line}\n" for line in NEW.splitlines())])
def test_both_layouts_are_read_with_and_without_a_rank_in_front(text: str) -> None:
    found = nccl_log.parse(text, "x.log")
    assert (found.collective, found.gpu, found.num_nodes, found.ranks_per_node) == ("all_reduce", "NVIDIA H100", 1, 2)
    assert [(row.message_bytes, row.times_s) for row in found.rows] == [(1048576, (10e-6, 11e-6))]


def test_a_collective_without_times_in_place_is_read_by_its_name() -> None:
    text = NEW.replace("# nThread", "# Collective test starting: alltoall_perf\n# nThread")
    text = text.replace("11.00   95.33   95.33     N/A", "N/A     N/A     N/A     N/A").replace("sum", "none")
    found = nccl_log.parse(text, "x.log")
    assert found.collective == "all_to_all"
    assert found.rows[0].times_s == (10e-6, None)


def test_nodes_are_told_apart_by_their_hosts() -> None:
    assert (log(32).num_nodes, log(32).ranks_per_node, len(log(32).rows)) == (4, 8, 23)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NEW.replace("Rank", "rank"), "no line '# Rank 0 Pid"),
        (HEADER, "no line with a time"),
        (NEW.replace("on a device  1", "on b device  1").replace(HEADER, HEADER), "all_reduce"),
        (
            NEW.replace("Rank  1 Group", "Rank  1 Group  0 Pid  9 on b device  0 [0] H\n#  Rank  2 Group"),
            "must have the same number",
        ),
        (NEW.replace("104.86       0", "104.86       3"), "3 wrong values"),
        (NEW.replace("10.00  104.86", "10.00"), "1 torn lines and 0 whole ones: run nccl-tests again"),
        (NEW.replace("10.00", "0.00"), "1 torn lines and 0 whole ones"),
        (NEW.replace("Rank  1", "Rank 9"), r"nodes with \[2\] ranks"),
    ],
)
def test_what_is_no_whole_log_is_refused(text: str, message: str) -> None:
    if message == "all_reduce":  # two nodes of one rank are fine
        assert nccl_log.parse(text, "x.log").num_nodes == 2
        return
    with pytest.raises(SimnetError, match=message):
        nccl_log.parse(text, "x.log")


ROW = NEW.splitlines()[-2]


@pytest.mark.parametrize(
    "torn",
    [
        ROW[: len(ROW) // 2],
        ROW[len(ROW) // 2 :],
        ROW[:50] + "[1,7]<stdout>:node7:41:41 NCCL" + ROW[50:],
        ROW.replace("10.00", "10.0010.00"),
        ROW.replace("10.00", "1000"),  # whole in its form, but no time of this bandwidth
        ROW.replace("10.00", "nan"),
        ROW.replace("1048576", "1" * 5000),
    ],
)
def test_torn_lines_are_left_out_and_counted(torn: str) -> None:
    found = nccl_log.parse("\n".join([NEW, ROW, torn]), "x.log")
    assert ([row.times_s for row in found.rows], found.num_torn) == ([(10e-6, 11e-6)] * 2, 1)


def test_messages_of_nccl_and_averages_are_no_torn_lines() -> None:
    lines = "node0:41:52 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n# Avg bus bandwidth    : 68.4\n\n1 2"
    assert nccl_log.parse(NEW + lines, "x.log").num_torn == 0


def test_a_rank_whose_line_is_torn_is_counted_by_the_gap_that_it_leaves() -> None:
    lines = [f"#  Rank  {rank} Group  0 Pid  1 on n{rank // 4} device  {rank % 4} [0] H100" for rank in range(8)]
    rows = "\n".join(NEW.splitlines()[3:])
    found = nccl_log.parse("\n".join([*lines[:5], "#  Rank  5 Gr#  Ra", *lines[6:], rows]), "x.log")
    assert (found.num_nodes, found.ranks_per_node) == (2, 4)


@pytest.mark.parametrize("gpus", [4, 8, 16, 128])
def test_a_rank_whose_line_is_lost_at_the_end_is_told_by_the_ratio_of_bandwidths(gpus: int) -> None:
    path = files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")
    lines = [line for line in path.read_text().splitlines() if f"Rank {gpus - 1:2} " not in line]
    found = nccl_log.parse("\n".join(lines), "x.log")
    assert found == replace(log(gpus), name="x.log", rows=found.rows)


def test_a_list_of_ranks_that_does_not_go_with_the_bandwidths_is_refused() -> None:
    text = "# all_reduce_perf\n" + NEW.replace("104.86  104.86", "104.86  183.5")
    with pytest.raises(SimnetError, match="2 ranks are listed: the bandwidths are of another number"):
        nccl_log.parse(text, "x.log")
    assert nccl_log.parse(text.partition("\n")[2], "x.log").collective == "unknown"


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match="cannot be read"):
        nccl_log.read(tmp_path / "x.log")


def test_one_gpu_and_other_collectives_are_refused() -> None:
    with pytest.raises(SimnetError, match="one GPU sends nothing"):
        nccl_fit.select_all_reduces([log(1)])
    with pytest.raises(SimnetError, match="only all_reduce logs"):
        nccl_fit.select_all_reduces([replace(log(8), collective="all_gather")])


def test_too_few_large_messages_are_refused() -> None:
    small = replace(log(8), rows=tuple(row for row in log(8).rows if row.message_bytes < LARGE // 16))
    with pytest.raises(SimnetError, match="0 times from 1 MiB on"):
        nccl_fit.fit_costs(nccl_fit.select_all_reduces([small]))


def test_latencies_that_few_small_messages_leave_open_have_a_note_and_no_interval() -> None:
    few = replace(log(16), rows=log(16).rows[7:17])  # three sizes below 1 MiB
    fitted = nccl_calibration.fit_logs([few], [], None, draws=60)
    whole = calibration_file.merge([fitted], {"kind": "measured"})
    assert {"nccl.inter_node_efficiency"} <= set(whole["intervals"])  # type: ignore[call-overload]
    assert not any("ll_hop" in key or "inter_node_hop" in key for key in whole["intervals"])  # type: ignore[attr-defined]
    assert any("hops between nodes are those of NCCL's table" in note for note in fitted.notes)
    assert "ll_hop" not in fitted.shown


@pytest.mark.parametrize(("gpus", "bound"), [(2, 0.02), (4, 0.02), (8, 0.04)])
def test_one_node_is_fitted_within_five_percent(gpus: int, bound: float) -> None:
    assert error(costs(2, 4, 8), gpus) < bound


@pytest.mark.parametrize(("gpus", "bound"), [(2, 0.02), (4, 0.02), (8, 0.04), (16, 0.035), (32, 0.04)])
def test_all_logs_are_fitted_together_within_five_percent(gpus: int, bound: float) -> None:
    assert error(costs(2, 4, 8, 16, 32), gpus) < bound


@pytest.mark.parametrize("known", [(8, 16), (2, 4, 8, 16)])
def test_32_gpus_are_predicted_from_fewer_within_five_percent(known: tuple[int, ...]) -> None:
    assert error(costs(*known), 32) < 0.05
    assert error(costs(*known), 32, 1024**2) < (0.06 if 2 in known else 0.11)


@pytest.mark.parametrize(("gpus", "large", "medium"), [(64, 0.06, 0.07), (128, 0.05, 0.07)])
def test_groups_beyond_those_that_were_judged_are_predicted_too(gpus: int, large: float, medium: float) -> None:
    fitted = costs(2, 4, 8, 16)
    assert error(fitted, gpus) < large
    assert error(fitted, gpus, 1024**2) < medium


@pytest.mark.parametrize(("known", "unseen"), [((4, 8), 2), ((2, 8), 4), ((2, 4), 8)])
def test_a_group_in_the_node_is_predicted_from_the_others(known: tuple[int, ...], unseen: int) -> None:
    assert error(costs(*known), unseen) < 0.04


def chosen(fitted: NcclCosts, num_nodes: int, message_bytes: float) -> str:
    at = nccl_fit.rates_of(fitted)
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
    seen = nccl_fit.select_all_reduces([log(count) for count in (2, 4, 8, 16)])
    made = tuple(
        replace(one, times_s=nccl_fit.all_reduce_s(GIVEN, one.num_nodes, one.ranks_per_node, one.message_bytes))
        for one in seen
    )
    found = nccl_fit.fit_costs(made)
    assert len(nccl_fit.determined_names(made)) == 8
    for name in nccl_fit.determined_names(made):
        assert getattr(found, name) == pytest.approx(getattr(GIVEN, name), rel=0.01), name


def test_a_few_times_that_are_far_too_long_do_not_move_the_fit() -> None:
    rows = nccl_fit.select_all_reduces([log(count) for count in (2, 4, 8, 16)])
    wild = rows[-1].times_s.copy()
    wild[:2] *= 20  # as the first messages of some logs
    again = nccl_fit.fit_costs((*rows[:-1], replace(rows[-1], times_s=wild)))
    assert again.inter_node_hop_s == pytest.approx(nccl_fit.fit_costs(rows).inter_node_hop_s, rel=0.35)


def fitted_to(*gpus: int) -> Calibration:
    azure = shipped.cluster("azure_nd_a100_v4")
    part = nccl_calibration.fit_logs([log(count) for count in gpus], [], azure, draws=5)
    return calibration_file.as_calibration(calibration_file.merge([part], {"kind": "measured"}))


def test_a_calibration_simulated_with_the_defaults_takes_the_fitted_times_at_every_size_and_group() -> None:
    azure, calibrated, known = shipped.cluster("azure_nd_a100_v4"), fitted_to(2, 4, 8, 16), costs(2, 4, 8, 16)
    for one in map(log, (2, 4, 8, 16, 32)):
        nodes = topology.build(changed(azure, num_nodes=one.num_nodes, ranks_per_node=one.ranks_per_node), calibrated)
        sizes = np.array([float(row.message_bytes) for row in one.rows])
        expected = nccl_fit.all_reduce_s(known, one.num_nodes, one.ranks_per_node, sizes)
        simulated = [link_loads.duration_s(nodes, algorithms.choose(None, nodes, size), size) for size in sizes]
        # the file rounds its numbers to four digits or so
        assert simulated == pytest.approx(expected.tolist(), rel=1e-3), one.world_size


def test_a_ring_of_links_takes_what_the_model_says_of_nccls_ring() -> None:
    azure, calibrated, known = shipped.cluster("azure_nd_a100_v4"), fitted_to(2, 4, 8, 16), costs(2, 4, 8, 16)
    at = nccl_fit.rates_of(known)
    for num_nodes in (1, 2):
        nodes = topology.build(changed(azure, num_nodes=num_nodes), calibrated)
        rings = [one for one in nccl_model.candidates(known, num_nodes, 8) if one.algorithm == "ring"]
        for size in (2.0**24, 5e7, 2.0**28):  # smaller ones across nodes wait for the links in the node
            expected = min(nccl_model.seconds(one, at, size) for one in rings)
            # 5 %: between two points of the curve, a protocol may change
            found = link_loads.duration_s(nodes, ring.all_reduce(nodes.group("world")), size)
            assert found == pytest.approx(expected, rel=0.05), (num_nodes, size)


def test_intervals_hold_the_value_and_are_narrow_where_many_rows_tell_it() -> None:
    fitted = nccl_calibration.fit_logs([log(8), log(16)], [log(32)], None, draws=50)
    low, high = fitted.intervals["nccl.inter_node_efficiency"]
    assert 0.9 < low < 1 < high < 1.1
    assert {residual.role for residual in fitted.residuals if "32 GPUs" in residual.series} == {"held out"}


def test_a_log_that_is_held_out_shows_every_row_by_its_size() -> None:
    fitted = nccl_calibration.fit_logs([log(8), log(16)], [log(32)], None, draws=5)
    held_out = [residual for residual in fitted.residuals if residual.role == "held out"]
    assert len(held_out) == 2 * len(log(32).rows)
    assert len({residual.series for residual in held_out}) == 3


def test_a_cluster_slower_than_its_logs_is_refused() -> None:
    azure = shipped.cluster("azure_nd_a100_v4")
    with pytest.raises(SimnetError, match=r"inter_node: 25 GB/s: the logs reach 12\d.* must be at least as fast"):
        nccl_calibration.fit_logs([log(8), log(16)], [], changed(azure, nics_per_node=1), draws=5)
