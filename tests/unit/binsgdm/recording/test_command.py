"""`simnet record` as a user calls it: a script in a process of its own, a file at the end, or one sentence."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
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

BY_HAND = """
for _ in range(9):
    module.zero_grad()
    module(torch.ones(2, 8)).sum().backward()
    with torch.no_grad():
        for one in module.parameters():
            one -= 0.1 * one.grad
"""
BY_GRAD = """
for _ in range(9):
    gradients = torch.autograd.grad(module(torch.ones(2, 8)).sum(), list(module.parameters()))
    for one, gradient in zip(module.parameters(), gradients):
        one.grad = gradient
    optimizer.step()
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
        "step.json: a step of 8 ranks with 1 collectives (2 of 2 steps recorded); "
        "a step of 12 ranks with 1 collectives (2 of 2 steps recorded)\n",
    )
    assert done.stderr.count("a line of the script") == 2
    content = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    assert (content["format"], content["version"]) == ("simnet-step", 1)
    assert content["source"]["command"] == "trän.py --lr 1"
    assert [recording["num_nodes"] for recording in content["recordings"]] == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.json", "trän.py"]
    again = record(tmp_path, "--", "trän.py")
    assert again.returncode == 2
    assert "step.json: exists" in again.stderr


@pytest.mark.slow
def test_a_script_that_ends_early_is_noted(tmp_path):
    script(tmp_path, steps=4)
    done = record_forked(tmp_path, "--nodes", "2", "--", "train.py")
    assert done.code == 0
    assert done.stdout == "step.json: a step of 16 ranks with 1 collectives (2 of 8 steps recorded)\n"
    (recording,) = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["recordings"]
    assert recording["notes"] == ["the script ended after 4 steps: 2 of 8 are recorded"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "end", "status", "how"),
    [
        (3, "import os; os._exit(3)", 3, "ended with 3"),
        (9, "raise SystemExit(5)", 5, "ended with 5"),
        (3, "raise SystemExit('in words')", 1, "ended with 1"),
        (4, "import os; os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        (3, "import os; os.kill(os.getpid(), 15)", 143, "was killed by SIGTERM"),
        (4, "import os; os.kill(os.getpid(), 2)", 130, "was killed by SIGINT"),
    ],
)
def test_a_script_that_fails_after_its_recorded_steps_gives_the_command_its_status(tmp_path, steps, end, status, how):
    script(tmp_path, steps, end)
    done = record_forked(tmp_path, "--nodes", "2", "--steps", "2", "--", "train.py")
    assert done.code == status
    assert f"({min(steps - 2, 2)} of 2 steps recorded)" in done.stdout
    assert f"train.py: {how} after its recorded steps: step.json is written" in done.stderr.splitlines()[-1]
    assert (tmp_path / "step.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("caught", ["Exception", "BaseException"])
def test_a_script_that_trains_for_ever_is_stopped_whatever_it_catches(tmp_path, caught):
    end = f"""
while True:
    try:
        module(torch.ones(2, 8)).sum().backward()
    except {caught}:
        pass
"""
    script(tmp_path, 4, end)
    done = record_forked(tmp_path, "--nodes", "2", "--steps", "2", "--", "train.py")
    assert done.code == 0
    assert "train.py: stopped, since all steps that were asked for are recorded" in done.stderr
    assert "(2 of 2 steps recorded)" in done.stdout


@pytest.mark.slow
def test_what_cannot_be_recorded_is_no_matter_after_the_recorded_steps(tmp_path):
    script(tmp_path, 4, "dist.send(torch.ones(1), 1)")
    assert record_forked(tmp_path, "--nodes", "2", "--steps", "2", "--", "train.py").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_terminal", [False, True])
def test_steps_done_and_elapsed_time_are_shown_while_a_script_takes_long(tmp_path, is_terminal):
    # Twice as long as it took to come here: a line falls into that time.
    script(tmp_path, 3, f"import time; time.sleep(4 + 1.2 * (time.time() - {time.time()}))")
    words = ["record", "--nodes", "2", "--steps", "2", "--", "train.py"]
    command = [sys.executable, "-m", "simnet", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TERM": "xterm"}
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        shown = _all_of(ours)
        assert process.stdout is not None
        assert process.stdout.read() == "step.json: a step of 16 ranks with 1 collectives (1 of 2 steps recorded)\n"
    lines = [line for line in re.split(r"[\r\n]+", shown) if " steps, " in line]
    assert lines[-1].startswith("3 of 4 steps, ")
    assert ("\r3 of 4 steps" in shown) == is_terminal
    # A terminal has one line a second; elsewhere the time between two lines doubles.
    seconds = [int(re.search(r", (\d+) s", line)[1]) for line in lines]
    assert seconds == [2 + number if is_terminal else 2 ** (number + 1) for number in range(len(seconds))]


def _all_of(end: int) -> str:
    found = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while part := os.read(end, 4096):
            found += part
    os.close(end)
    return found.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "end", "sentence"),
    [
        (2, "", "the script ended after 2 steps: at least 3 are needed"),
        (0, "", "no optimizer of torch has stepped (0 backward passes)"),
        (0, BY_HAND, "no optimizer of torch has stepped (9 backward passes): a step ends with that of an optimizer"),
        (0, BY_GRAD, "an optimizer has stepped 9 times, and loss.backward() has never run"),
        (0, "torch.multiprocessing.spawn(print, nprocs=2)", "the script starts its ranks itself"),
        (3, "import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL after 3 of 10 steps, and takes the recorded"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--", "torchrun", "train.py"), "starts processes: one is enough"),
        (("--", "torchrun", "--nproc-per-node", "8", "train.py", "--lr", "1"), "simnet record -- train.py --lr 1"),
        (("--", "python", "-m", "torch.distributed.run", "train.py"), "starts processes: one is enough"),
        (("--", "no_such.py"), "'no_such.py': no such file"),
        (("--", "python"), "must be a script"),
        (("--nodes", "0", "--", "train.py"), "whole numbers above 0"),
        (("--nodes", "4,x", "--", "train.py"), "whole numbers above 0"),
        (("--nodes", "1000000", "--ranks-per-node", "1000000", "--", "train.py"), "at most 1000000 ranks"),
        (("--fake", "--compute", "timed", "--", "train.py"), "tensors without memory take no time"),
        (("-o", "no/such/folder/step.json", "--", "train.py"), "no/such/folder"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(tmp_path, words, sentence):
    script(tmp_path)
    done = record_forked(tmp_path, *words)
    assert done.code == 2
    assert sentence in done.stderr
    assert "a line of the script" not in done.stderr


def test_a_python_without_torch_is_told_how_to_install_it(tmp_path):
    script(tmp_path)
    code = "import sys; sys.modules['torch'] = None; from simnet.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "record", "--", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("simnet: record: needs torch: in the checkout: pip install '.[torch]'")


@pytest.mark.slow
def test_ctrl_c_ends_the_script_and_writes_nothing(tmp_path):
    script(tmp_path, 3, "print('here', flush=True); import time; time.sleep(60)")
    command = [sys.executable, "-m", "simnet", "record", "--nodes", "2", "--steps", "2", "--", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "here\n":
            pass
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stderr.read().splitlines()[-1] == "simnet: interrupted; nothing was written"
    assert process.returncode == 130
    assert not (tmp_path / "step.json").exists()


BILLION = """
import os, sys, torch, torch.distributed as dist
from binsgdm.recording.model_zoo import LLAMAS
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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hook", "hybrid"])
def test_a_step_of_a_billion_parameters_needs_none_of_their_memory(tmp_path, way):
    (tmp_path / "train.py").write_text(BILLION, encoding="utf-8")
    words = ("--fake", "--nodes", "8", "--warm-up", "1", "--steps", "1", "--", "train.py", way)
    done = record_forked(tmp_path, *words)
    assert done.code == 0, done.stderr
    assert int((tmp_path / "peak_kib").read_text()) < 2 * 2**20
    (recording,) = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["recordings"]
    assert recording["gradient_bytes"] == 4 * 1_345_423_360
