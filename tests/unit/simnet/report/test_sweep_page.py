"""What one reads after a sweep: the baseline's own time, the swept keys by name, and the points left out."""

import re
from typing import Any

import pytest

from simnet.report.sweep_page import refused_lines, sweep_page
from simnet.report.text import WIDTH
from tests.helpers.report_samples import sweep_document, sweep_of

ACCUMULATION = "run.grad_accumulation"


def page(document: dict[str, Any]) -> str:
    return str(sweep_page(sweep_of(document)))


def over(points: list[dict[str, Any]], speedups: list[float]) -> dict[str, Any]:
    """Return a sweep of one point whose swept values are these, with these speedups."""
    document = sweep_document(("bert_base",), (10,), (8,))
    first = document["points"][0]
    made = [
        {**first, "set": values, "speedup": speedup, "result": {**first["result"], "iterations_s": [1 / speedup]}}
        for values, speedup in zip(points, speedups, strict=True)
    ]
    return {**document, "points": made}


def test_a_list_has_the_time_of_the_baseline_as_a_column() -> None:
    lines = page(over([{ACCUMULATION: count} for count in (1, 2)], [2.0, 1.5])).splitlines()
    assert lines[2].split() == [ACCUMULATION, "iteration", "baseline", "throughput", "speedup"]
    assert lines[3].split()[:5] == ["1", "500", "ms", "619.6", "ms"]


def test_a_list_without_a_baseline_has_no_column_of_it() -> None:
    table = page(sweep_document(bandwidths=(10,), nodes=(8,), baseline=False))
    assert re.search(r"iteration +throughput$", table, re.MULTILINE)


def test_a_matrix_of_speedups_has_one_of_the_times_of_the_baseline_below() -> None:
    lines = page(sweep_document(("bert_base",), (10, 100), (2, 8))).splitlines()
    start = lines.index("iteration time of all_reduce, the baseline:")
    assert lines[start + 1].split() == ["nodes", "2", "8"]
    assert [line.split()[:4] for line in lines[start + 2 : start + 4]] == [
        ["10", "Gbit/s", "408.4", "ms"],
        ["100", "Gbit/s", "155", "ms"],
    ]


def test_the_headline_names_the_swept_key_and_its_value() -> None:
    table = page(over([{ACCUMULATION: count} for count in (1, 2, 4, 8)], [1.2, 0.9, 1.5, 3.11]))
    assert "grad_accumulation = 8: largest speedup 3.11x, on 8 nodes at 10 Gbit/s." in table
    assert "slower at 1 of 4 points: least 0.90x, grad_accumulation = 2, on 8 nodes at 10 Gbit/s." in table


def test_keys_that_end_alike_are_named_in_full() -> None:
    keys = [{"strategy.algorithm": one, "baseline.algorithm": "ring"} for one in ("ring", "tree")]
    table = page(over(keys, [1.2, 2.0]))
    assert "strategy.algorithm = tree: largest speedup 2.00x" in table


def test_models_are_named_by_their_titles() -> None:
    document = sweep_document(("bert_base", "resnet50"), (10,), (8,))
    assert "BERT-Base: largest speedup 4.16x, on 8 nodes" in page(document)


def test_points_of_a_list_that_differ_in_two_keys_do_not_say_that_a_key_changes_nothing() -> None:
    points = [{"cluster.num_nodes": 8, "workload.batch_per_rank": 4}, {"cluster.num_nodes": 4, "run.steps": 8}]
    assert "changes nothing" not in page(over(points, [2.0, 2.0]))


@pytest.mark.parametrize(("count", "more"), [(1, 0), (10, 0), (12, 2)])
def test_refused_points_are_told_up_to_a_number(count: int, more: int) -> None:
    refused = [{"set": {ACCUMULATION: 8, "workload": {"use": "x"}}, "reason": "because " * 20}] * count
    lines = refused_lines(sweep_of(sweep_document(("bert_base",), (10,), (8,)) | {"refused": refused}))
    assert lines[0] == f"refused: {count} of {count + 1} points, which are left out:"
    assert sum(f"{ACCUMULATION} = 8, workload = use x: because" in line for line in lines) == count - more
    assert (f"  and {more} more: see 'refused' in results.json (-o DIR)" in lines) is bool(more)
    assert all(len(line) <= WIDTH for line in lines)


def test_nothing_is_told_where_no_point_is_refused() -> None:
    assert refused_lines(sweep_of(sweep_document(("bert_base",), (10,), (8,)))) == []


def test_points_that_share_no_panel_are_a_list() -> None:
    document = sweep_document(("bert_base",), (10,), (2, 8))
    for batch, point in enumerate(document["points"], start=1):
        point["set"]["workload.batch_per_rank"] = batch
    assert re.search(r"iteration +baseline +throughput +speedup$", page(document), re.MULTILINE)
