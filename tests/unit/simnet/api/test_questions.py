"""The Python API asks what the commands ask, and says what is wrong with a question."""

import json
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import sweeps
from tests.helpers.cli import run
from tests.helpers.refusals import refused

BERT = "bert_base_10gbit"
NODES, RATE = "cluster.num_nodes", "cluster.inter_node.bandwidth"


def printed(*args: str) -> Any:
    result = run(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_simulate_says_what_the_command_says() -> None:
    found = simnet.simulate(BERT, {NODES: 4})
    assert json.loads(found.to_json()) == printed("simulate", BERT, "--set", f"{NODES}=4")
    assert str(found) == run("simulate", BERT, "--set", f"{NODES}=4").stdout.rstrip("\n")
    replaced = simnet.simulate(simnet.load(BERT).replace(**{NODES: 2, RATE: "40 Gbit/s"}), draws=0)
    theirs = printed("simulate", BERT, "--set", f"{NODES}=2", "--set", f"{RATE}=40 Gbit/s", "--draws", "0")
    assert (replaced.iteration_s, replaced.speedup) == (sum(theirs["result"]["iterations_s"]), theirs["speedup"])


def test_simulate_says_what_faults_cost_as_the_command_does() -> None:
    slow = {NODES: 2, "cluster.faults": [{"kind": "slow_rank", "node": 0, "compute_slowdown": 2.0}]}
    faults = 'cluster.faults=[{kind = "slow_rank", node = 0, compute_slowdown = 2.0}]'
    asked = ("--set", f"{NODES}=2", "--set", faults, "--lost-time", "--draws", "0")
    found = simnet.simulate(BERT, slow, lost_time=True, draws=0)
    assert json.loads(found.to_json()) == printed("simulate", BERT, *asked)
    with refused("no fault that time is lost to; add one"):
        simnet.simulate(BERT, lost_time=True)


@pytest.mark.slow
def test_other_questions_are_answered_as_the_commands_answer_them() -> None:
    ends = {"start": "10 Gbit/s", "end": "400 Gbit/s"}
    crossing = simnet.crossover(BERT, over=RATE, **ends, draws=0)
    asked = ("--over", RATE, "--from", ends["start"], "--to", ends["end"], "--draws", "0")
    assert json.loads(crossing.to_json()) == printed("crossover", BERT, *asked)
    reached = simnet.time_to_target(BERT, "characters", at=["10 Gbit/s"], same_task=True, draws=0)
    theirs = printed("time-to-target", BERT, "characters", "--at", "10 Gbit/s", "--same-task", "--draws", "0")
    assert json.loads(reached.to_json()) == theirs
    advice = simnet.advise(BERT, systems=["BinSGDM", "fp8"], draws=0)
    theirs = printed("advise", BERT, "--systems", "BinSGDM,fp8", "--draws", "0")
    assert json.loads(advice.to_json()) == theirs
    assert list(advice.sentences) == [f"{label}: {text}" for label, text in theirs["answer"].items()]


def test_sweep_says_what_the_command_says() -> None:
    found = simnet.sweep(BERT, {NODES: [2, 4]}, settings={RATE: "10 Gbit/s"})
    theirs = printed("sweep", BERT, "--set", f"{NODES}=2,4", "--set", f"{RATE}=10 Gbit/s")
    assert json.loads(found.to_json()) == theirs
    assert [one.num_nodes for one in found] == [2, 4] == [found[0].num_nodes, found[-1].num_nodes]
    assert len(found) == len(found[:]) == 2
    odd = simnet.sweep(BERT, {"run.global_batch": [4096, 4097]}, draws=0)
    assert (len(odd), len(odd.refused)) == (1, 1), "what does not hold together is refused in the result"


def test_a_sweep_of_listed_points_reports_its_progress_and_goes_on_from_its_journal(tmp_path: Path) -> None:
    counts: list[int] = []
    points = [{NODES: 2, "workload.batch_per_rank": 32}, {NODES: 4, "workload.batch_per_rank": 16}]
    first = simnet.sweep(BERT, points=points, draws=0, output=tmp_path, progress=counts.append)
    assert sum(counts) == 2
    assert counts[0] == 0
    counts.clear()
    assert simnet.sweep(BERT, points=points, draws=0, output=tmp_path, progress=counts.append) == first
    assert counts == [2]


def test_names_are_loaded_when_they_are_used() -> None:
    assert set(simnet.__all__) <= set(dir(simnet))
    assert all(getattr(simnet, name) for name in simnet.__all__)
    assert simnet.sweep is not sweeps
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = simnet.nothing  # type: ignore[attr-defined]
