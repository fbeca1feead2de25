"""What one reads after `simnet sweep`, as whole pages: `tests/golden/pages`."""

from collections.abc import Callable
from typing import Any

import pytest

from simnet.report.sweep_page import sweep_page
from tests.helpers.golden import assert_golden
from tests.helpers.report_samples import sweep_document, sweep_of

ACCUMULATION, BATCH = "run.grad_accumulation", "workload.batch_per_rank"
Document = dict[str, Any]


def page(document: Document) -> str:
    return str(sweep_page(sweep_of(document)))


def small(**changes: Any) -> Document:
    return sweep_document(("bert_base",), (10, 100), (2, 8), **changes)


def over(points: list[dict[str, Any]], speedups: list[float]) -> Document:
    """Return a sweep of one point whose swept values are these, with these speedups."""
    document = sweep_document(("bert_base",), (10,), (8,))
    first = document["points"][0]
    made = [
        {**first, "set": values, "speedup": speedup, "result": {**first["result"], "iterations_s": [1 / speedup]}}
        for values, speedup in zip(points, speedups, strict=True)
    ]
    return {**document, "points": made}


def with_speedups(speedups: dict[tuple[float, int], float]) -> Document:
    """Return a sweep of one workload over (Gbit/s, nodes) with speedups as given."""
    rates, nodes = (tuple(sorted(set(values))) for values in zip(*speedups, strict=True))
    document = sweep_document(("bert_base",), rates, nodes)
    for point in document["points"]:
        place = (float(point["set"]["cluster.inter_node.bandwidth"].split()[0]), point["set"]["cluster.num_nodes"])
        point["speedup"] = speedups[place]
    return document


def swept_twice() -> Document:
    """Return a sweep that also has two batches, which change nothing; its first point is missing."""
    document = small()
    twice = [{**one, "set": {**one["set"], BATCH: batch}} for batch in (16, 32) for one in document["points"]]
    return {**document, "points": twice[1:]}


def noted() -> Document:
    """Return a sweep on nodes of one GPU, of models without a title, with a note of some points and one of most."""
    document = small()
    for index, point in enumerate(document["points"]):
        point["notes"] = ["kernel times are estimates", f"compute time at batch {index} scaled"] if index else ["other"]
        point["world_size"] = point["scenario"]["cluster"]["num_nodes"]
        point["scenario"]["workload"] |= {"name": "inline", "title": ""}
    return document


def refused() -> Document:
    reason = {"set": {ACCUMULATION: 8, "workload": {"use": "x"}}, "reason": "because " * 20}
    return small() | {"refused": [reason] * 12}


PAGES: dict[str, Callable[[], Document]] = {
    "of two workloads": lambda: sweep_document(bandwidths=(10, 100), nodes=(2, 8)),
    "as a list": lambda: sweep_document(bandwidths=(10,), nodes=(8,)),
    "as a list without a baseline": lambda: sweep_document(bandwidths=(10, 400), nodes=(8,), baseline=False),
    "swept twice": swept_twice,
    "noted": noted,
    "slower at some": lambda: with_speedups(
        {(10, 2): 2.0, (10, 8): 3.0, (40, 2): 0.9, (40, 8): 1.2, (100, 2): 0.8, (100, 8): 0.97}
    ),
    "never slower": lambda: with_speedups({(10, 2): 2.0, (100, 2): 0.996}),  # which the matrix shows as 1.00x
    "slower on a slow network": lambda: with_speedups({(10, 2): 0.5, (100, 2): 1.5}),
    "over one key": lambda: over([{ACCUMULATION: count} for count in (1, 2, 4, 8)], [1.2, 0.9, 1.5, 3.11]),
    "keys that end alike": lambda: over(
        [{"strategy.algorithm": one, "baseline.algorithm": "ring"} for one in ("ring", "tree")], [1.2, 2.0]
    ),
    "no panel": lambda: over(
        [{"cluster.num_nodes": 8, BATCH: 4}, {"cluster.num_nodes": 4, "run.steps": 8}], [2.0, 2.0]
    ),
    "refused": refused,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_committed_one(name: str) -> None:
    assert_golden(f"sweep_{name.replace(' ', '_')}.txt", page(PAGES[name]()))


def varied(**changes: list[Any]) -> Document:
    """Return a sweep of two points that differ in a key and in the metrics given."""
    document = over([{"run.steps": 1}, {"run.steps": 2}], [2.0, 2.0])
    for place, point in enumerate(document["points"]):
        point["result"] = point["result"] | {name: given[place] for name, given in changes.items()}
    return document


OTHER_TIMES = [1.0, 2.0]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, "changes nothing: all its values give the same step times here"),
        ({"iterations_s": [[0.1], [0.1 * (1 + 1e-12)]]}, "changes nothing: all"),
        ({"samples_per_s": OTHER_TIMES}, "changes nothing but samples/s: all its values give"),
        (
            {"samples_per_s": OTHER_TIMES, "total_s": OTHER_TIMES},
            "changes nothing but samples/s and the end-to-end time: all",
        ),
    ],
)
def test_a_swept_key_without_effect_is_told(changes: dict[str, list[Any]], note: str) -> None:
    assert f"note: run.steps {note}" in page(varied(**changes))


def test_a_rate_at_which_one_point_is_not_slower_is_not_called_slower() -> None:
    alone = page(over([{"strategy": "fsdp"}, {"strategy": "binsgdm"}], [0.5, 3.0]))
    assert "all points: slower at 1 of 2 points: least 0.50x, strategy = fsdp" in alone
    document = with_speedups({(10, 8): 0.9, (100, 8): 0.8})
    points = [
        {**point, "set": {**point["set"], BATCH: batch}, "speedup": 3.0 if batch == 8 and place == 0 else 0.8}
        for batch in (1, 2, 4, 8)
        for place, point in enumerate(document["points"])
    ]
    assert "slower at 7 of 8 points: from 100 Gbit/s on, on 8 nodes" in page({**document, "points": points})


def test_a_long_question_is_wrapped() -> None:
    question = "ours.toml names no strategy: BinSGDM, hierarchical is taken. " * 3
    lines = page({**small(), "question": question}).split("\n")
    assert lines[0].startswith("ours.toml names")
    assert max(map(len, lines[: lines.index("")])) <= 100
