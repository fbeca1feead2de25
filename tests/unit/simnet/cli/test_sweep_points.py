"""`simnet sweep` over lists of points, and with points that are refused: output, exit codes, files."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from tests.helpers.cli import assert_refused, run
from tests.helpers.scenario_samples import pod, write

NODES, BATCH = "cluster.num_nodes", "workload.batch_per_rank"
HEAD = f"{NODES},{BATCH}"


@pytest.fixture
def pod_file(tmp_path: Path) -> str:
    return str(write(tmp_path / "pod.toml", pod()))


@pytest.fixture
def dividing(pod_file: str) -> tuple[str, ...]:
    """A sweep of which 3 nodes do not divide the global batch."""
    return ("sweep", pod_file, "--set", "run.global_batch=64", "--set", f"{NODES}=1,2,3,4", "--draws", "0")


def nodes_of(csv_text: str) -> list[str]:
    return [row[NODES] for row in csv.DictReader(io.StringIO(csv_text))]


def test_refused_points_are_counted_and_told_and_the_others_written(dividing: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(*dividing, "-o", str(out))
    assert result.exit_code == 0
    assert re.match(r"4 points in \S+ s, 1 of them refused; wrote ", result.stderr)
    told = " ".join(result.stdout.split())
    assert "refused: 1 of 4 points, which are left out: cluster.num_nodes = 3: " in told
    assert "run.global_batch: 64: must be a multiple of 24 ranks x 1 samples = 24; change it" in told
    assert "note: run.global_batch = 64: gradients are accumulated over 2 to 8 micro-batches" in told
    document = json.loads((out / "results.json").read_text())
    assert [point["set"] for point in document["refused"]] == [{NODES: 3}]
    assert nodes_of((out / "results.csv").read_text()) == ["1", "2", "4"]
    again = run(*dividing, "-o", str(out))
    assert ", 1 of them refused, 4 of them finished before; wrote" in again.stderr
    assert again.stdout == result.stdout


@pytest.mark.parametrize("form", ["csv", "json"])
def test_other_formats_tell_them_on_stderr(dividing: tuple[str, ...], form: str) -> None:
    result = run(*dividing, "--format", form)
    assert "refused: 1 of 4 points" in result.stderr
    assert "refused: 1" not in result.stdout
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        assert [row["grad_accumulation"] for row in rows] == ["8", "4", "2"]
        assert all(float(row["baseline_iteration_s"]) > 0 for row in rows)


def test_strict_tells_scripts_by_the_exit_code(dividing: tuple[str, ...], pod_file: str, tmp_path: Path) -> None:
    result = run(*dividing, "--strict", "-o", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert (tmp_path / "out" / "results.json").exists()
    assert run("sweep", pod_file, "--set", f"{NODES}=1,2", "--strict").exit_code == 0


def test_no_point_left_is_a_refusal_and_nothing_is_written(pod_file: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert_refused(run("sweep", pod_file, "--set", f"{NODES}=0,-1", "-o", out), "all 2 points are refused")
    assert not Path(out).exists()


def test_accumulation_beside_a_global_batch_is_refused(pod_file: str) -> None:
    both = ("--set", "run.global_batch=64", "--set", "run.grad_accumulation=2")
    assert_refused(run("simulate", pod_file, *both), "--set: run.grad_accumulation: 2: follows from global_batch = 64")


def test_points_are_given_one_by_one(pod_file: str) -> None:
    points = ("--point", f"{NODES}=2, {BATCH}=64", "--point", f"{BATCH}=32,{NODES}=4", "--set", "strategy=binsgdm,qsgd")
    rows = list(csv.DictReader(io.StringIO(run("sweep", pod_file, *points, "--format", "csv").stdout)))
    assert [(row[NODES], row[BATCH], row["strategy"]) for row in rows] == [
        ("2", "64", "binsgdm"), ("2", "64", "qsgd"), ("4", "32", "binsgdm"), ("4", "32", "qsgd")
    ]  # fmt: skip


def test_points_come_from_a_csv_file(pod_file: str, tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_text(f"{NODES};cluster.inter_node.bandwidth\n# ours\n2;10 Gbit/s\n\n4;25 Gbit/s\n")
    document = json.loads(run("sweep", pod_file, "--points", str(table), "--format", "json").stdout)
    assert [point["set"] for point in document["points"]] == [
        {NODES: 2, "cluster.inter_node.bandwidth": "10 Gbit/s"},
        {NODES: 4, "cluster.inter_node.bandwidth": "25 Gbit/s"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "points.csv: no points: write keys in the head"),
        (HEAD, "points.csv: no points: write keys in the head"),
        (f"{HEAD}\n2", "points.csv:2: 1 values: the head has 2 keys; give a value for each"),
        (f"{HEAD}\n2,", "points.csv:2: 1 values: the head has 2 keys; give a value for each"),
        (f"{HEAD}\n2,3,4", "points.csv:2: 3 values: the head has 2 keys"),
        (f"{HEAD},\n2,3,4", "points.csv: '': is no key; write keys in the head"),
        (f"{NODES},{NODES}\n2,3", "points.csv: 'cluster.num_nodes': two columns; drop one"),
        ("nodes\n2\n4", "points.csv: unknown key 'nodes'"),
        (f"{HEAD}\n{'9' * 5000},1", "a whole number of more than 300 digits"),
    ],
)
def test_a_file_that_holds_no_points_is_refused(pod_file: str, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "points.csv").write_text(text)
    assert_refused(run("sweep", pod_file, "--points", str(tmp_path / "points.csv")), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--points", "nonesuch.csv"), "nonesuch.csv: cannot be read: No such file"),
        (("--points", "x.csv", "--point", "a=1"), "--points: x.csv: --point lists points, too; give one of the two"),
        (("--point", "4"), "--point: '4': write KEY=VALUE, such as cluster.num_nodes=16"),
        (("--point", ""), "--point '': no key"),
        (("--point", f"{NODES}=1,{NODES}=2"), "--point: 'cluster.num_nodes=2': 'cluster.num_nodes' set twice"),
        (("--point", f"{NODES}=1", "--point", f"{BATCH}=2"), "no 'cluster.num_nodes': every point has the same keys"),
        (("--point", f"{NODES}=1", "--set", f"{NODES}=2"), "--set: 'cluster.num_nodes': is a key of the points, too"),
        (("--point", f"{NODES}=1", "--set", f"{NODES}=2,4"), "--set: 'cluster.num_nodes': is a key of the points, too"),
    ],
    ids=str,
)
def test_what_is_no_list_of_points_is_refused(pod_file: str, options: tuple[str, ...], message: str) -> None:
    assert_refused(run("sweep", pod_file, *options), message)


def test_a_single_point_tells_that_its_file_lists_more(tmp_path: Path) -> None:
    file = str(write(tmp_path / "pod.toml", pod(sweep={"points": [{NODES: 1}, {NODES: 2}]})))
    assert "note: this is one point; the whole sweep: simnet sweep" in run("simulate", file).stderr
    assert run("check", file).stdout == f"{file}: ok: experiment, 2 points\n"
    assert '[sweep]\npoints = [\n    { "cluster.num_nodes" = 1 },\n' in run("show", file).stdout
