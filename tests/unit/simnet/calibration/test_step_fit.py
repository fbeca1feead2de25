"""Step times: what they determine is found again, and published ones are predicted through the command."""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simnet.calibration import merged_calibration, step_fit, step_part, step_rows
from simnet.calibration.comparison import Comparison, mean_error
from simnet.calibration.fit import FittedPart
from simnet.calibration.step_model import StepModel, Trained
from simnet.calibration.step_rows import StepTable, TimedStep
from simnet.cluster.hardware import Calibration
from simnet.cluster.network_costs import LibraryCosts, NodesPoint
from simnet.core.files import data_path
from simnet.core.units import Duration
from simnet.engine import scenario
from simnet.strategies import DenseAllReduce
from simnet.validation import shipped_parts
from simnet.validation.published import hkbu
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published_rows import PublishedRow
from simnet.workload.workload import Workload
from tests.helpers.cli import assert_refused, run
from tests.helpers.refusals import refused
from tests.helpers.timed_steps import HEAD, TRAINED, WHERE, fit, row, simulate_s, timed


def test_compute_links_and_codec_are_found_again() -> None:
    true = replace(shipped_parts.calibration("v100_tcp_estimate"), codec_efficiency=0.1)
    true = step_fit.with_efficiency(step_fit.with_efficiency(true, "intra_node", 0.3), "inter_node", 0.4)
    rows = timed([row(1, 1), row(1), row(1, strategy="qsgd"), row(2), row(4)], true, {("", 32): 1.3})
    start = replace(true, codec_efficiency=0.9)
    found = fit(rows, step_fit.with_efficiency(start, "inter_node", 1.0))
    assert found.compute["", 32].value == pytest.approx(1.3, rel=1e-3)
    assert found.intra_node is not None
    assert found.intra_node.value == pytest.approx(0.3, rel=0.01)
    assert {nodes: one.value for nodes, one in found.by_nodes.items()} == pytest.approx({2: 0.4, 4: 0.4}, rel=0.01)
    assert found.codec is not None
    assert found.codec.value == pytest.approx(0.1, rel=0.01)
    for one in (*found.by_nodes.values(), found.codec):
        assert one.factors[0] < 0.96
        assert one.factors[1] > 1.04


def test_the_exchange_of_a_compressing_strategy_gets_rates_of_its_own_by_nodes() -> None:
    true = replace(shipped_parts.calibration("v100_tcp_estimate"), codec_efficiency=0.1)
    true = step_fit.with_efficiency(true, "inter_node", 0.4)
    points = (NodesPoint(nodes=2, efficiency=0.2), NodesPoint(nodes=4, efficiency=0.5))
    true = replace(true, libraries={"other": LibraryCosts(carries=("qsgd",), by_nodes=points)})
    rows = timed([row(n, strategy=s) for n in (1, 2, 4) for s in ("all_reduce", "qsgd")], true, {})
    found = fit(rows, replace(true, codec_efficiency=0.9, libraries={}))
    rates = {nodes: one.value for nodes, one in found.exchanges["qsgd"].items()}
    assert rates == pytest.approx({2: 0.2, 4: 0.5}, rel=0.03)
    assert set(rows) == found.fitted_rows
    assert {nodes: one.value for nodes, one in found.by_nodes.items()} == pytest.approx({2: 0.4, 4: 0.4}, rel=0.01)


def test_an_exchange_that_no_rate_explains_is_predicted_with_a_reason() -> None:
    true = replace(shipped_parts.calibration("v100_tcp_estimate"), codec_efficiency=0.1)
    rows = timed([row(1), row(2), row(1, strategy="qsgd"), row(2, strategy="qsgd")], true, {})
    rows[-1] = changed(rows[-1], step_s=0.0901)
    found = fit(rows, replace(true, codec_efficiency=0.9))
    assert not found.exchanges
    assert "steps of qsgd on 2 nodes are predicted, not fitted" in " ".join(found.notes)


@pytest.mark.slow
def test_the_algorithm_that_ran_is_named_where_another_makes_two_bandwidths_of_one() -> None:
    ran = replace(TRAINED, baseline=DenseAllReduce(algorithm="hierarchical"))
    true = step_fit.with_efficiency(Calibration(), "inter_node", 0.4)
    model = StepModel(trained=Trained(lambda _: ran, simulate_s), start=true)
    rows = [changed(one, step_s=model.step_s(one, true)) for one in (row(2), row(4), row(8))]
    as_ring = Trained(lambda _: TRAINED, simulate_s)
    (told,) = step_part.better_algorithm_note(step_fit.fit(rows, as_ring, true), rows, as_ring, true)
    assert "under algorithm = 'hierarchical' they differ 1.00 times" in told
    right = Trained(lambda _: ran, simulate_s)
    assert step_part.better_algorithm_note(step_fit.fit(rows, right, true), rows, right, true) == ()
    table = StepTable(path=WHERE, rows=tuple(rows), unread=(), digest="")
    part = step_part.fit_tables([table], [], right, {})
    assert part.table["all_reduce"] == "hierarchical"


