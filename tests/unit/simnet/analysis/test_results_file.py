"""The results.json of a sweep: what is no such file, or a damaged one, is refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simnet.analysis import results_file
from simnet.core.errors import SimnetError
from tests.helpers.report_samples import sweep_document, with_value, write_results

Document = dict[str, Any]


@pytest.fixture
def small() -> Document:
    return sweep_document(("bert_base",), (10, 100), (1, 8))


def damaged(document: Document) -> str:
    return json.dumps(document)[:-100]


def without_cluster(document: Document) -> str:
    for point in document["points"]:
        del point["scenario"]["cluster"]
    return json.dumps(document)


DAMAGE = [
    ("scenario.cluster.num_nodes", 0, "num_nodes"),
    ("scenario.cluster.num_nodes", -8, "num_nodes"),
    ("scenario.cluster.num_nodes", 1e300, "num_nodes"),
    ("scenario.cluster.num_nodes", 10**6, "at most 1000000 ranks"),
    ("world_size", 7, "world_size: 7: must be at least the number of nodes, 8"),
    ("scenario.cluster.inter_node.bandwidth", "0 Gbit/s", "scenario"),
    ("scenario.cluster.inter_node.bandwidth", 25, "scenario"),
    ("scenario.workload", [1], "workload"),
    ("scenario.workload.title", 5, "title"),
    ("scenario.calibration", [1], "calibration"),
    ("scenario.calibration", None, "calibration"),
    ("scenario.strategy", 5, "strategy"),
    ("world_size", 0, "world_size"),
    ("speedup", 0, "speedup"),
    ("speedup", -1, "speedup"),
    ("result.iterations_s", [0], "iterations_s"),
    ("result.iterations_s", [], "iterations_s"),
    ("result.iterations_s", [float("inf")], "must be finite"),
    ("result.iterations_s", [float("nan")], "must be finite"),
    ("result.samples_per_s", 0, "samples_per_s"),
    ("baseline.iterations_s", [0], "iterations_s"),
    ("result.breakdown.forward_s", -0.1, "breakdown: forward_s -0.1"),
]


@pytest.mark.parametrize(("path", "value", "message"), DAMAGE)
def test_damaged_numbers_and_parts_are_told_in_one_sentence(
    path: str, value: object, message: str, small: Document, tmp_path: Path
) -> None:
    results = write_results(tmp_path, with_value(small, path, value))
    with pytest.raises(SimnetError, match=message) as caught:
        results_file.read(results)
    assert "\n" not in str(caught.value)
    assert "is damaged" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (
            "scenario.strategy",
            {"kind": "of_elsewhere"},
            "scenario.strategy.kind: 'of_elsewhere': unknown strategy; install the package that provides it",
        ),
        (
            "scenario.cluster.faults",
            [{"kind": "of_elsewhere"}],
            "scenario.cluster.faults.0.kind: 'of_elsewhere': unknown fault; install the package that provides it",
        ),
        ("scenario.strategy", None, "scenario.strategy: None: write a table with the keys kind: the file is damaged"),
        ("scenario.strategy", ["x"], "scenario.strategy: ['x']: write a table with the keys kind: the file is damaged"),
        ("scenario.strategy", {}, "scenario.strategy.kind: missing; add kind = one of "),
    ],
)
def test_a_strategy_that_is_not_installed_is_told_with_its_place(
    path: str, value: object, told: str, small: Document, tmp_path: Path
) -> None:
    results = write_results(tmp_path, with_value(small, path, value))
    with pytest.raises(SimnetError) as caught:
        results_file.read(results)
    assert str(caught.value).startswith(f"{results}: points.0.{told}")


def test_a_measurement_file_is_no_results(tmp_path: Path) -> None:
    write_results(tmp_path, {"what": "simnet measurements", "format": 1, "series": []})
    with pytest.raises(SimnetError, match=r"results\.json: holds 'simnet measurements', no results of a sweep: name"):
        results_file.read(tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (lambda _: "", "is empty; run the sweep again"),
        (damaged, "not JSON: Expecting"),
        (lambda _: "\udcff", "not JSON: not UTF-8 text"),
        (lambda _: "[1, 2]", "no 'format' key"),
        (
            lambda document: json.dumps({**document, "format": 3}),
            "format 3: written by another version of simnet; this one reads 4; run the sweep again with it",
        ),
        (lambda document: json.dumps({**document, "format": 7}), "format 7: written by another version of simnet"),
        (lambda document: json.dumps({**document, "points": []}), "must not be empty"),
        (lambda document: json.dumps({**document, "points": "x"}), "is damaged"),
        (without_cluster, r"points.0.scenario.cluster: missing; add cluster = a name, or a table: the file is damaged"),
    ],
)
def test_contents_that_are_no_results_are_refused_in_one_sentence(
    contents: Callable[[Document], str], message: str, small: Document, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(contents(small).encode("utf-8", "surrogateescape"))
    with pytest.raises(SimnetError, match=message) as caught:
        results_file.read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_results_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match=r"cannot be read: No such file or directory: name the results.json"):
        results_file.read(tmp_path)
