"""`simnet simulate`: result, formats, timelines, lost time; and faults as a shell and Python give them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import simnet
from simnet.engine.scenario import build
from tests.helpers.cli import BANDWIDTH, assert_refused, run
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import pod, write

FAULTS = 'cluster.faults=[{kind="slow_rank", node=1, compute_slowdown=1.5}, {kind="compute_jitter", cv=0.1}]'
LOST = ("--lost-time", "--set", FAULTS, "--set", "cluster.ranks_per_node=2", "--set", "run.iterations=2", "--draws", 0)


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


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_a_device_is_written_to_and_not_replaced(file: str, option: str) -> None:
    assert run("simulate", file, option, "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.slow
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


SLOW = {"kind": "slow_rank", "node": 0, "compute_slowdown": 1.5}
JITTER = {"kind": "compute_jitter", "cv": 0.1}


@pytest.fixture
def path(tmp_path: Path) -> str:
    small = {"num_elements": 100_000, "forward": "4 ms", "backward": "8 ms", "optimizer": "1 ms"}
    return str(write(tmp_path / "pod.toml", pod(workload=small, cluster__ranks_per_node=2, strategy="all_reduce")))


def inline(value: Any) -> str:
    """Return a value as it is written on the command line: TOML in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


FEW = {"cluster.faults": [JITTER]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cluster.faults": [{"kind": "slow_rnk"}]}, "faults.0.kind: 'slow_rnk': unknown fault. Did you mean 's"),
    ({"cluster.faults": [{"kind": "ключ"}]}, "cluster.faults.0.kind: 'ключ': unknown fault."),
    ({"cluster.faults": "slow_rank"}, "cluster.faults: 'slow_rank': write a list in brackets"),
    ({"cluster.faults": "[{kind=pause}]"}, "a list in brackets as TOML has it: = after keys, text in quotes, every"),
    ({"cluster.faults": {"kind": "slow_rank"}}, "cluster.faults: {'kind': 'slow_rank'}: write a list in brackets"),
    ({"cluster.faults": [{**SLOW, "local_rnk": 1}]}, "unknown key 'local_rnk'. Did you mean 'local_rank'?"),
    ({"cluster.faults": [{**SLOW, "node": 0.5}]}, "cluster.faults.0.node: 0.5: write a whole number without quotes"),
    ({"cluster.faults": [{**SLOW, "node": True}]}, "cluster.faults.0.node: True: write a whole number without quotes"),
    ({"cluster.faults": [{**SLOW, "compute_slowdown": 1e9}]}, "must be a number of at least 1, at most 1000"),
    ({**FEW, "run.iterations": 0}, "run.iterations: 0: must be a whole number of at least 1"),
    ({**FEW, "run.iterations": "200"}, "run.iterations: '200': write a whole number without"),
    ({**FEW, "run.seed": -1}, "run.seed: -1: must be a whole number of at least 0"),
    ({**FEW, "run.seed": 0.5}, "run.seed: 0.5: write a whole number without quotes"),
    ({**FEW, "run.fidelity": "folded"}, "run.fidelity: 'folded': needs nodes that are all alike"),
    ({**FEW, "run.fidelity": "groupd"}, "'groupd': unknown. Did you mean 'grouped'?"),
    ({"cluster.slow_nodes": [{"node": 1}], "cluster.faults": [{"kind": "slow_node", "node": 1}]},
     "cluster.faults: [1, 1]: name each slow node once"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_does_not_fit_is_refused_alike_in_a_shell_and_in_python(
    settings: dict[str, Any], message: str, path: str, tmp_path: Path
) -> None:
    with refused(message):
        simnet.simulate(path, settings)
    given = [word for key, value in settings.items() for word in ("--set", f"{key}={inline(value)}")]
    output = tmp_path / "result.json"
    assert_refused(run("simulate", path, *given, "--format", "json", "-o", str(output)), message)
    assert not output.exists()


def test_amounts_and_places_of_faults_are_swept_and_points_that_do_not_fit_are_skipped(
    path: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    result = run(
        "sweep", path, "--set", f"cluster.faults={inline([SLOW])}", "--set", "cluster.faults.0.node=0,1,2",
        "--set", "cluster.faults.0.compute_slowdown=1,1.5,2", "-o", str(output), "--draws", "0",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads((output / "results.json").read_text())
    assert len(found["refused"]) == 3
    assert "refused: 3 of 9 points, which are left out" in result.output
    times_s = [one["result"]["iterations_s"][0] for one in found["points"]]
    assert times_s == pytest.approx([13e-3, 19.5e-3, 26e-3] * 2, rel=0.05)
