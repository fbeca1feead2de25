"""The comparison of all systems in training: its page says what its files say, and the files are whole."""

import json
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")

from evidence.studies.candidates import ALL, CANDIDATES, IN_TOPOLOGY, PLAIN
from evidence.studies.study import CURVES, best_of, mean_loss, next_trial
from evidence.studies.systems import (
    FINAL_SEEDS,
    NUM_TRIALS,
    SEARCH_SEEDS,
    TASKS,
    TOPOLOGY_RANKS,
    Outcome,
    SystemsStudy,
)

NUM_SEEDS = {4: 5, 16: 5}
"""On which all systems have run, by ranks."""
NUM_TOPOLOGY_SEEDS = {"characters": 3, "mnist_5k": 3, "digits": 3}
"""On which all systems have run in all topologies, by task."""


@pytest.fixture(scope="module")
def study() -> SystemsStudy:
    return SystemsStudy()


def document(task: str) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((CURVES / f"{task}.json").read_text())
    return whole


@pytest.mark.parametrize("task", TASKS)
def test_every_system_has_a_curve_of_every_seed_of_the_page(study: SystemsStudy, task: str) -> None:
    curves = [(row["system"], row["ranks"], row["seed"]) for row in document(task)["curves"]]
    assert len(curves) == len(set(curves))
    for ranks, number in NUM_SEEDS.items():
        wanted = {(system, ranks, seed) for system in CANDIDATES for seed in FINAL_SEEDS[:number]}
        assert wanted <= set(curves)
        assert Outcome(study, task).seeds(ranks)[:number] == list(FINAL_SEEDS[:number])


@pytest.mark.parametrize("task", TASKS)
def test_every_system_has_a_curve_of_as_many_seeds_in_every_topology(study: SystemsStudy, task: str) -> None:
    curves = [(row["system"], row["ranks"], row["seed"]) for row in document(task)["curves"]]
    seeds = list(range(NUM_TOPOLOGY_SEEDS[task]))
    assert {(name, TOPOLOGY_RANKS, seed) for name in IN_TOPOLOGY for seed in seeds} <= set(curves)
    assert Outcome(study, task).topology_seeds == seeds


@pytest.mark.parametrize("task", TASKS)
def test_the_file_says_what_each_system_ran_with(study: SystemsStudy, task: str) -> None:
    head = document(task)
    assert (head["format"], head["version"], head["better"]) == ("simnet-convergence", 2, "lower")
    assert list(head["systems"]) == [*CANDIDATES, *(IN_TOPOLOGY if NUM_TOPOLOGY_SEEDS[task] else ())]
    for system, described in head["systems"].items():
        rows = [row for row in study.search_of(task, system).rows if None not in row["losses"]]
        best = min(rows, key=lambda row: float(sum(row["losses"])))
        assert {"optimizer": described["optimizer"], **described["settings"]} == best["trial"]
        assert described["strategy"]["kind"] == (ALL[system].kind or system)


@pytest.mark.parametrize("task", TASKS)
def test_all_searches_had_as_many_trials_by_the_same_rule(study: SystemsStudy, task: str) -> None:
    assert not set(SEARCH_SEEDS[task]) & set(FINAL_SEEDS)
    for system, candidate in (CANDIDATES | PLAIN).items():
        rows = study.searches[task, system].rows
        assert study.searches[task, system].is_done
        fixed = [row["trial"] for row in rows[:4]]
        assert fixed == list(candidate.fixed_trials)
        for number in (4, 5):
            assert next_trial(candidate.fixed_trials, rows[:number], NUM_TRIALS) == rows[number]["trial"]


def test_every_system_has_as_many_plain_runs(study: SystemsStudy) -> None:
    runs = [(row["task"], row["system"], row["ranks"], row["seed"]) for row in study.plain.rows]
    wanted = {
        (task, system, ranks, seed) for task in TASKS for system in PLAIN for ranks in NUM_SEEDS for seed in FINAL_SEEDS
    }
    assert len(runs) == len(set(runs))
    assert set(runs) == wanted


def test_a_system_runs_with_a_remedy_only_where_the_search_had_it_better(study: SystemsStudy) -> None:
    """On every task, by validation loss: which is how a remedy became a part of a candidate.

    But for BinSGDM, whose settings come from another study (docs/evidence/binsgdm.md).
    """
    for plain in PLAIN.keys() - {"binsgdm_plain"}:
        losses = [
            [mean_loss(best_of(study.searches[task, name].rows)["losses"]) for task in TASKS]
            for name in (plain.removesuffix("_plain"), plain)
        ]
        assert all(ours < theirs for ours, theirs in zip(*losses, strict=True)), plain