def test_repetitions_tell_how_steps_differ() -> None:
    (once,) = timed([row(2)], step_fit.with_efficiency(Calibration(), "inter_node", 0.4), {})
    repeated = [changed(once, step_s=once.step_s * factor) for factor in (0.8, 1.0, 1.25)]
    assert fit(repeated).spread == pytest.approx(1.645 * 0.223, rel=0.01)
    assert fit([once, once, once]).spread == step_fit.RUN_SPREAD, "copies tell nothing"
    assert fit(repeated).by_nodes[2].factors[0] < fit([once]).by_nodes[2].factors[0] < 0.96


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(2, step_s=0.05)], "2 x 4: a step of 50 ms: is shorter than its compute of 90 ms"),
        ([row(2, step_s=0.1)], "that compute and bytes take at the nominal rate of the NICs"),
        ([row(2, step_s=1200)], "2 x 4: a step of 1200 s: gives the NICs 0.01% of their rate, which no network has"),
        ([row(2, strategy="qsgd:bit=4")], "2 x 4: strategy: unknown key 'bit'"),
        ([row(2, strategy="qsgd:bits")], "'bits': write options as key=value"),
        ([row(2, strategy="qsgd:bits=nan")], "2 x 4: strategy: bits: 'nan': write a whole number"),
        ([row(2, strategy="dpd")], "2 x 4: strategy: 'dpd': unknown strategy"),
        ([row(2, strategy="all_reduce:algorithm=nccl")], "2 x 4: strategy.algorithm: 'nccl': needs calibration.nccl"),
    ],
)
def test_what_cannot_be_is_refused(rows: list[TimedStep], message: str) -> None:
    with refused(message):
        fit(rows)


def test_a_step_hardly_longer_than_its_compute_is_no_question_of_the_unit() -> None:
    found = fit([row(1, 1, step_s=0.09), row(1, step_s=0.095)])
    assert found.intra_node is not None
    assert found.intra_node.value < step_fit.LEAST_EFFICIENCY


def test_a_workload_without_compute_needs_a_step_that_tells_it_and_compute_goes_with_the_batch() -> None:
    bare = replace(TRAINED, workload=Workload(gradients="resnet50"))
    with refused("no compute time: give the workload times"):
        fit([row(2)], trained=bare)
    found = fit([row(1, 1, step_s=0.09), row(2)], trained=bare)
    assert found.compute["", 32].value == pytest.approx(0.09, rel=1e-3)
    model = StepModel(trained=Trained(lambda _: TRAINED, simulate_s), start=Calibration())
    assert model.compute_s(row(1, 1, batch=64)) == pytest.approx(0.18)
    fitted = model.with_factors({("", 32): 2.0, ("", 128): 3.0})
    assert fitted.compute_s(row(1, 1, batch=64)) == pytest.approx(0.36), "of the nearest batch"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'nodes': needs"),
        (HEAD, "no row below the head"),
        (HEAD.replace("step_ms", "step"), "step: a time without a unit: name it with its unit"),
        (HEAD.replace("step_ms", "loss"), "no column of times"),
        (HEAD.replace("batch,", ""), "no column 'batch'"),
        (f"{HEAD},bach", "'bach': unknown column. Did you mean 'batch'"),
        (f"{HEAD},seconds\n", "seconds: two columns for time"),
        (f"{HEAD}\n2,4,16,all_reduce", ":2: 4 cells: the head has 5 columns"),
        (f"{HEAD}\n2,4,16,all_reduce,nan", ":2: time: 'nan': must be a number"),
        (f"{HEAD}\n2,4,16,all_reduce,-1", "a step of -0.001 s: must be from"),
        (f"{HEAD}\n2,4,16,all_reduce,{'9' * 400}", "must be a number"),
        (f"{HEAD}\n2.5,4,16,all_reduce,1", "nodes: '2.5': must be a whole number"),
        (f"{HEAD}\n2,4,16,,1", "strategy: is empty"),
        (f"{HEAD}\n4,4,16,all_reduce,1\n2,4,16,all_reduce,1", ":3: 2 nodes after 4: must not decrease"),
        (f"{HEAD}\n999999999,999999999,16,all_reduce,1", "at most 1000000"),
        (f"{HEAD}\n" + "2,4,16,all_reduce,1\n" * 3000, "more than 2000 rows"),
        (f'{HEAD}\n2,4,16,"all_reduce,1', " cells"),
    ],
)
def test_a_table_that_does_not_hold_together_is_refused(text: str, message: str) -> None:
    with refused(message):
        step_rows.parse(text, WHERE)


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [("seconds", "1.5", 1.5), ("Step [ms]", "1500", 1.5), ("step_us", "1.5e6", 1.5), ("Iteration time (s)", ".5", 0.5)],
)
def test_the_head_gives_the_unit(name: str, value: str, seconds: float) -> None:
    text = f"\ufeff# mine\nNum nodes;GPUs per node;batch per GPU;Strategy;{name};date\n2; 4;16;all_reduce;{value};x\n"
    table = step_rows.parse(text, WHERE)
    assert (table.rows[0].step_s, table.unread) == (seconds, ("date",))


