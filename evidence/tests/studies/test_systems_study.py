"""The search of the comparison of systems is alike for all, goes on where it stopped, and hides nothing."""

import doctest
import json
import math
import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")

import msgspec

from binsgdm.compressors import registry
from binsgdm.compressors.quantizers import ByteGrad
from evidence.studies import candidates, margins, page, run, study, systems
from evidence.studies.candidates import CANDIDATES, IN_TOPOLOGY, PLAIN, REMEDY_TEXTS, strategy_of
from evidence.studies.page import Interval
from evidence.studies.study import best_of, next_trial
from evidence.studies.systems import (
    NUM_TRIALS,
    Outcome,
    SystemsStudy,
    difference_text,
    loss_text,
    standing_text,
    steps_text,
)
from simnet.strategies import STRATEGIES

MODULES = (margins, page, run, study, systems)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_of_docstrings_are_true(module: Any) -> None:
    examples = doctest.testmod(module)
    assert examples.attempted > 0
    assert examples.failed == 0


def searched(system: str, loss_of: Any) -> list[dict[str, Any]]:
    """Return the rows of a whole search in which trials end as `loss_of` says."""
    rows: list[dict[str, Any]] = []
    fixed = (CANDIDATES | PLAIN)[system].fixed_trials
    while (trial := next_trial(fixed, rows, NUM_TRIALS)) is not None:
        rows.append({"trial": trial, "losses": [loss_of(trial)]})
    return rows


def bowl(lr: float) -> Any:
    """Return a loss that is best at an lr."""
    return lambda trial: abs(math.log(trial["lr"] / lr)) + 2 * (trial.get("momentum", 0) > 0)


@dataclass(frozen=True, kw_only=True)
class Newer(ByteGrad):
    name = "newer"


def test_a_system_that_binsgdm_gets_later_needs_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, Newer))
    with registry.registered(Newer):
        assert set(runpy.run_path(candidates.__file__)["ALL"]) == set(candidates.ALL)


def test_every_system_with_a_remedy_also_runs_without_and_the_simulator_knows_both() -> None:
    assert {f"{name}_plain" for name in REMEDY_TEXTS} == set(PLAIN)
    for name in (*CANDIDATES, *PLAIN):
        described = strategy_of(name)
        kind = STRATEGIES.find(described.pop("kind"))
        assert msgspec.convert(described, kind)
    assert strategy_of("top_k") == strategy_of("top_k_plain") | {"momentum": 0.9, "warmup_steps": 24}


def test_the_search_goes_beyond_an_edge_and_then_between() -> None:
    lrs = [row["trial"]["lr"] for row in searched("qsgd", bowl(3e-2))]
    assert lrs == [3e-3, 1e-2, 3e-2, 1e-1, 0.0316, 0.0999]
    lrs = [row["trial"]["lr"] for row in searched("adam", bowl(4e-3))]
    assert lrs == [1e-3, 3e-3, 1e-2, 3e-2, 5.48e-3, 4.05e-3]


def test_where_all_trials_diverge_the_search_goes_down() -> None:
    trials = [row["trial"] for row in searched("one_bit_adam", lambda trial: None)]
    assert [trial["lr"] for trial in trials[4:]] == [9.49e-4, 3e-4]


def result(*losses: float | None) -> dict[str, Any]:
    return {"steps": list(range(10, 10 * len(losses) + 1, 10)), "values": list(losses)}


def files(folder: Path) -> SystemsStudy:
    return SystemsStudy(folder / "search.json", folder / "curves", folder / "plain.json")


def filled(folder: Path, losses: dict[str, list[list[float | None]]]) -> SystemsStudy:
    """Return files with a search and a curve a seed, of some systems on characters with 4 ranks."""
    made = files(folder)
    for system, curves in losses.items():
        search = made.searches["characters", system]
        for number in range(NUM_TRIALS):
            trial = {"optimizer": "adam", "lr": 0.01 / 2**number}
            search.record(replace(search.run, trial=trial), result((1.0 if system == "adam" else 2.0) + number))
        for seed, curve in enumerate(curves):
            made.curves["characters"].put({"system": system, "ranks": 4, "seed": seed}, result(*curve))
    return made


