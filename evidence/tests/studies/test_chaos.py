"""A rank that is lost at a random moment: the others end, and say which it is. `studies run chaos` has more."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from evidence.studies import chaos_ranks
from evidence.studies.chaos import KINDS, cases, plan
from tests.helpers.launch import launch, once

pytestmark = pytest.mark.slow

CASES = {case.name: case for case in cases()}
RUNS = {
    "rank 0 is killed with the store": replace(
        plan(0),
        kind="kill",
        case=CASES["BinSGDM, overlap"],
        victim=0,
        store_at_rank_0=True,
        world_size=3,
        ranks_per_node=1,
    ),
    "rank 0 is stopped with the store": replace(
        plan(1),
        kind="stop",
        case=CASES["1-bit Adam"],
        victim=0,
        store_at_rank_0=True,
        world_size=3,
        ranks_per_node=3,
        timeout_s=1.5,
    ),
    "a rank raises in backward, on a host of its own": replace(
        plan(2),
        kind="raise",
        case=CASES["random_k, all_reduce"],
        victim=2,
        place="in backward",
        world_size=4,
        ranks_per_node=2,
        are_hosts_apart=True,
    ),
}


def run_all(_: int, folder: str) -> None:
    chaos_ranks.prepare()
    outcomes = {name: chaos_ranks.run(run) for name, run in RUNS.items()}
    (Path(folder) / "found.json").write_text(json.dumps(outcomes))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = once(tmp_path_factory, "chaos", lambda path: launch(run_all, str(path), nprocs=1))
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("name", RUNS)
def test_every_survivor_ends_and_names_the_rank_that_is_gone(results, name):
    faults = [fault for fault in results[name]["faults"] if "took" not in fault]  # no test measures time
    assert faults == []
    assert results[name]["survivors"], "nobody was asked"


def test_a_hundred_runs_have_every_kind_of_mishap_and_every_case():
    plans = [plan(seed) for seed in range(100)]
    assert {each.kind for each in plans} == set(KINDS)
    assert {each.case.name for each in plans} == set(CASES)
