"""The parts of `simnet measure gpu`, and the command as a whole, on a CPU."""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from click.testing import CliRunner, Result

from binsgdm.bench.gpu import card, parts, run, step
from binsgdm.bench.gpu.step import LAYOUTS
from simnet.calibration.measurement_file import read
from simnet.cli.main import cli

WITHOUT_NUMBA = """
import pkgutil
from binsgdm.bench.gpu.parts import PARTS
for part in PARTS:
    pkgutil.resolve_name(part.measure)
import torch
from binsgdm import BinSGDM, attach, attach_fsdp
from binsgdm.optimizers.one_bit_adam import OneBitAdam
parameter = torch.nn.Parameter(torch.ones(8))
for make in (BinSGDM, OneBitAdam):
    parameter.grad = torch.ones(8)
    make([parameter], lr=0.25).step()
print(parameter.tolist())
"""


@pytest.mark.slow
def test_all_parts_and_optimizers_do_without_numba(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less. Got NumPy 2.5.')\n")
    root = Path(parts.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    command = [sys.executable, "-c", WITHOUT_NUMBA]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[0.5] * 8}\n"


LABELS = {"num_elements": 8, "dtype": "float32", "kernels": "torch"}


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    return {
        "measure": "a_part:measure", "output": str(tmp_path / "a.json"), "device": "cpu", "quick": True,
        "is_shared": False, "seconds": 100.0, "launched": time.monotonic(),
    }  # fmt: skip


def part(monkeypatch: pytest.MonkeyPatch, measure: Any) -> None:
    made = ModuleType("a_part")
    made.measure = measure  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_part", made)


def measures(bench: Any, *, quick: bool, seconds: float) -> None:
    assert quick
    assert 50 < seconds <= 100
    bench.record.add("kernel", "copy", [1.0, 2.0], **LABELS)
    bench.progress(0.5)
    bench.record.add("kernel", "copy", [3.0], **LABELS)


def test_a_part_writes_one_file_and_reports_how_far_it_is(task, monkeypatch):
    part(monkeypatch, measures)
    reported: list[dict[str, Any]] = []
    parts.work(**task, report=lambda **what: reported.append(what))
    assert len(read(Path(task["output"])).series) == 2
    assert reported == [{"done": 0.5}]


def test_a_part_that_is_far_too_late_keeps_what_it_has(task, monkeypatch):
    def late(bench: Any, **_: Any) -> None:
        measures(bench, quick=True, seconds=100.0)

    part(monkeypatch, late)
    parts.work(**task | {"seconds": 1.0, "launched": time.monotonic() - 60}, report=lambda **_: None)
    file = read(Path(task["output"]))
    assert len(file.series) == 1
    assert file.notes[0].startswith("ended at 50% after 6")


@pytest.mark.parametrize(("limit_s", "kept"), [(62.0, 1), (600.0, 2)])
def test_a_part_of_checks_alone_stops_before_it_is_killed(limit_s, kept, task, monkeypatch):
    def checks(bench: Any, **_: Any) -> None:
        for name in ("first", "second"):
            bench.record.check(name, passed=True)
            bench.progress(0.5)

    part(monkeypatch, checks)
    # So late, it would go on if nobody waited: it was given 100 s.
    parts.work(**task | {"limit_s": limit_s, "launched": time.monotonic() - 60}, report=lambda **_: None)
    assert len(json.loads(Path(task["output"]).read_text())["checks"]) == kept


def test_a_part_that_ends_without_a_file_says_why(task, monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError("no\nmore")

    part(monkeypatch, fails)
    monkeypatch.setattr(parts, "end_with_parent", lambda: None)
    reports, write_fd = os.pipe()
    assert parts.main(json.dumps(task | {"report_fd": write_fd})) == 1
    os.close(write_fd)
    with os.fdopen(reports) as told:
        assert told.read() == '{"failed": "MemoryError: no more"}\n'
    assert not Path(task["output"]).exists()


GRADIENTS = Path(__file__).resolve().parents[5] / "scenarios" / "workloads" / "gradients"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_shapes_of_the_shipped_model(name):
    tensors = json.loads((GRADIENTS / f"{name}.json").read_text())["tensors"]
    assert sorted(LAYOUTS[name]) == sorted(tuple(shape) for _, shape, _ in tensors)


@pytest.mark.slow
def test_every_optimizer_is_timed_and_memory_is_left_to_a_gpu(bench):
    step.measure(bench, quick=True, seconds=5.0)
    found = [(series["kind"], series["name"], series["labels"]["optimizer"]) for series in bench.record.series]
    assert found == [("optimizer_step", "step", name) for name in step.OPTIMIZERS]
    assert {"adamw", "binsgdm", "binsgdm_random", "one_bit_adam", "binsgdm_25mib"} == set(step.OPTIMIZERS)
    assert bench.record.notes == ["memory is counted on a GPU alone: left out"]


def test_a_layout_that_does_not_fit_is_left_out_with_a_reason(bench, monkeypatch):
    monkeypatch.setattr(step, "free_bytes", lambda ranks: 10**6)
    step.measure(bench, quick=True, seconds=5.0)
    assert not bench.record.series
    assert bench.record.notes[-1] == "bert_tiny: needs 0.0 GB and 0.0 GB are free: left out"


@pytest.mark.parametrize(("waits", "passed"), [(1, True), (2, False)])
def test_a_step_that_waits_for_the_gpu_twice_fails(bench, monkeypatch, waits, passed):
    state = {"mode": "default", "requests": 5}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {step.REQUESTS: state["requests"]})
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: state.update(mode=mode))

    class Waiting(torch.optim.SGD):
        def step(self):
            for _ in range(waits):
                state["requests"] += 2
                if state["mode"] == "warn":
                    warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    monkeypatch.setattr(step, "OPTIMIZERS", {"binsgdm": Waiting})
    step._check_host_cost(bench.record, "tiny", [torch.nn.Parameter(torch.ones(3))])
    assert [check["passed"] for check in bench.record.checks] == [passed]
    assert bench.record.notes == [f"tiny: requests for memory in a step: binsgdm {2 * waits}"]
    assert state["mode"] == "default"


