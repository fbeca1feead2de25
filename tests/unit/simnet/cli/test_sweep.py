"""`simnet sweep`: files, table, axes, and journals that are damaged."""

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest

from tests.helpers.cli import BANDWIDTH, assert_refused, run
from tests.helpers.journals import change, rows
from tests.helpers.scenario_samples import pod, write


def test_files_and_table_and_summary(file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("sweep", file, "-o", str(out))
    assert result.exit_code == 0
    assert "speedup of binsgdm over all_reduce" in result.stdout
    assert re.fullmatch(rf"6 points in \S+ s; wrote {out}/results.csv and {out}/results.json\n", result.stderr)
    document = json.loads((out / "results.json").read_text())
    rows = list(csv.DictReader(io.StringIO((out / "results.csv").read_text())))
    assert [point["world_size"] for point in document["points"]] == [8, 16, 32, 8, 16, 32]
    assert [row["world_size"] for row in rows] == ["8", "16", "32", "8", "16", "32"]


def test_the_summary_says_how_much_was_there_before(file: str, tmp_path: Path) -> None:
    run("sweep", file, "-o", str(tmp_path))
    assert ", 6 of them finished before; wrote" in run("sweep", file, "-o", str(tmp_path)).stderr


def test_the_same_point_twice_was_not_there_before(file: str) -> None:
    assert re.fullmatch(r"4 points in \S+ s\n", run("sweep", file, "--set", "cluster.num_nodes=2,2").stderr)


@pytest.mark.usefixtures("never_simulated")
def test_a_pipe_in_the_place_of_results_is_refused_before_simulating(file: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.csv")
    assert_refused(run("sweep", file, "-o", str(tmp_path)), "results.csv: not a regular file; remove it")


def test_several_values_make_an_axis_and_one_ends_it(file: str) -> None:
    several, one = "strategy=binsgdm,one_bit_adam", "cluster.num_nodes=4"
    document = json.loads(run("sweep", file, "--set", several, "--set", one, "--format", "json").stdout)
    assert [axis["key"] for axis in document["axes"]] == [BANDWIDTH, "strategy"]
    assert {point["world_size"] for point in document["points"]} == {32}


def test_csv_goes_to_the_terminal_without_a_directory(file: str) -> None:
    assert len(list(csv.DictReader(io.StringIO(run("sweep", file, "--format", "csv").stdout)))) == 6


def test_an_empty_sweep_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "pod.toml", pod())
    assert_refused(run("sweep", str(path)), "nothing to sweep; add a [sweep] table or --set KEY=V1,V2")


@pytest.mark.parametrize("place", ["pod.toml", "pod.toml/out"])
@pytest.mark.usefixtures("never_simulated")
def test_an_unwritable_directory_is_refused_before_simulating(file: str, tmp_path: Path, place: str) -> None:
    assert_refused(run("sweep", file, "-o", str(tmp_path / place)), "cannot be written")


@pytest.mark.usefixtures("never_simulated")
def test_a_place_of_results_that_is_a_directory_is_refused_before_simulating(file: str, tmp_path: Path) -> None:
    (tmp_path / "results.csv").mkdir()
    assert_refused(run("sweep", file, "-o", str(tmp_path)), "results.csv: is a directory")


def test_a_damaged_journal_is_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "points.sqlite").write_text("{}\n")
    told = "points.sqlite: is damaged, or no journal; delete the file to simulate all points again"
    assert_refused(run("sweep", file, "-o", str(tmp_path)), told)


@pytest.mark.usefixtures("never_simulated")
def test_a_journal_of_an_older_version_is_refused_before_simulating(file: str, tmp_path: Path) -> None:
    (tmp_path / "points.jsonl").write_text("{}\n")
    told = "points.jsonl: the journal of an older version, whose results this one does not take; delete it, or name"
    assert_refused(run("sweep", file, "-o", str(tmp_path)), told)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("result",), "text"),
        (("result", "iterations_s"), [-1.0]),
        (("result", "iterations_s"), [10**400]),
        (("result", "breakdown"), {"forward_s": "x"}),
        (("baseline", "iterations_s"), [0]),
        (("notes",), {"a": json.loads("[" * 200 + "]" * 200)}),
        (("notes",), "none"),
        (("speedup",), "fast"),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_journal_with_a_damaged_result_is_refused_before_anything_is_written(
    file: str, tmp_path: Path, path: tuple[str, ...], value: object, form: str
) -> None:
    out = tmp_path / "out"
    run("sweep", file, "-o", str(out))
    entry = json.loads(str(rows(out)[0].result))
    *outer, last = path
    place = entry
    for key in outer:
        place = place[key]
    place[last] = value
    change(out, "UPDATE points SET result = ? WHERE place = 1", json.dumps(entry))
    for name in ("results.csv", "results.json"):
        (out / name).unlink()
    before = (out / "points.sqlite").read_bytes()
    refused = run("sweep", file, "-o", str(out), "--format", form)
    assert_refused(refused, "damaged")
    assert "`" not in refused.stderr
    assert [found.name for found in out.iterdir()] == ["points.sqlite"]
    assert (out / "points.sqlite").read_bytes() == before


def test_a_journal_that_is_a_link_to_elsewhere_is_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "mine").write_text("")
    (tmp_path / "out" / "points.sqlite").symlink_to(tmp_path / "mine")
    assert_refused(run("sweep", file, "-o", str(tmp_path / "out")), "points.sqlite: a link leads out of")
    assert (tmp_path / "mine").read_text() == ""


@pytest.mark.usefixtures("never_simulated")
def test_results_that_are_a_link_to_elsewhere_are_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.csv").symlink_to(tmp_path / "mine")
    assert_refused(run("sweep", file, "-o", str(tmp_path / "out")), "results.csv: a link leads out of")
    assert not (tmp_path / "mine").exists()
