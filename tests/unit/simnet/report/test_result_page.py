"""What one reads after `simnet simulate` and `simnet sweep`."""

import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from simnet.core.errors import SimnetError
from simnet.engine.result import RunResult
from simnet.report.notes import notes_lines
from simnet.report.result_page import result_page
from simnet.report.sweep_page import sweep_page
from simnet.report.text import WIDTH
from simnet.strategies import DenseAllReduce
from simnet.workload.gpu_memory import GpuMemory
from tests.helpers.report_samples import run_result, sweep_document, sweep_of


def with_speedups(speedups: dict[tuple[float, int], float]) -> dict[str, Any]:
    """Return a sweep of one workload over (Gbit/s, nodes) with speedups as given."""
    rates, nodes = (tuple(sorted(set(values))) for values in zip(*speedups, strict=True))
    document = sweep_document(("bert_base",), rates, nodes)
    for point in document["points"]:
        place = (float(point["set"]["cluster.inter_node.bandwidth"].split()[0]), point["set"]["cluster.num_nodes"])
        point["speedup"] = speedups[place]
    return document


def result_table(result: RunResult) -> str:
    return str(result_page(result))


def sweep_table(document: dict[str, Any]) -> str:
    return str(sweep_page(sweep_of(document)))


def row(table: str, label: str) -> str:
    return next(line for line in table.splitlines() if line.strip().startswith(label))


def test_the_table_says_what_was_asked_of_what_and_how_sure_the_numbers_are() -> None:
    table = result_table(run_result())
    assert "Does 1-bit communication make training faster?" in table
    assert "made_up: 8 nodes x 8 A100, NIC 10 Gbit/s" in row(table, "cluster")
    assert row(table, "cluster").endswith("(nominal rates)")
    assert row(table, "workload").endswith("(compute times published)")
    assert row(table, "calibration").endswith("made_up_2020 (estimate)")


def test_strategy_and_baseline_stand_side_by_side_with_units() -> None:
    table = result_table(run_result())
    assert re.search(r"binsgdm +all_reduce$", table, re.MULTILINE)
    assert re.search(r"iteration time +[\d.]+ ms +[\d.]+ ms$", table, re.MULTILINE)
    assert re.search(r"throughput +[\d,]+ samples/s +[\d,]+ samples/s$", table, re.MULTILINE)
    assert re.search(r"NIC bytes out of a node +24.06 MB +770 MB$", table, re.MULTILINE)
    assert re.search(r"speedup 4.16x per iteration, binsgdm against all_reduce$", table, re.MULTILINE)


@pytest.mark.parametrize("column", [0, 1])
def test_the_shares_of_the_breakdown_add_up_to_the_whole(column: int) -> None:
    lines = result_table(run_result()).splitlines()
    parts = [re.findall(r"([\d.]+) %", line) for line in lines if re.match("  [a-z]", line)]
    shares = [float(found[column]) for found in parts[:6]]
    assert sum(shares) == pytest.approx(100.0, abs=0.3)  # six roundings of 0.05


def test_two_settings_of_one_strategy_have_heads_of_their_own() -> None:
    run = run_result()
    table = result_table(
        msgspec.structs.replace(
            run,
            scenario=msgspec.structs.replace(run.scenario, strategy=DenseAllReduce(algorithm="hierarchical")),
            result=msgspec.structs.replace(run.result, strategy="all_reduce"),
        )
    )
    assert re.search(r"all_reduce +all_reduce\n +algorithm hierarchical$", table, re.MULTILINE)
    assert "all_reduce, algorithm hierarchical against all_reduce" in table


def test_the_gradients_are_those_of_the_result() -> None:
    run = msgspec.structs.replace(run_result(), gradient_bytes=1.5e9)
    assert "gradients 1.5 GB, 32 samples per rank" in row(result_table(run), "workload")


