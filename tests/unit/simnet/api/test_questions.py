"""The Python API asks what the commands ask, and says what is wrong with a question."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import sweeps
from tests.helpers.cli import run
from tests.helpers.refusals import refused

BERT = "bert_base_10gbit"
NODES, RATE = "cluster.num_nodes", "cluster.inter_node.bandwidth"


SLOW = {NODES: 2, "cluster.faults": [{"kind": "slow_rank", "node": 0, "compute_slowdown": 2.0}]}
SLOW_WORDS = f"--set {NODES}=2 --set 'cluster.faults=[{{kind = \"slow_rank\", node = 0, compute_slowdown = 2.0}}]'"
ENDS: dict[str, Any] = {"start": "10 Gbit/s", "end": "400 Gbit/s", "draws": 0}
ASKED: dict[str, Callable[[], simnet.Answer]] = {
    f"simulate {BERT} --set {NODES}=4": lambda: simnet.simulate(BERT, {NODES: 4}),
    f"simulate {BERT} --set {NODES}=2 --set '{RATE}=40 Gbit/s' --draws 0": lambda: simnet.simulate(
        simnet.load(BERT).replace(**{NODES: 2, RATE: "40 Gbit/s"}), draws=0
    ),
    f"simulate {BERT} {SLOW_WORDS} --lost-time --draws 0": lambda: simnet.simulate(BERT, SLOW, lost_time=True, draws=0),
    f"sweep {BERT} --set {NODES}=2,4 --set '{RATE}=10 Gbit/s'": lambda: simnet.sweep(
        BERT, {NODES: [2, 4]}, settings={RATE: "10 Gbit/s"}
    ),
    f"sweep {BERT} --break-even {RATE} --from '10 Gbit/s' --to '400 Gbit/s' --draws 0": lambda: simnet.crossover(
        BERT, over=RATE, **ENDS
    ),
    f"advise {BERT} --time-to-target characters --at '10 Gbit/s' --same-task --draws 0": lambda: simnet.time_to_target(
        BERT, "characters", at=["10 Gbit/s"], same_task=True, draws=0
    ),
    f"advise {BERT} --systems BinSGDM,fp8 --draws 0": lambda: simnet.advise(BERT, systems=["BinSGDM", "fp8"], draws=0),
}
"""Commands, and the questions in Python that are the same."""


@pytest.mark.slow
@pytest.mark.parametrize("line", ASKED)
def test_python_says_what_the_command_says(line: str) -> None:
    printed, shown = (run(*shlex.split(line), "--format", form) for form in ("json", "table"))
    assert (printed.exit_code, shown.exit_code) == (0, 0), printed.stderr
    answer = ASKED[line]()
    assert json.loads(answer.to_json()) == json.loads(printed.stdout)
    assert str(answer) == shown.stdout.rstrip("\n")


def test_a_sweep_is_a_sequence_of_runs_without_those_that_do_not_hold_together() -> None:
    runs = simnet.sweep(BERT, {"run.global_batch": [4096, 4097, 8192]}, draws=0)
    assert len(runs.refused) == 1
    batches = [run.scenario.run.global_batch for run in runs]
    assert batches == [4096, 8192] == [runs[0].scenario.run.global_batch, runs[-1].scenario.run.global_batch]
    assert len(runs) == len(runs[:]) == 2


def test_time_is_lost_to_faults_alone() -> None:
    with refused("no fault that time is lost to; add one"):
        simnet.simulate(BERT, lost_time=True)


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