# Published steps through the command.


def write(path: Path, rows: Iterable[tuple[PublishedRow, str, float]], batch: int) -> str:
    """Write rows as a table: published row, strategy and step [s] of each."""
    lines = [f"{one.nodes},{min(one.gpus, one.gpus_per_node)},{batch},{name},{1e3 * s}" for one, name, s in rows]
    path.write_text("\n".join([HEAD, *lines]), encoding="utf-8")
    return str(path)


def fig5a(method: str, *gpus: int) -> list[tuple[PublishedRow, str, float]]:
    name = {"Adam": "all_reduce", "1-bit Adam": "one_bit_adam"}[method]
    rows = paper.figure_rows(paper.ETHERNET, method)
    return [(one, name, paper.figure_s(one)) for one in rows if one.gpus in gpus]


def rows_of(stdout: str) -> list[Comparison]:
    return [
        Comparison(
            series=one["group"], label=one["row"], measured=one["measured_s"], predicted=one["predicted_s"],
            role=one["role"],
        )
        for one in json.loads(stdout)["rows"]
    ]  # fmt: skip


def test_bsp_rows_of_hkbu_on_8_gpus_predict_16_and_32_and_make_a_workload(tmp_path: Path) -> None:
    rows = [one for one in hkbu.rows(hkbu.ETHERNET, method=hkbu.BSP) if one.model == "BERT-Base"]
    batch = int(rows[0].batch_per_gpu)
    table = [(one, '"all_reduce:bucketing=fused,overlap=false"', hkbu.iteration_s(one)) for one in rows]
    known = write(tmp_path / "steps.csv", [one for one in table if one[0].gpus <= 8], batch)
    others = write(tmp_path / "rest.csv", [one for one in table if one[0].gpus > 8], batch)
    trained = ("--trained", hkbu.MODELS["BERT-Base"], "--cluster", "hkbu_10gbe", "--workload", tmp_path / "model.toml")
    options = ("--hold-out", others, *trained, "--format", "json", "-o", tmp_path / "mine.toml")
    done = run("calibrate", known, *options)
    assert done.exit_code == 0, done.output
    predicted = [one for one in rows_of(done.stdout) if one.role == "held out"]
    assert len(predicted) == 2
    assert mean_error(predicted) < 0.04
    (single,) = (one for one in rows if one.gpus == 1)
    made = tomllib.loads((tmp_path / "model.toml").read_text())
    step_s = sum(Duration.parse(made[key]) for key in ("forward", "backward"))
    assert step_s == pytest.approx(hkbu.iteration_s(single), rel=1e-3)


