"""`simnet simulate`: result, formats, files, and what is refused before anything is simulated."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from simnet.engine.scenario import build
from tests.helpers.cli import BANDWIDTH, assert_refused, run
from tests.helpers.scenario_samples import pod, write


def test_the_table_names_both_strategies(file: str) -> None:
    result = run("simulate", file)
    assert result.exit_code == 0
    assert "binsgdm" in result.stdout
    assert "all_reduce" in result.stdout
    assert f"simnet sweep {file}" in result.stderr


def test_json_has_what_programs_read(file: str) -> None:
    found = json.loads(run("simulate", file, "--format", "json").stdout)
    assert build(found["scenario"]).name == "pod"
    assert found["world_size"] == 16
    result, baseline = found["result"], found["baseline"]
    assert sum(result["breakdown"].values()) == pytest.approx(result["iterations_s"][0])
    assert found["speedup"] == pytest.approx(baseline["iterations_s"][0] / result["iterations_s"][0])


def test_json_is_a_scenario_that_gives_the_same_result(file: str, tmp_path: Path) -> None:
    first = run("simulate", file, "--format", "json").stdout
    (tmp_path / "result.json").write_text(first)
    assert run("simulate", str(tmp_path / "result.json"), "--format", "json").stdout == first


def test_csv_is_one_row(file: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("simulate", file, "--format", "csv").stdout)))
    assert [row["world_size"] for row in rows] == ["16"]


def test_values_are_set(file: str) -> None:
    result = run("simulate", file, "--set", "cluster.num_nodes=4", "--set", f"{BANDWIDTH}=1 Gbit/s", "--format", "json")
    cluster = json.loads(result.stdout)["scenario"]["cluster"]
    assert (cluster["num_nodes"], cluster["inter_node"]["bandwidth"]) == (4, "1 Gbit/s")


def test_a_file_is_written(file: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    result = run("simulate", file, "--format", "json", "-o", str(out))
    assert result.stdout == ""
    assert json.loads(out.read_text())["world_size"] == 16


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_a_device_is_written_to_and_not_replaced(file: str, option: str) -> None:
    assert run("simulate", file, option, "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_a_timeline_is_written(file: str, tmp_path: Path) -> None:
    run("simulate", file, "--trace", str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("option", ["-o", "--trace"])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "is a directory; name a file"),
        ("pod.toml/result", "cannot be written (Not a directory); name another with {option}"),
        ("new/result", "no such directory; make it, or name another file with {option}"),
        ("a" * 300, "cannot be written (File name too long); name another with {option}"),
    ],
)
@pytest.mark.usefixtures("never_simulated")
def test_an_unwritable_place_is_refused_before_simulating(
    file: str, tmp_path: Path, option: str, place: str, message: str
) -> None:
    assert_refused(run("simulate", file, option, str(tmp_path / place)), message.format(option=option))
    assert [path.name for path in tmp_path.iterdir()] == ["pod.toml"]


@pytest.mark.parametrize("option", ["-o", "--trace"])
@pytest.mark.usefixtures("never_simulated")
def test_links_in_a_circle_and_empty_names_are_refused_before_simulating(
    file: str, tmp_path: Path, option: str
) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused = run("simulate", file, option, str(tmp_path / "loop"))
    assert refused.exit_code == 2
    assert re.search("in a circle|Too many levels", refused.stderr)
    assert_refused(run("simulate", file, option, ""), "'': is empty; name a file or a directory.")


@pytest.mark.usefixtures("never_simulated")
def test_one_file_for_result_and_timeline_is_refused(file: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "same.json")
    result = run("simulate", file, "-o", str(tmp_path / "same.json"), "--trace", str(tmp_path / "link"))
    assert_refused(result, "link: is named by -o and by --trace; name two files")


@pytest.mark.usefixtures("never_simulated")
def test_bytes_that_are_no_text_are_refused(file: str) -> None:
    assert_refused(run("simulate", file, "--set", "cluster.name=\udcff"), "'cluster.name=\\udcff': has bytes that are")


def test_an_unknown_scenario_is_refused() -> None:
    assert_refused(run("simulate", "nonesuch"), "'nonesuch': unknown experiment.")


def test_a_wrong_setting_is_refused(file: str) -> None:
    assert_refused(run("simulate", file, "--set", "cluster.num_node=4"), "--set: cluster: unknown key 'num_node'.")


def test_parts_that_contradict_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "pod.toml", pod(workload__gradient="1 GB"))
    assert_refused(run("simulate", str(path)), "gradient and num_elements")


def test_a_timeline_has_as_many_iterations_as_asked_for(file: str, tmp_path: Path) -> None:
    assert run("simulate", file, "--trace", str(tmp_path / "t.json"), "--trace-iterations", "2").exit_code == 0
    for name in ("t.json", "t.baseline.json"):
        found = json.loads((tmp_path / name).read_text())["traceEvents"]
        assert [one["name"] for one in found if one.get("cat") == "user_annotation" and "Step#" in one["name"]] == [
            "ProfilerStep#1",
            "ProfilerStep#2",
        ]


@pytest.mark.usefixtures("never_simulated")
def test_numbers_of_iterations_that_mean_nothing_are_refused(file: str, tmp_path: Path) -> None:
    refused = run("simulate", file, "--trace", str(tmp_path / "t.json"), "--trace-iterations", "0")
    assert_refused(refused, "0 is not in the range 1<=x<=1000.")
    assert_refused(run("simulate", file, "--trace-iterations", "2"), "--trace-iterations: no effect without --trace")
    assert list(tmp_path.iterdir()) == [Path(file)]


@pytest.mark.usefixtures("never_simulated")
def test_the_baseline_s_timeline_replaces_neither_the_result_nor_an_input(file: str, tmp_path: Path) -> None:
    beside = tmp_path / "t.baseline.json"
    refused = run("simulate", file, "-o", str(beside), "--trace", str(tmp_path / "t.json"))
    assert_refused(refused, "t.baseline.json: is named by -o and by --trace; name two files")
    source = Path(file).rename(tmp_path / "pod.baseline.toml")
    refused = run("simulate", str(source), "--trace", str(tmp_path / "pod.toml"))
    assert_refused(refused, "pod.baseline.toml")
    beside.mkdir()
    assert_refused(run("simulate", str(source), "--trace", str(tmp_path / "t.json")), "is a directory; name a file")


FEW_RANKS = ("--set", "cluster.ranks_per_node=2")
FAULTS = 'cluster.faults=[{kind="slow_rank", node=1, compute_slowdown=1.5}, {kind="compute_jitter", cv=0.1}]'


def test_lost_time_is_told_in_the_table_and_in_json(file: str) -> None:
    asked = ["simulate", file, "--set", FAULTS, *FEW_RANKS, "--set", "run.iterations=3", "--draws", "0", "--lost-time"]
    assert re.search(r"^slow rank: node 1, .*ms +\d", run(*asked).stdout, re.MULTILINE)
    found = json.loads(run(*asked, "--format", "json").stdout)
    for side in (found["result"], found["baseline"]):
        faults = side["lost_time"]["faults"]
        assert [one["key"] for one in faults] == ["cluster.faults.0", "cluster.faults.1"]
        assert faults[0]["lost"]["mean_s"] > 0


def test_json_of_lost_time_is_read_back_and_simulated_again(file: str, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    asked = [
        "--set",
        FAULTS,
        *FEW_RANKS,
        "--set",
        "run.iterations=2",
        "--draws",
        "0",
        "--format",
        "json",
        "-o",
        str(out),
    ]
    assert run("simulate", file, "--lost-time", *asked).exit_code == 0
    assert run("plot", str(out), "-o", str(tmp_path), "--figure", "lost_time").exit_code == 0
    assert "lost_time" not in json.loads(run("simulate", str(out), "--format", "json").stdout)["result"]


@pytest.mark.usefixtures("never_simulated")
def test_lost_time_that_has_no_effect_is_refused(file: str) -> None:
    assert_refused(run("simulate", file, "--lost-time"), "--lost-time: pod: cluster.faults: []: no fault that time is")
    refused = run("simulate", file, "--lost-time", "--set", FAULTS, "--format", "csv")
    assert_refused(refused, "--lost-time: no effect on --format csv, which is one row; take table or json")
