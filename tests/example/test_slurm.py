"""The job script of Slurm, run with stand-ins for srun and scontrol: its commands are ones that exist."""

import json
import os
import subprocess
from pathlib import Path

import click
import pytest

from simnet.cli.main import cli
from tests.helpers.needs import needs

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples/slurm/measure.sh"
STAND_IN = """#!/usr/bin/env python3
import json, os, sys
with open(os.environ["SEEN"], "a") as seen:
    print(json.dumps(sys.argv), file=seen)
if sys.argv[0].endswith("scontrol"):
    print("gpu-07\\ngpu-08")
"""


def seen(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, list[list[str]]]:
    """Run the script, and return its exit code, its stderr, and what it has called."""
    for name in ("srun", "scontrol"):
        (folder / name).write_text(STAND_IN, encoding="utf-8")
        (folder / name).chmod(0o755)
    log = folder / "seen.jsonl"
    log.touch()
    given = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "SEEN": str(log), **environment}
    command = ["bash", str(SCRIPT), *arguments]
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr, [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def parsed(words: list[str]) -> click.Context:
    """Return the context of `simnet measure ...`, whose options must exist."""
    above = click.Context(cli)
    measure = cli.get_command(above, words[0])
    assert isinstance(measure, click.Group)
    command = measure.get_command(above, words[1])
    assert command is not None, words
    return command.make_context(words[1], words[2:], parent=above)


@pytest.mark.slow
def test_the_job_measures_one_gpu_the_network_and_a_training(tmp_path: Path) -> None:
    needs("torch")
    job = {"SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "gpu-[07-08]", "SLURM_JOB_ID": "42"}
    code, told, calls = seen(tmp_path, "my_pkg.bench:build", "25", **job)
    assert code == 0, told
    measured = []
    for call in calls[1:]:
        if "torchrun" in call:
            assert call[call.index("--rdzv-endpoint") :][:2] == ["--rdzv-endpoint", "gpu-07:29500"]
            words = call[call.index("binsgdm") + 1 :]
        else:
            words = call[call.index("simnet") + 1 :]
        measured.append((words[1], call[2], parsed(words).params["output"]))
    assert [(what, nodes) for what, nodes, _ in measured] == [
        ("kernels", "1"), ("model", "1"), ("collectives", "2"), ("interference", "2"), ("training", "4"),
    ]  # fmt: skip
    assert len({str(output) for _, _, output in measured}) == 5


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "MODEL: give module:function"), (("a:b",), "NIC_GBIT_PER_S: give the nominal rate")]
)
def test_a_missing_argument_is_named_before_anything_runs(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, told, calls = seen(tmp_path, *arguments)
    assert (code != 0, calls) == (True, [])
    assert said in told
