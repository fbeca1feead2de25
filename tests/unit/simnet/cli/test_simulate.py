"""`simnet simulate`: result, formats, files, timelines and lost time."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from simnet.engine.scenario import build
from tests.helpers.cli import BANDWIDTH, run

FAULTS = 'cluster.faults=[{kind="slow_rank", node=1, compute_slowdown=1.5}, {kind="compute_jitter", cv=0.1}]'
LOST = ("--lost-time", "--set", FAULTS, "--set", "cluster.ranks_per_node=2", "--set", "run.iterations=2", "--draws", 0)


def test_the_table_names_both_strategies_and_the_sweep(file: str) -> None:
    result = run("simulate", file)
    assert result.exit_code == 0
    assert "binsgdm" in result.stdout
    assert "all_reduce" in result.stdout
    assert f"simnet sweep {file}" in result.stderr


def test_json_has_what_programs_read_and_is_a_scenario_that_gives_the_same(file: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    settings = ("--set", "cluster.num_nodes=4", "--set", f"{BANDWIDTH}=1 Gbit/s")
    assert run("simulate", file, *settings, "--format", "json", "-o", out).stdout == ""
    found = json.loads(out.read_text())
    scenario = build(found["scenario"])
    assert (scenario.name, scenario.cluster.num_nodes, scenario.cluster.inter_node.bytes_per_s) == ("pod", 4, 1e9 / 8)
    assert found["world_size"] == 32
    result, baseline = found["result"], found["baseline"]
    assert sum(result["breakdown"].values()) == pytest.approx(result["iterations_s"][0])
    assert found["speedup"] == pytest.approx(baseline["iterations_s"][0] / result["iterations_s"][0])
    assert run("simulate", out, "--format", "json").stdout == out.read_text()


def test_csv_is_one_row(file: str) -> None:
    rows = list(csv.DictReader(io.StringIO(run("simulate", file, "--format", "csv").stdout)))
    assert [row["world_size"] for row in rows] == ["16"]


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_a_device_is_written_to_and_not_replaced(file: str, option: str) -> None:
    assert run("simulate", file, option, "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


def test_a_timeline_has_as_many_iterations_as_asked_for(file: str, tmp_path: Path) -> None:
    assert run("simulate", file, "--trace", tmp_path / "t.json", "--trace-iterations", "2").exit_code == 0
    for name in ("t.json", "t.baseline.json"):
        found = json.loads((tmp_path / name).read_text())["traceEvents"]
        assert [one["name"] for one in found if one.get("cat") == "user_annotation" and "Step#" in one["name"]] == [
            "ProfilerStep#1",
            "ProfilerStep#2",
        ]


def test_lost_time_is_told_in_the_table_and_in_json_that_is_read_back(file: str, tmp_path: Path) -> None:
    assert re.search(r"^slow rank: node 1, .*ms +\d", run("simulate", file, *LOST).stdout, re.MULTILINE)
    out = tmp_path / "run.json"
    assert run("simulate", file, *LOST, "--format", "json", "-o", out).exit_code == 0
    found = json.loads(out.read_text())
    for side in (found["result"], found["baseline"]):
        faults = side["lost_time"]["faults"]
        assert [one["key"] for one in faults] == ["cluster.faults.0", "cluster.faults.1"]
        assert faults[0]["lost"]["mean_s"] > 0
    assert run("plot", out, "-o", tmp_path, "--figure", "lost_time").exit_code == 0
    assert "lost_time" not in json.loads(run("simulate", out, "--format", "json").stdout)["result"]
