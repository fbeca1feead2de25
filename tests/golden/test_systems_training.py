"""The comparison of all systems in training: its page says what its files say, and the files are whole."""

import json
import math
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from studies import systems_page
from studies.contenders import FINAL_SEEDS, SEARCH_SEEDS, SETTINGS, next_trial
from studies.outcome import Outcome
from studies.tasks import TASKS
from studies.written import CURVES, ROOT, SEARCH, Written

LARGEST_BYTES = 1_500_000
NUM_SEEDS = {4: 5, 16: 5}
"""On which all systems have run, by ranks."""


@pytest.fixture(scope="module")
def written() -> Written:
    return Written()


def document(task: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CURVES / f"{task}.json").read_text())
    return found


def test_the_page_says_what_the_files_say(written: Written) -> None:
    told, made = systems_page.page_text()
    assert made == systems_page.generated(written)
    assert told.startswith("# ")


def test_the_page_shows_every_figure() -> None:
    _, made = systems_page.page_text()
    for task in TASKS:
        assert f"](figures/systems_training_{task}.png)" in made
        assert (ROOT / "docs" / "evidence" / "figures" / f"systems_training_{task}.png").stat().st_size > 10_000


@pytest.mark.parametrize("task", TASKS)
def test_a_file_tells_the_target_that_the_page_tells(written: Written, task: str) -> None:
    assert document(task)["target"] == pytest.approx(Outcome(written, task).target, rel=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_every_system_has_a_curve_of_every_seed_that_is_told(written: Written, task: str) -> None:
    found = [(row["system"], row["ranks"], row["seed"]) for row in document(task)["curves"]]
    assert len(found) == len(set(found))
    for ranks, number in NUM_SEEDS.items():
        wanted = {(system, ranks, seed) for system in SETTINGS for seed in FINAL_SEEDS[:number]}
        assert wanted <= set(found)
        assert Outcome(written, task).seeds(ranks)[:number] == list(FINAL_SEEDS[:number])


@pytest.mark.parametrize("task", TASKS)
def test_curves_are_rounded_rows_of_numbers_to_the_last_step(task: str) -> None:
    assert (CURVES / f"{task}.json").stat().st_size < LARGEST_BYTES
    for row in document(task)["curves"]:
        columns = ["values", "accuracy"] if TASKS[task].has_accuracy else ["values"]
        assert list(row) == ["system", "ranks", "seed", "steps", *columns]
        assert row["steps"][-1] == TASKS[task].steps
        for column in columns:
            assert len(row[column]) == len(row["steps"])
            numbers = [value for value in row[column] if value is not None]
            assert row[column][: len(numbers)] == numbers, "nothing comes back after a run has diverged"
            assert all(math.isfinite(value) and value == float(f"{value:.5g}") for value in numbers)


@pytest.mark.parametrize("task", TASKS)
def test_the_file_says_what_each_system_ran_with(written: Written, task: str) -> None:
    head = document(task)
    assert (head["format"], head["version"], head["better"]) == ("simnet-convergence", 1, "lower")
    assert list(head["systems"]) == list(SETTINGS)
    for system, described in head["systems"].items():
        rows = [row for row in written.trials(task, system) if None not in row["losses"]]
        best = min(rows, key=lambda row: float(sum(row["losses"])))
        assert {"optimizer": described["optimizer"], **described["settings"]} == best["trial"]
        assert described["strategy"]["kind"] == (SETTINGS[system].kind or system)


@pytest.mark.parametrize("task", TASKS)
def test_all_searches_had_as_many_trials_by_the_same_rule(written: Written, task: str) -> None:
    assert not set(SEARCH_SEEDS[task]) & set(FINAL_SEEDS)
    for system in SETTINGS:
        rows = written.trials(task, system)
        assert written.is_searched(task, system)
        fixed = [row["trial"] for row in rows[:4]]
        assert fixed == [{**what, "lr": lr} for what, lrs in SETTINGS[system].choices for lr in lrs]
        for number in (4, 5):
            assert next_trial(system, rows[:number]) == rows[number]["trial"]


def test_the_trials_were_as_long_as_the_runs() -> None:
    head = json.loads(SEARCH.read_text())
    assert head["steps"] == {name: task.steps for name, task in TASKS.items()}
