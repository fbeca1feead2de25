"""The results.json of a sweep: what is no such file, or a damaged one, is refused in one sentence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from simnet.analysis import results_file
from tests.helpers.refusals import refused
from tests.helpers.report_samples import sweep_document, with_value, write_results

STRATEGY, FAULTS = "scenario.strategy", "scenario.cluster.faults"
INSTALL = "install the package that provides it"
DAMAGE = [
    ("scenario.cluster.num_nodes", 0, "num_nodes"),
    ("scenario.cluster.num_nodes", 10**6, "at most 1000000 ranks"),
    ("scenario.cluster.inter_node.bandwidth", "0 Gbit/s", "scenario"),
    ("scenario.workload", [1], "workload"),
    ("scenario.calibration", None, "calibration"),
    (STRATEGY, ["x"], "scenario.strategy: ['x']: write a table with the keys kind: the file is damaged"),
    ("world_size", 0, "world_size"),
    ("world_size", 7, "world_size: 7: must be at least the number of nodes, 8"),
    ("speedup", 0, "speedup"),
    ("result.iterations_s", [0], "iterations_s"),
    ("result.iterations_s", [], "iterations_s"),
    ("result.iterations_s", [float("inf")], "must be finite"),
    ("result.samples_per_s", 0, "samples_per_s"),
    ("result.breakdown.forward_s", -0.1, "breakdown: forward_s -0.1"),
]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        *((path, value, (said, "is damaged")) for path, value, said in DAMAGE),
        (STRATEGY, {"kind": "elsewhere"}, (f"points.0.{STRATEGY}.kind: 'elsewhere': unknown strategy; {INSTALL}",)),
        (FAULTS, [{"kind": "elsewhere"}], (f"points.0.{FAULTS}.0.kind: 'elsewhere': unknown fault; {INSTALL}",)),
        (STRATEGY, {}, ("points.0.scenario.strategy.kind: missing; add kind = one of ",)),
    ],
)
def test_damaged_numbers_and_parts_are_told_with_their_place(
    path: str, value: object, said: tuple[str, ...], tmp_path: Path
) -> None:
    results = write_results(tmp_path, with_value(sweep_document(("bert_base",), (10, 100), (1, 8)), path, value))
    with refused(*said, start=f"{results}: "):
        results_file.read(results)


def changed(**more: Any) -> str:
    return json.dumps({**sweep_document(("bert_base",), (10,), (1,)), **more})


def without_cluster() -> str:
    document = sweep_document(("bert_base",), (10,), (1,))
    del document["points"][0]["scenario"]["cluster"]
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file: name the results.json"),
        ("", "is empty; run the sweep again"),
        (changed()[:-100], "not JSON: Expecting"),
        ("\udcff", "not JSON: not UTF-8 text"),
        ("[1, 2]", "no 'format' key"),
        ('{"what": "simnet measurements", "format": 1}', "holds 'simnet measurements', no results of a sweep: name"),
        (
            changed(format=4),
            "format 4: written by another version of simnet; this one reads 5; run the sweep again with it",
        ),
        (changed(format=7), "format 7: written by another version of simnet"),
        (changed(points=[]), "must not be empty"),
        (changed(points="x"), "is damaged"),
        (
            without_cluster(),
            "points.0.scenario.cluster: missing; add cluster = a name, or a table: the file is damaged",
        ),
    ],
)
def test_contents_that_are_no_results_are_refused_in_one_sentence(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with refused(said, start=path):
        results_file.read(tmp_path)


def test_of_two_forms_in_a_folder_the_newer_is_taken(tmp_path: Path) -> None:
    for name in ("results.json", "results.parquet"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "results.json", (1, 1))
    assert results_file.file_in(tmp_path).name == "results.parquet"
    os.utime(tmp_path / "results.parquet", (0, 0))
    assert results_file.file_in(tmp_path).name == "results.json"