def test_no_text_can_steer_the_terminal() -> None:
    bad = "\x1b]0;pwn\x07x\x00\u202e"
    run = run_result()
    scenario = msgspec.structs.replace(
        run.scenario, question=bad, workload=msgspec.structs.replace(run.scenario.workload, name=bad)
    )
    table = result_table(msgspec.structs.replace(run, scenario=scenario, notes=(bad,)))
    document = sweep_document(bandwidths=(10, 100), nodes=(2, 8)) | {"question": bad}
    for point in document["points"]:
        point["scenario"]["workload"]["title"] = bad
        point["notes"] = [bad]
    for text in (table, sweep_table(document)):
        assert "?]0;pwn?x" in text
        assert all(line.isprintable() for line in text.splitlines())


def test_a_run_without_a_baseline_shows_one_column_and_no_speedup() -> None:
    table = result_table(run_result(baseline=False))
    assert "all_reduce" not in table
    assert "speedup" not in table


def test_end_to_end_lines_appear_only_where_steps_are_counted() -> None:
    run = run_result()
    assert "end to end" not in result_table(run)
    counted = msgspec.structs.replace(
        run,
        scenario=msgspec.structs.replace(run.scenario, run=msgspec.structs.replace(run.scenario.run, steps=1000)),
        result=msgspec.structs.replace(run.result, total_s=7200.0, dense_iteration_s=0.5),
        end_to_end_speedup=2.5,
    )
    table = result_table(counted)
    assert re.search(r"time of 1,000 steps +2 h$", table, re.MULTILINE)
    assert re.search(r"dense iteration time +500 ms$", table, re.MULTILINE)
    assert "speedup 2.50x end to end" in table


def verbose(run: RunResult) -> RunResult:
    """Make every text of a run longer than a line."""
    long_name = "_".join(["long"] * 12)
    scenario = msgspec.structs.replace(
        run.scenario,
        question=" ".join(["Why"] * 60) + "?",
        cluster=msgspec.structs.replace(run.scenario.cluster, name=long_name, gpu="Very Long Accelerator 80 GB"),
        calibration=msgspec.structs.replace(run.scenario.calibration, name=long_name),
    )
    return msgspec.structs.replace(run, scenario=scenario, notes=(" ".join(["because"] * 40),))


def test_no_line_is_wider_than_a_hundred_columns_or_ends_in_spaces() -> None:
    for line in result_table(verbose(run_result())).splitlines():
        assert len(line) <= WIDTH
        assert line == line.rstrip()


def test_a_sweep_over_bandwidth_and_nodes_gives_a_matrix_for_each_workload() -> None:
    table = sweep_table(sweep_document(bandwidths=(10, 100), nodes=(2, 8)))
    assert table.count("speedup of binsgdm over all_reduce") == 2
    assert re.search(r"^ +nodes +2 +8$", table, re.MULTILINE)
    assert re.search(r"^ +10 Gbit/s +2.87x +4.16x$", table, re.MULTILINE)


def test_a_point_that_was_not_simulated_is_a_dash() -> None:
    document = sweep_document(("bert_base",), (10, 100), (2, 8))
    del document["points"][1]
    assert re.search(r"^ +10 Gbit/s +2.87x +-$", sweep_table(document), re.MULTILINE)


def test_other_swept_keys_get_a_matrix_each() -> None:
    document = sweep_document(("bert_base",), (10, 100), (2,))
    twice = [
        {**point, "set": {**point["set"], "workload.batch_per_rank": batch}}
        for batch in (16, 32)
        for point in document["points"]
    ]
    table = sweep_table({**document, "points": twice})
    assert "BERT-Base, batch_per_rank 16: speedup" in table
    assert "BERT-Base, batch_per_rank 32: speedup" in table


def test_points_without_a_matrix_are_listed_one_a_line() -> None:
    table = sweep_table(sweep_document(bandwidths=(10,), nodes=(8,)))
    assert re.search(r"^ *bert_base +10 Gbit/s +8 +148.8 ms +619.6 ms +13,763 samples/s +4.16x$", table, re.MULTILINE)