def test_what_is_written_is_read_again_and_not_left_to_do(tmp_path: Path) -> None:
    filled(tmp_path, {"adam": [[2.0, 1.0]]})
    again = files(tmp_path)
    left = [final for final in again.finals() if not final.is_done]
    later = {name for name, candidate in IN_TOPOLOGY.items() if candidate.tuned_as == "adam"}
    assert {final.key["system"] for final in left} == {"adam", *later}
    of_adam = {(final.run.ranks, final.run.seed) for final in left if final.key["system"] == "adam"}
    assert of_adam == {(4, seed) for seed in range(1, 5)} | {(16, seed) for seed in range(5)}
    assert all(final.run.trial["lr"] == 0.01 and final.run.split == "test" for final in left)
    jobs = list(again.jobs_left())
    assert len(jobs) == len(left) + len(again.searches) - 1
    assert sum(job.run.split == "validation" for job in jobs) == len(again.searches) - 1
    document = json.loads((tmp_path / "curves" / "characters.json").read_text())
    assert document["systems"]["adam"]["strategy"] == {"kind": "all_reduce", "algorithm": "auto"}
    assert document["curves"] == [{"system": "adam", "ranks": 4, "seed": 0, "steps": [10, 20], "values": [2.0, 1.0]}]


@pytest.fixture(autouse=True)
def _two_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a seed count on which these two have run."""
    monkeypatch.setattr(Outcome, "counted", (("adam", "sgd"), IN_TOPOLOGY))


def test_a_trial_runs_on_the_other_seeds_after_the_last_on_the_first(tmp_path: Path) -> None:
    search = files(tmp_path).searches["digits", "adam"]
    seen = []
    while (due := search.next_run()) is not None:
        seen.append((due.seed, due.trial["lr"]))
        search.record(due, result(due.trial["lr"] * (1 if due.seed == 100 else -2)))
    assert [seed for seed, _ in seen] == [100] * NUM_TRIALS + [101] * NUM_TRIALS
    assert sorted(seen[:NUM_TRIALS]) == [(100, lr) for _, lr in sorted(seen[NUM_TRIALS:])]
    assert search.is_done
    assert best_of(search.rows, 1)["trial"]["lr"] == min(lr for _, lr in seen)
    assert search.best["lr"] == max(lr for _, lr in seen)


GOOD, WORSE = [[3.0, 2.0], [3.0, 2.1]], [[3.0, 2.5], [3.0, 2.61]]


def test_the_target_lies_near_the_end_of_the_reference_and_steps_are_counted_to_it(tmp_path: Path) -> None:
    outcome = Outcome(filled(tmp_path, {"adam": GOOD, "sgd": WORSE}), "characters")
    assert outcome.reference == "adam"
    assert outcome.target == pytest.approx(2.05 + 0.05 * (math.log(128) - 2.05))
    assert outcome.steps_to_target("adam", 4) == [20, 20]
    assert steps_text(outcome.steps_to_target("sgd", 4)) == "never (2 of 2)"


def test_a_difference_is_paired_by_seed_with_its_interval(tmp_path: Path) -> None:
    outcome = Outcome(filled(tmp_path, {"adam": GOOD, "sgd": WORSE}), "characters")
    half = 12.706 * 0.01 / 2  # of 0.50 and 0.51: t of one degree of freedom, standard deviation / sqrt(2)
    assert outcome.difference("sgd", 4) == Interval(
        mean=pytest.approx(0.505), low=pytest.approx(0.505 - half), high=pytest.approx(0.505 + half)
    )
    assert standing_text(outcome, "sgd", 4) == "+0.505 behind"
    assert standing_text(outcome, "adam", 4) == "reference"
    assert outcome.difference("adam", 4) is None


def test_a_seed_that_diverged_is_counted_and_not_averaged_away(tmp_path: Path) -> None:
    outcome = Outcome(filled(tmp_path, {"adam": GOOD, "sgd": [[3.0, 2.5], [None, None]]}), "characters")
    assert loss_text(outcome, "sgd", 4) == "2.500 (2.500 to 2.500), 1 diverged"
    assert difference_text(outcome, "sgd", 4) == "-"
    assert standing_text(outcome, "sgd", 4) == "lost 1 of 2"
