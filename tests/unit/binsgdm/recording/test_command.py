"""`simnet record` as a user calls it: a script in a process of its own, a file at the end, or one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.helpers import forked_record
from tests.helpers.launch import Ended, run_script

ROOT = Path(__file__).resolve().parents[4]
DDP = """
import torch, torch.distributed as dist
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
print("a line of the script")
module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(module.parameters())
for _ in range({steps}):
    module(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""


def record(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "simnet", "record", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def record_forked(folder: Path, *words: str) -> Ended:
    """Do the same without the seconds that a new Python takes to import torch."""
    return run_script(Path(forked_record.__file__), *words, folder=folder)


def script(folder: Path, steps: int = 100, end: str = "", name: str = "train.py") -> None:
    (folder / name).write_text(DDP.format(steps=steps, end=end), encoding="utf-8")


@pytest.mark.slow
def test_a_script_is_recorded_in_two_worlds(tmp_path):
    script(tmp_path, name="trän.py")
    done = record(
        tmp_path, "--nodes", "3,2", "--ranks-per-node", "4", "--steps", "2", "--", "python", "trän.py", "--lr", "1"
    )
    assert (done.returncode, done.stdout) == (
        0,
        "step.json: a step of 8 ranks with 1 collectives; a step of 12 ranks with 1 collectives\n",
    )
    assert done.stderr.count("a line of the script") == 2
    content = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    assert (content["format"], content["version"]) == ("simnet-step", 1)
    assert content["source"]["command"] == "trän.py --lr 1"
    assert [one["num_nodes"] for one in content["recordings"]] == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.json", "trän.py"]
    again = record(tmp_path, "--", "trän.py")
    assert again.returncode == 2
    assert "step.json: exists" in again.stderr


@pytest.mark.slow
def test_a_script_that_ends_early_is_noted(tmp_path):
    script(tmp_path, steps=4)
    assert record_forked(tmp_path, "--nodes", "2", "--", "train.py").code == 0
    (recording,) = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["recordings"]
    assert recording["notes"] == ["the script ended after 4 steps: 2 of 8 are recorded"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "end", "sentence"),
    [
        (2, "", "the script ended after 2 steps: at least 3 are needed"),
        (0, "raise ValueError('mine')", "train.py: failed as rank 0 of 8 (its error is above)"),
        (0, "raise SystemExit(3)", "train.py: ended with exit code 3"),
        (0, "import os; os._exit(5)", "train.py: its process ended with 5 before a step was recorded"),
        (0, "dist.send(torch.ones(1), 1)", "send in group 'world': one rank alone sends"),
    ],
)
def test_what_fails_is_one_sentence_and_no_file(tmp_path, steps, end, sentence):
    script(tmp_path, steps, end)
    done = record_forked(tmp_path, "--nodes", "2", "--ranks-per-node", "4", "--", "train.py")
    assert done.code == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("simnet: ")
    assert sentence in last
    assert ("ValueError: mine" in done.stderr) == ("mine" in end)
    assert not (tmp_path / "step.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--", "torchrun", "train.py"), "starts processes: one is enough"),
        (("--", "no_such.py"), "'no_such.py': no such file"),
        (("--", "python"), "must be a script"),
        (("--nodes", "0", "--", "train.py"), "whole numbers above 0"),
        (("--nodes", "4,x", "--", "train.py"), "whole numbers above 0"),
        (("--nodes", "1000000", "--ranks-per-node", "1000000", "--", "train.py"), "at most 1000000 ranks"),
        (("-o", "no/such/folder/step.json", "--", "train.py"), "no/such/folder"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(tmp_path, words, sentence):
    script(tmp_path)
    done = record(tmp_path, *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "a line of the script" not in done.stderr


def test_work_that_takes_no_time_is_not_timed(tmp_path):
    script(tmp_path)
    done = record_forked(tmp_path, "--fake", "--compute", "timed", "--", "train.py")
    assert done.code == 2
    assert "tensors without memory take no time" in done.stderr
    assert "a line of the script" not in done.stderr


BILLION = """
import os, sys, torch, torch.distributed as dist
from binsgdm.recording.llama import LLAMAS
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
task = LLAMAS["llama_1b"].task(1, 128)
module = task.module
if sys.argv[1] == "hybrid":
    mesh = dist.device_mesh.init_device_mesh("cpu", (8, 8), mesh_dim_names=("replicate", "shard"))
    for layer in module.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
else:
    module = torch.nn.parallel.DistributedDataParallel(module)
    module.register_comm_hook(None, fp16_compress_hook)
optimizer = torch.optim.AdamW(module.parameters())
while True:
    optimizer.zero_grad()
    loss = task.loss_of(module)
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)  # KiB
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hook", "hybrid"])
def test_a_step_of_a_billion_parameters_needs_none_of_their_memory(tmp_path, way):
    (tmp_path / "train.py").write_text(BILLION, encoding="utf-8")
    words = ["--fake", "--nodes", "8", "--warm-up", "1", "--steps", "1", "--", "train.py", way]
    command = [sys.executable, "-c", PEAK, sys.executable, "-m", "simnet", "record", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) < 2 * 2**20
    (recording,) = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["recordings"]
    assert recording["gradient_bytes"] == 4 * 1_345_423_360