def test_the_columns_of_a_list_end_at_the_same_place() -> None:
    lines = sweep_table(sweep_document(baseline=False)).splitlines()[2:73]
    assert all(len(one) == len(other) for one, other in pairwise(lines))


def test_the_notes_of_all_points_stand_below_once_each() -> None:
    document = sweep_document(("bert_base",), (10, 100), (2, 8))
    for index, point in enumerate(document["points"]):
        point["notes"] = ["kernel times are estimates", f"compute time at batch {index} scaled"] if index else ["other"]
    told = sweep_table(document).splitlines()[-4:]
    assert told == [
        "note: other (at 1 of 4 points)",
        "note: kernel times are estimates (at 3 of 4 points)",
        "note: compute time at batch 1 scaled (at 3 of 4 points, and 2 more like it)",
        "notes in full: the column 'notes' of simnet sweep --format csv, or simnet simulate at one point",
    ]


def test_a_note_of_all_points_is_told_as_it_is() -> None:
    table = sweep_table(sweep_document(("bert_base",), (10, 100), (2, 8)))
    assert table.endswith("\n\nnote: kernel times are estimates")


def test_a_long_note_is_cut_and_wrapped() -> None:
    lines = notes_lines([["because " * 60]])
    assert len(lines) == 4
    assert all(len(line) <= WIDTH for line in lines)
    assert lines[2].endswith("...")
    assert lines[3].startswith("notes in full")


def varied(key: str, values: list[Any], **changes: list[Any]) -> dict[str, Any]:
    """Return a sweep of the same point, but for one key and the metrics given."""
    document = sweep_document(("bert_base",), (10,), (8,))
    first = document["points"][0]
    points = [
        {**first, "set": {key: value}, "result": first["result"] | {name: given[i] for name, given in changes.items()}}
        for i, value in enumerate(values)
    ]
    return {**document, "points": points}


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, "note: run.steps changes nothing: all its values give the same iteration times here"),
        ({"samples_per_s": [1.0, 2.0]}, "note: run.steps changes nothing but samples/s: all its values give"),
        (
            {"samples_per_s": [1.0, 2.0], "total_s": [1.0, 3.0]},
            "note: run.steps changes nothing but samples/s and the end-to-end time: all its values give",
        ),
        ({"iterations_s": [[0.1], [0.1 * (1 + 1e-12)]]}, "note: run.steps changes nothing: all"),
    ],
)
def test_a_swept_key_without_effect_is_told(changes: dict[str, list[Any]], note: str) -> None:
    assert note in sweep_table(varied("run.steps", [1, 2], **changes))


@pytest.mark.parametrize("changed", ["result", "baseline"])
def test_a_swept_key_with_an_effect_is_not_told(changed: str) -> None:
    document = varied("run.steps", [1, 2])
    point = document["points"][1]
    point[changed] = {**point[changed], "iterations_s": [0.5]}
    assert "changes nothing" not in sweep_table(document)


def test_a_key_without_effect_is_told_beside_one_that_has() -> None:
    document = sweep_document(("bert_base",), (10, 100), (2,))
    twice = [
        {**point, "set": {**point["set"], "workload.batch_per_rank": batch}}
        for batch in (16, 32)
        for point in document["points"]
    ]
    table = sweep_table({**document, "points": twice})
    assert table.count("changes nothing") == 1
    assert "note: workload.batch_per_rank changes nothing:" in table


def test_one_rank_is_singular() -> None:
    run = run_result()
    cluster = msgspec.structs.replace(run.scenario.cluster, num_nodes=1, ranks_per_node=1, gpu="")
    scenario = msgspec.structs.replace(run.scenario, cluster=cluster)
    table = result_table(msgspec.structs.replace(run, scenario=scenario, world_size=1))
    assert "made_up: 1 node x 1 GPU, NIC" in row(table, "cluster")
    assert row(table, "simulated").startswith("simulated    1 rank, folded")


