"""What is said of step times beside the numbers: refitted compute, odd rows, few numbers of nodes; and the cluster."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simnet.calibration import merged_calibration, step_fit, step_part, step_rows
from simnet.calibration.step_model import Trained
from simnet.calibration.step_rows import TimedStep
from simnet.core.errors import SimnetError
from simnet.strategies import DenseAllReduce
from simnet.validation import shipped_parts
from tests.helpers.timed_steps import HEAD, TRAINED, WHERE, fit, row, simulate_s, timed

FAST = 0.5


def test_steps_shorter_than_the_workloads_own_compute_refit_it_to_rows_of_one_node() -> None:
    true = step_fit.with_efficiency(shipped_parts.calibration("v100_tcp_estimate"), "inter_node", 0.4)
    rows = timed([row(1), row(2), row(4)], true, {("", 32): FAST})
    found = fit(rows, true)
    assert found.compute["", 32].value == pytest.approx(FAST, rel=1e-3)
    assert {nodes: one.value for nodes, one in found.by_nodes.items()} == pytest.approx({2: 0.4, 4: 0.4}, rel=0.01)
    assert any("batch 32: fitted to 1 row of one node, 0.5 of the workload's own" in note for note in found.notes)
    with pytest.raises(SimnetError, match=r"shorter than its compute .* or add a step of one rank or of one node"):
        fit([row(2, step_s=0.05)], true)


def test_compute_of_the_workload_stays_where_steps_are_longer_unless_a_workload_is_wanted() -> None:
    true = step_fit.with_efficiency(shipped_parts.calibration("v100_tcp_estimate"), "intra_node", 0.3)
    rows = timed([row(1), row(2)], true, {("", 32): 1.0})
    assert fit(rows, true).compute == {}
    wanted = step_fit.fit(rows, Trained(lambda _: TRAINED, simulate_s), true, refits_compute=True)
    assert wanted.compute["", 32].value == pytest.approx(1.0, rel=1e-3)


def tables(tmp_path: Path, *rows: TimedStep) -> str:
    path = tmp_path / "steps.csv"
    lines = [f"{one.num_nodes},{one.ranks_per_node},{one.batch},{one.strategy},{1e3 * one.step_s}" for one in rows]
    path.write_text("\n".join([HEAD, *lines]))
    return str(path)


def test_what_rests_on_few_numbers_of_nodes_and_what_of_the_base_is_left_out_is_said(tmp_path: Path) -> None:
    true = shipped_parts.calibration("v100_tcp_estimate")
    rows = timed([row(1, 1), row(2)], true, {("", 32): 1.0})
    table = step_rows.parse(Path(tables(tmp_path, *rows)).read_text(), WHERE)
    points = [{"nodes": nodes, "efficiency": 0.5} for nodes in (2, 8, 16)]
    base = {**merged_calibration.read("v100_tcp_estimate").table, "by_nodes": points}
    by_tree = replace(TRAINED, baseline=DenseAllReduce(algorithm="tree"))
    kept, left_out = (
        step_part.fit_tables([table], [], trained, base).notes
        for trained in (Trained(lambda _: TRAINED, simulate_s), Trained(lambda _: by_tree, simulate_s))
    )
    left = "bandwidths of the base on 8, 16 nodes are left out, since they go with another all-reduce"
    assert not any("left out" in note for note in kept)
    assert any(left in note for note in left_out)
    assert any(note.startswith("2 numbers of nodes: beyond 2 nodes nothing shows") for note in kept)


def test_bandwidths_that_are_less_on_fewer_nodes_are_said() -> None:
    true = shipped_parts.calibration("v100_tcp_estimate")
    slow = step_fit.with_efficiency(true, "inter_node", 0.5)
    rows = [*timed([row(1, 1), row(4)], true, {("", 32): 1.0}), *timed([row(2)], slow, {("", 32): 1.0})]
    table = step_rows.StepTable(path=WHERE, rows=tuple(rows), unread=(), digest="")
    others = merged_calibration.read("v100_tcp_estimate").table
    notes = step_part.fit_tables([table], [], Trained(lambda _: TRAINED, simulate_s), others).notes
    assert any(note.startswith("NICs give 0.5 of their rate on 2 nodes and 0.919 on 4: fewer nodes") for note in notes)


def test_bandwidths_go_with_the_all_reduce_of_the_base_where_none_is_named() -> None:
    true = replace(shipped_parts.calibration("v100_tcp_estimate"), all_reduce="hierarchical")
    rows = timed([row(1, 1), row(2), row(4)], true, {("", 32): 1.0})
    table = step_rows.StepTable(path=WHERE, rows=tuple(rows), unread=(), digest="")
    others = {**merged_calibration.read("v100_tcp_estimate").table, "all_reduce": "hierarchical"}
    found = step_part.fit_tables([table], [], Trained(lambda _: TRAINED, simulate_s), others)
    assert found.table["all_reduce"] == "hierarchical"
    assert max(abs(one.error) for one in found.residuals) < 1e-3