def test_logs_beside_step_times_give_the_links_and_steps_the_rest(tmp_path: Path) -> None:
    logs = [data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log") for gpus in (8, 16)]
    options = ("--cluster", "azure_nd_a100_v4", "--base", "a100_tcp_estimate", "--draws", "20", "--accept-poor-fit")
    links, both, table = (tmp_path / name for name in ("links.toml", "both.toml", "steps.csv"))
    assert run("calibrate", *logs, *options, "-o", links).exit_code == 0
    (tmp_path / "mine.toml").write_text(
        'cluster = "azure_nd_a100_v4"\nstrategy = "qsgd"\n[workload]\ngradients = "resnet50"\n'
        'forward = "30 ms"\nbackward = "60 ms"\nbatch_per_rank = 32\n'
    )
    trained = scenario.load(str(tmp_path / "mine.toml"), {"calibration": str(links)})
    true = replace(trained.calibration, codec_efficiency=0.02)
    rows = [row(1, 1), row(1, 1, "qsgd"), row(2, 8), row(2, 8, "qsgd")]
    model = StepModel(trained=Trained(lambda _: trained, simulate_s), start=true, compute_factors={("", 32): 1.3})
    lines = [f"{r.num_nodes},{r.ranks_per_node},32,{r.strategy},{1e3 * model.step_s(r, true)}" for r in rows]
    table.write_text("\n".join([HEAD, *lines]))
    done = run("calibrate", *logs, table, "--experiment", tmp_path / "mine.toml", *options[2:], "-o", both)
    assert done.exit_code == 0, done.output
    assert "1.3 of the workload's" in done.stdout
    found, before = (tomllib.loads(path.read_text()) for path in (both, links))
    assert {key: found[key] for key in ("by_nodes", "inter_node", "nccl")} == {
        key: before[key] for key in ("by_nodes", "inter_node", "nccl")
    }
    assert found["codec_efficiency"] == pytest.approx(0.02, rel=0.01)


def test_step_times_that_are_twice_there_or_do_not_say_what_was_trained_are_refused(tmp_path: Path) -> None:
    known, copy = (write(tmp_path / name, fig5a("Adam", 8, 16), 16) for name in ("steps.csv", "copy.csv"))
    (tmp_path / "odd.csv").write_text(f"{HEAD},workload\n2,4,16,all_reduce,900,nope\n")
    trained = ("--experiment", "one_bit_adam_end_to_end")
    for args, message in (
        ((known, copy, *trained), "copy.csv: holds the same as"),
        ((known, "--hold-out", copy, *trained), "copy.csv: holds the same as"),
        ((tmp_path / "odd.csv", *trained), "odd.csv:2: workload: 'nope': unknown workload"),
        ((known,), "steps.csv: step times: say what was trained with --experiment"),
        ((known, *trained, "--trained", "resnet50"), "--trained: an experiment names its workload"),
    ):
        assert_refused(run("calibrate", *args), message)


MODEL = Trained(lambda _: TRAINED, simulate_s)


def part_of(rows: list[TimedStep], trained: Trained = MODEL, **base: Any) -> FittedPart:
    table = StepTable(path=WHERE, rows=tuple(rows), unread=(), digest="")
    others = merged_calibration.read("v100_tcp_estimate").table
    return step_part.fit_tables([table], [], trained, {**others, **base})


def test_steps_shorter_than_the_workloads_own_compute_refit_it_to_rows_of_one_node() -> None:
    true = step_fit.with_efficiency(shipped_parts.calibration("v100_tcp_estimate"), "inter_node", 0.4)
    found = fit(timed([row(1), row(2), row(4)], true, {("", 32): 0.5}), true)
    assert found.compute["", 32].value == pytest.approx(0.5, rel=1e-3)
    assert {nodes: one.value for nodes, one in found.by_nodes.items()} == pytest.approx({2: 0.4, 4: 0.4}, rel=0.01)
    assert any("batch 32: fitted to 1 row of one node, 0.5 of the workload's own" in note for note in found.notes)
    with refused("shorter than its compute ", " or add a step of one rank or of one node"):
        fit([row(2, step_s=0.05)], true)


def test_compute_of_the_workload_stays_where_steps_are_longer_unless_a_workload_is_wanted() -> None:
    true = step_fit.with_efficiency(shipped_parts.calibration("v100_tcp_estimate"), "intra_node", 0.3)
    rows = timed([row(1), row(2)], true, {("", 32): 1.0})
    assert fit(rows, true).compute == {}
    wanted = step_fit.fit(rows, MODEL, true, refits_compute=True)
    assert wanted.compute["", 32].value == pytest.approx(1.0, rel=1e-3)


def test_what_rests_on_few_or_slower_numbers_of_nodes_and_what_of_the_base_is_left_out_is_said() -> None:
    true = shipped_parts.calibration("v100_tcp_estimate")
    rows = timed([row(1, 1), row(2)], true, {("", 32): 1.0})
    points = [{"nodes": nodes, "efficiency": 0.5} for nodes in (2, 8, 16)]
    by_tree = Trained(lambda _: replace(TRAINED, baseline=DenseAllReduce(algorithm="tree")), simulate_s)
    kept, left_out = (part_of(rows, trained, by_nodes=points).notes for trained in (MODEL, by_tree))
    left = "bandwidths of the base on 8, 16 nodes are left out, since they go with another all-reduce"
    assert not any("left out" in note for note in kept)
    assert any(left in note for note in left_out)
    assert any(note.startswith("2 numbers of nodes: beyond 2 nodes nothing shows") for note in kept)
    slow = step_fit.with_efficiency(true, "inter_node", 0.5)
    rows = [*timed([row(1, 1), row(4)], true, {("", 32): 1.0}), *timed([row(2)], slow, {("", 32): 1.0})]
    notes = part_of(rows).notes
    assert any(note.startswith("NICs give 0.5 of their rate on 2 nodes and 0.919 on 4: fewer nodes") for note in notes)


def test_bandwidths_go_with_the_all_reduce_of_the_base_where_none_is_named() -> None:
    true = replace(shipped_parts.calibration("v100_tcp_estimate"), all_reduce="hierarchical")
    found = part_of(timed([row(1, 1), row(2), row(4)], true, {("", 32): 1.0}), all_reduce="hierarchical")
    assert found.table["all_reduce"] == "hierarchical"
    assert max(abs(one.error) for one in found.residuals) < 1e-3