def test_nodes_of_one_gpu_are_singular_in_a_sweep() -> None:
    document = sweep_document(("bert_base",), (10, 100), (2, 8))
    for point in document["points"]:
        point["world_size"] = point["scenario"]["cluster"]["num_nodes"]
    assert "nodes of 1 GPU\n" in sweep_table(document)


def test_parts_without_a_name_go_by_that_of_the_scenario_and_models_by_their_size() -> None:
    run = run_result()
    parts = {
        name: msgspec.structs.replace(getattr(run.scenario, name), name="inline", title="")
        for name in ("cluster", "workload", "calibration")
    }
    table = result_table(msgspec.structs.replace(run, scenario=msgspec.structs.replace(run.scenario, **parts)))
    assert "inline" not in table
    assert row(table, "cluster").startswith("cluster      sample: ")
    assert row(table, "workload").startswith("workload     110 M parameters: ")
    assert row(table, "calibration").startswith("calibration  sample (")
    document = sweep_document(("bert_base",), (10, 100), (2, 8))
    for point in document["points"]:
        point["scenario"]["workload"] |= {"name": "inline", "title": ""}
    assert "110 M parameters: speedup of" in sweep_table(document)


def test_the_headlines_name_the_largest_speedup_and_where_there_is_none() -> None:
    table = sweep_table(
        with_speedups({(10, 2): 2.0, (10, 8): 3.0, (40, 2): 0.9, (40, 8): 1.2, (100, 2): 0.8, (100, 8): 0.97})
    )
    assert "BERT-Base: largest speedup 3.00x, on 8 nodes at 10 Gbit/s." in table
    expected = (
        "BERT-Base: slower at 3 of 6 points: from 40 Gbit/s on, on 2 nodes; from 100 Gbit/s on, on 8 nodes; "
        "least 0.80x, on 2 nodes at 100 Gbit/s."
    )
    assert expected in table


def test_the_headlines_say_so_where_the_strategy_is_never_slower() -> None:
    table = sweep_table(with_speedups({(10, 2): 2.0, (100, 2): 1.1}))
    assert "BERT-Base: never slower at the points simulated; least 1.10x, on 2 nodes at 100 Gbit/s." in table


def test_the_headlines_do_not_call_slower_what_the_matrix_shows_as_one() -> None:
    assert "never slower" in sweep_table(with_speedups({(10, 2): 2.0, (100, 2): 0.996}))


def test_slower_on_a_slow_network_only_is_not_called_a_crossover() -> None:
    table = sweep_table(with_speedups({(10, 2): 0.5, (100, 2): 1.5}))
    assert "slower at 1 of 2 points: least 0.50x" in table
    assert "from 10 Gbit/s" not in table


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"points": []}, "no 'format' key"),
        ({"format": 5}, "format 5: written by another version of simnet; this one reads 4"),
        ({"format": 4, "axes": [], "points": []}, "must not be empty"),
        ({"format": 4, "axes": [], "points": [{"set": {}}]}, "is damaged"),
    ],
)
def test_a_wrong_document_is_told_in_one_line(document: dict[str, Any], message: str) -> None:
    with pytest.raises(SimnetError, match=message) as caught:
        sweep_table(document)
    assert "\n" not in str(caught.value)


def test_memory_is_shown_with_its_share_and_says_what_it_does_not_know() -> None:
    run = run_result()
    held = {"moment": "backward", "parameters": 30e9, "gradients": 2e9, "optimizer": 8e9}
    known = GpuMemory(**held, gpu_bytes=80e9)
    partly = GpuMemory(**held, unknown=("activations",))
    assert run.baseline is not None
    replace = msgspec.structs.replace
    shown = replace(run, result=replace(run.result, memory=known), baseline=replace(run.baseline, memory=partly))
    assert re.search(r"^memory of a GPU +40 GB +50 % +40 GB or more *$", result_table(shown), re.MULTILINE)
    without = replace(run, result=replace(run.result, memory=None), baseline=replace(run.baseline, memory=None))
    assert "memory of a GPU" not in result_table(without)
