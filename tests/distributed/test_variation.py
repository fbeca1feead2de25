"""Who is slow, and by how much, from real training: by the files of `simnet measure training`, and by real traces."""

import gzip
import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.distributed.slowed import LONGER_S, RANKS_PER_NODE, SLOW_RANK, STEPS, WORLD_SIZE, measured_and_traced
from tests.helpers.cli import assert_refused, run
from tests.helpers.launch import launch, meeting_point, once

SOURCES = {"measured.json": [], "traces": ["--ranks-per-node", str(RANKS_PER_NODE)]}
NOISE = 0.1
"""Of a factor: ranks share cores with whatever else the machine does."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what was measured and traced, from one run for all tests here."""

    def train(folder: Path) -> None:
        with meeting_point() as first, meeting_point() as second:
            launch(measured_and_traced, first, second, str(folder), nprocs=WORLD_SIZE)

    return once(tmp_path_factory, "trained", train)


def fitted(trained: Path, source: str, *options: str) -> dict[str, Any]:
    done = run("calibrate", "--variation", trained / source, *SOURCES[source], "--format", "json", *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def others_s(found: Mapping[str, Any]) -> float:
    """Return the median compute of the ranks that are as they should be [s]."""
    return float(sorted(one["compute_s"] for one in found["ranks"] if one["rank"] != SLOW_RANK)[1])


@pytest.mark.timed
@pytest.mark.parametrize("source", SOURCES)
def test_the_slow_rank_is_named_with_its_factor(source: str, trained: Path) -> None:
    found = fitted(trained, source)
    assert len(found["ranks"]) == WORLD_SIZE
    assert found["num_steps"] >= STEPS
    slow = found["ranks"][SLOW_RANK]
    assert (slow["node"], slow["local_rank"]) == divmod(SLOW_RANK, RANKS_PER_NODE)
    assert slow["is_slow"]
    assert slow["factor"] == pytest.approx(1 + LONGER_S / others_s(found), rel=NOISE)
    assert max(one["factor"] for one in found["ranks"] if one is not slow) < slow["factor"] - NOISE
    written = [one for one in found["faults"] if one["kind"] == "slow_rank" and one["node"] == SLOW_RANK // 2]
    assert [one["compute_slowdown"] for one in written] == [pytest.approx(slow["factor"], abs=1e-3)]


@pytest.mark.timed
@pytest.mark.parametrize("source", SOURCES)
def test_it_comes_last_and_holds_up_the_others(source: str, trained: Path) -> None:
    found = fitted(trained, source)
    last = [one["came_last"] for one in found["ranks"]]
    assert last[SLOW_RANK] == max(last)
    assert last[SLOW_RANK] > 0.8
    held_s = [one["held_s"] for one in found["ranks"]]
    # By more where the machine is busy: all that makes it late counts.
    assert held_s[SLOW_RANK] == max(held_s) > 0.5 * LONGER_S


@pytest.mark.timed
def test_both_say_the_same(trained: Path) -> None:
    factors = [fitted(trained, source)["ranks"][SLOW_RANK]["factor"] for source in SOURCES]
    assert factors[0] == pytest.approx(factors[1], rel=NOISE)


@pytest.mark.timed
def test_the_faults_are_those_that_a_scenario_takes(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    done = run("calibrate", "--variation", trained / "measured.json", "-o", path)
    assert done.exit_code == 0, done.output
    faults = tomllib.loads(path.read_text())["cluster"]["faults"]
    scenario = tmp_path / "mine.toml"
    cluster = f"[cluster]\nuse = 'a100_8x8_10gbit'\nnum_nodes = 2\nranks_per_node = {RANKS_PER_NODE}\n"
    parts = "workload = 'bert_base'\ncalibration = 'a100_tcp_estimate'\nstrategy = 'all_reduce'\n"
    scenario.write_text(f"{parts}[run]\niterations = 20\ndraws = 0\n{cluster}{path.read_text()}")
    asked = run("simulate", scenario, "--format", "json")
    assert asked.exit_code == 0, asked.output
    late = json.loads(asked.stdout)["result"]["waits"]["late"]
    assert late[0]["rank"] == SLOW_RANK
    assert "slow_rank" in {one["kind"] for one in faults}


def copy(trained: Path, folder: Path) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"rank{rank}.json" for rank in range(WORLD_SIZE)]
    for path in paths:
        path.write_bytes(gzip.decompress((trained / "traces" / f"{path.name}.gz").read_bytes()))
    return paths


def truncated(paths: list[Path]) -> str:
    whole = paths[1].read_bytes()
    paths[1].write_bytes(whole[: len(whole) // 2])
    return "rank1.json: "


def truncated_gzip(paths: list[Path]) -> str:
    packed = gzip.compress(paths[1].read_bytes())
    paths[1].unlink()
    paths[1].with_suffix(".json.gz").write_bytes(packed[: len(packed) // 2])
    return "rank1.json.gz: "


def without_a_rank(paths: list[Path]) -> str:
    paths[SLOW_RANK].unlink()
    return "rank 2 of 4 is missing: must be one trace of every rank; add it"


def of_a_rank_twice(paths: list[Path]) -> str:
    shutil.copy(paths[0], paths[3])
    return "rank3.json: rank 0, as "


def of_other_steps(paths: list[Path]) -> str:
    whole = json.loads(paths[3].read_text())
    events = whole["traceEvents"]
    last = max((one for one in events if str(one.get("name")).startswith("ProfilerStep")), key=lambda one: one["ts"])
    events.remove(last)
    paths[3].write_text(json.dumps(whole))
    return f"rank3.json: {STEPS - 1} steps, "


def of_another_day(paths: list[Path]) -> str:
    whole = json.loads(paths[2].read_text())
    whole["baseTimeNanoseconds"] = int(whole.get("baseTimeNanoseconds", 0)) + 86_400 * 10**9
    paths[2].write_text(json.dumps(whole))
    return "must be traces of one run; give those of all its ranks, and no others"


def with_no_number(paths: list[Path]) -> str:
    whole = json.loads(paths[0].read_text())
    next(one for one in whole["traceEvents"] if one.get("ph") == "X")["dur"] = float("nan")
    paths[0].write_text(json.dumps(whole))
    return "rank0.json: "


@pytest.mark.parametrize(
    "damage",
    [truncated, truncated_gzip, without_a_rank, of_a_rank_twice, of_other_steps, of_another_day, with_no_number],
    ids=lambda one: one.__name__,
)
def test_traces_that_are_not_all_of_one_run_are_refused(damage: Any, trained: Path, tmp_path: Path) -> None:
    message = damage(copy(trained, tmp_path / "traces"))
    output = tmp_path / "faults.toml"
    done = run("calibrate", "--variation", tmp_path / "traces", "--ranks-per-node", "2", "-o", output)
    assert_refused(done, message)
    assert not output.exists()


def test_a_number_that_is_none_in_a_measurement_is_refused(trained: Path, tmp_path: Path) -> None:
    whole = json.loads((trained / "measured.json").read_text())
    whole["series"][-1]["values"][3] = float("nan")
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(whole))
    assert_refused(run("calibrate", "--variation", path), "measured.json: ")
