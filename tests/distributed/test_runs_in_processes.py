"""A run of a study with a process for each rank: the same batches and evaluations as with all ranks in one process."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")

from dataclasses import asdict, replace

from studies.run import Run, perform
from tests.helpers.launch import run_script

STUDIES = Path(__file__).parents[2] / "studies"

ADAM = Run(
    study="margins", task="digits", system="dense", trial={"optimizer": "adam", "lr": 7e-3}, ranks=2, steps=30, seed=3
)


def test_binsgdm_learns_on_nodes_of_two_ranks(tmp_path: Path) -> None:
    # What is the optimizer's and what is of attach may stand in either.
    trial = {"optimizer": "binsgdm", "lr": 4e-3, "beta": 0.95, "gain": 1.5, "average": "gradients"}
    options = {"intra_node_dtype": "bf16", "rounding": "shaped"}
    run = replace(ADAM, system="binsgdm", trial=trial, options=options, ranks_per_node=2, in_processes=True)
    result = tmp_path / "result.json"
    done = run_script(STUDIES / "run.py", json.dumps(asdict(run)), str(result), folder=tmp_path, ranks=run.ranks)
    assert done.code == 0, done.stderr
    assert json.loads(result.read_text())["values"][0] < 2.0  # a guess has 2.3


def test_a_rank_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forked(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        """Do what torchrun does with this command, without its start and that of Python."""
        assert command[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = run_script(STUDIES / "run.py", *command[-2:], folder=tmp_path, ranks=2)
        return subprocess.CompletedProcess(command, done.code, done.stdout, done.stderr)

    monkeypatch.setattr(subprocess, "run", forked)
    with pytest.raises(RuntimeError, match="runs with all ranks in one process only"):
        perform(replace(ADAM, system="top_k", in_processes=True))