def gpu(*args: object) -> Result:
    return CliRunner().invoke(cli, ["measure", "gpu", *map(str, args)], prog_name="simnet")


@pytest.mark.slow
def test_one_part_is_measured_into_a_folder(tmp_path):
    folder = tmp_path / "made" / "on the way" / "gpu"
    done = gpu("-o", folder, "--device", "cpu", "--quick", "--only", "interference")
    assert done.exit_code == 0, done.output
    assert {series.kind for series in read(folder / "interference.json").series} == {"interference"}
    written = json.loads((folder / "card.json").read_text())
    assert (written["device"], written["quick"], written["parts"]["interference"]["status"]) == ("cpu", True, "done")
    assert "[1/1] interference done in" in done.stderr
    assert "nothing here is a measurement of a GPU" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-o", "file"], "file: is no folder: name a folder with -o"),
        (["-o", "gpu", "--force", "--only", "kernels"], "--force --only: one measures all parts again"),
        (["-o", "gpu", "--budget", "nan"], "--budget nan: must be a number of seconds from 1 on"),
        (["-o", "", "--device", "cpu"], "'': is empty: name a folder"),
        (["-o", "gpu"], "--device cuda: no GPU: neither the driver nor torch sees one"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(args, said, tmp_path, monkeypatch):
    found = {"versions": {"torch": "2.11", "cuda": "13.0", "rocm": ""}, "cards": [], "error": ""}
    monkeypatch.setattr(card, "probe", lambda: found)
    monkeypatch.setattr(card, "has_device", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))  # without nvidia-smi
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = gpu(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("simnet: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_ranks_never_start_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = gpu("-o", tmp_path / "gpu", "--device", "cpu")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "this command starts its own ranks: run it without torchrun" in done.stderr


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (True, 0, "wrote "),
        (False, 1, "wrote "),
        (KeyboardInterrupt(), 130, "measure: interrupted; the parts that are done stay: the same command goes on\n"),
    ],
)
def test_the_exit_code_says_how_the_parts_ended(ends, code, said, tmp_path, monkeypatch):
    def ended(*_: object, **__: object) -> object:
        if isinstance(ends, BaseException):
            raise ends
        return ends

    monkeypatch.setattr(run.CardRun, "run", ended)
    done = gpu("-o", tmp_path / "gpu", "--device", "cpu")
    assert done.exit_code == code, done.output
    assert said in done.stderr
