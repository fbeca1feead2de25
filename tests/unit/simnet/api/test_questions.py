"""The Python API asks what the commands ask, and says what is wrong with a question."""

import json
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import sweeps
from simnet.core.errors import SimnetError
from tests.helpers.cli import run

BERT = "bert_base_10gbit"
NODES = "cluster.num_nodes"


def printed(*args: str) -> Any:
    result = run(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_simulate_says_what_the_command_says() -> None:
    found = simnet.simulate(BERT, {NODES: 4})
    assert json.loads(found.to_json()) == printed("simulate", BERT, "--set", f"{NODES}=4")
    assert str(found) == run("simulate", BERT, "--set", f"{NODES}=4").stdout.rstrip("\n")


def test_simulate_says_what_faults_cost_as_the_command_does() -> None:
    slow = {NODES: 2, "cluster.faults": [{"kind": "slow_rank", "node": 0, "compute_slowdown": 2.0}]}
    faults = 'cluster.faults=[{kind = "slow_rank", node = 0, compute_slowdown = 2.0}]'
    asked = ("--set", f"{NODES}=2", "--set", faults, "--lost-time", "--draws", "0")
    found = simnet.simulate(BERT, slow, lost_time=True, draws=0)
    assert json.loads(found.to_json()) == printed("simulate", BERT, *asked)
    with pytest.raises(SimnetError, match="no fault that time is lost to; add one"):
        simnet.simulate(BERT, lost_time=True)


def test_a_scenario_that_was_replaced_is_simulated_as_the_command_would() -> None:
    scenario = simnet.load(BERT).replace(**{NODES: 2, "cluster.inter_node.bandwidth": "40 Gbit/s"})
    found = simnet.simulate(scenario, draws=0)
    asked = ("--set", f"{NODES}=2", "--set", "cluster.inter_node.bandwidth=40 Gbit/s", "--draws", "0")
    theirs = printed("simulate", BERT, *asked)
    assert (found.iteration_s, found.speedup) == (sum(theirs["result"]["iterations_s"]), theirs["speedup"])


def test_sweep_says_what_the_command_says() -> None:
    found = simnet.sweep(BERT, {NODES: [2, 4]}, settings={"cluster.inter_node.bandwidth": "10 Gbit/s"})
    theirs = printed("sweep", BERT, "--set", f"{NODES}=2,4", "--set", "cluster.inter_node.bandwidth=10 Gbit/s")
    assert json.loads(found.to_json()) == theirs
    assert [one.num_nodes for one in found] == [2, 4] == [found[0].num_nodes, found[-1].num_nodes]
    assert len(found) == len(found[:]) == 2


def test_a_sweep_of_listed_points_reports_its_progress_and_goes_on_from_its_journal(tmp_path: Path) -> None:
    counts: list[int] = []
    points = [{NODES: 2, "workload.batch_per_rank": 32}, {NODES: 4, "workload.batch_per_rank": 16}]
    first = simnet.sweep(BERT, points=points, draws=0, output=tmp_path, progress=counts.append)
    assert sum(counts) == 2
    assert counts[0] == 0
    counts.clear()
    assert simnet.sweep(BERT, points=points, draws=0, output=tmp_path, progress=counts.append) == first
    assert counts == [2]


def test_a_point_that_does_not_hold_together_is_refused_in_the_result() -> None:
    found = simnet.sweep(BERT, {"run.global_batch": [4096, 4097]}, draws=0)
    assert (len(found), len(found.refused)) == (1, 1)


@pytest.mark.slow
def test_crossover_says_what_the_command_says() -> None:
    over = "cluster.inter_node.bandwidth"
    found = simnet.crossover(BERT, over=over, start="10 Gbit/s", end="400 Gbit/s", draws=0)
    asked = ("--over", over, "--from", "10 Gbit/s", "--to", "400 Gbit/s", "--draws", "0")
    assert json.loads(found.to_json()) == printed("crossover", BERT, *asked)


@pytest.mark.slow
def test_advise_says_what_the_command_says() -> None:
    found = simnet.advise(BERT, systems=["BinSGDM", "fp8"], draws=0)
    theirs = printed("advise", BERT, "--systems", "BinSGDM,fp8", "--draws", "0")
    assert json.loads(found.to_json()) == theirs
    assert list(found.sentences) == [f"{label}: {text}" for label, text in theirs["answer"].items()]


@pytest.mark.slow
def test_time_to_target_says_what_the_command_says() -> None:
    found = simnet.time_to_target(BERT, "characters", at=["10 Gbit/s"], same_task=True, draws=0)
    theirs = printed("time-to-target", BERT, "characters", "--at", "10 Gbit/s", "--same-task", "--draws", "0")
    assert json.loads(found.to_json()) == theirs


def test_names_are_loaded_when_they_are_used() -> None:
    assert set(simnet.__all__) <= set(dir(simnet))
    assert all(getattr(simnet, name) for name in simnet.__all__)
    assert simnet.sweep is not sweeps
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = simnet.nothing  # type: ignore[attr-defined]
