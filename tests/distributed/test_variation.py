"""Who is slow, and by how much, from real training: by the files of `simnet measure training`, and by real traces."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.distributed.slowed import LONGER_S, RANKS_PER_NODE, SLOW_RANK, STEPS, WORLD_SIZE, measured_and_traced
from tests.helpers.cli import run
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
    fit = fitted(trained, source)
    assert len(fit["ranks"]) == WORLD_SIZE
    assert fit["num_steps"] >= STEPS
    slow = fit["ranks"][SLOW_RANK]
    assert (slow["node"], slow["local_rank"]) == divmod(SLOW_RANK, RANKS_PER_NODE)
    assert slow["is_slow"]
    assert slow["factor"] == pytest.approx(1 + LONGER_S / others_s(fit), rel=NOISE)
    assert max(one["factor"] for one in fit["ranks"] if one is not slow) < slow["factor"] - NOISE
    written = [fault for fault in fit["faults"] if fault["kind"] == "slow_rank" and fault["node"] == SLOW_RANK // 2]
    assert [one["compute_slowdown"] for one in written] == [pytest.approx(slow["factor"], abs=1e-3)]


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
    assert "slow_rank" in {fault["kind"] for fault in faults}
