"""Which kernels are chosen, how they are compiled at first use, and the names of their stages in a profile."""

import fcntl
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.needs import needs

needs("torch")
needs("torch", "numba")
import torch
from numba.core import event
from torch.profiler import ProfilerActivity, profile

from binsgdm import BinSGDM
from binsgdm import kernels as package
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import first_use, numba_kernels, select
from binsgdm.kernels.first_use import compile_in_turn
from binsgdm.kernels.profiler_stages import stage, staged


def test_the_fastest_kernels_are_chosen_unless_an_argument_or_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    needs("numba")
    assert select().name == "cpu"
    assert select(device="meta").name == "reference"
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    assert select().name == "reference"
    assert select("cpu").name == "cpu"


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Make a library impossible to import."""
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, library, None)


def test_without_numba_the_reference_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "numba")
    assert select().name == "reference"


@pytest.fixture
def warned_anew() -> Iterator[None]:
    """Let the warning that is given once be given once more, before and after."""
    package._warn.cache_clear()
    yield
    package._warn.cache_clear()


@pytest.mark.usefixtures("warned_anew")
def test_without_triton_a_gpu_gets_the_reference_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "triton")
    with pytest.warns(UserWarning, match="'reference' is used on cuda.*needs triton, .*pip install triton") as told:
        names = [select(device="cuda").name for _ in range(2)]
    assert names == ["reference"] * 2
    assert len(told) == 1


@pytest.mark.usefixtures("warned_anew")
@pytest.mark.parametrize("version", ["3.5.1", "3.2.0", "2.1.0"])
def test_a_triton_that_flushes_subnormals_is_not_used(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    said = f"needs Triton 3.6 or newer, as torch 2.9 and newer bring it, and finds {version}"
    with pytest.raises(BinsgdmError, match=f"kernels: 'triton': {said}; drop it to let binsgdm choose"):
        select("triton", "cuda")
    with pytest.warns(UserWarning, match=said):
        assert select(device="cuda").name == "reference"


@pytest.mark.usefixtures("warned_anew")
def test_a_gpu_older_than_volta_gets_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.6.0+git1"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1))
    said = "needs compute capability 7.0, and cuda:1 has 6.1"
    with pytest.raises(BinsgdmError, match=f"kernels: 'triton': {said}; drop it"):
        select("triton", "cuda:1")
    with pytest.warns(UserWarning, match=said):
        assert select(device="cuda:1").name == "reference"


def test_forced_kernels_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    without(monkeypatch, "numba")
    without(monkeypatch, "triton")
    for name, place in (("cpu", "cpu"), ("triton", "cuda")):
        library = "numba" if name == "cpu" else "triton"
        with pytest.raises(BinsgdmError, match=rf"kernels: '{name}': needs {library}, .*pip install {library}"):
            select(name, place)
    with pytest.raises(BinsgdmError, match="kernels: 'cpu': works on cpu tensors, but the parameters are on cuda"):
        select("cpu", "cuda")
    with pytest.raises(BinsgdmError, match="kernels: 'triton': works on cuda tensors, but the parameters are on cpu"):
        select("triton", "cpu")


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BinsgdmError, match="kernels: 'numba': must be one of 'reference', 'cpu', 'triton'"):
        select("numba")
    monkeypatch.setenv("BINSGDM_KERNELS", "fast")
    with pytest.raises(BinsgdmError, match="BINSGDM_KERNELS: 'fast': must be one of"):
        select()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba_kernels, "cache_folder", lambda: tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return tmp_path


def compiling() -> None:
    """Say what numba says when it compiles two functions."""
    for _ in range(2):
        event.start_event("numba:compile")
        event.end_event("numba:compile")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "binsgdm"]


def test_one_line_says_that_kernels_are_compiled_and_where_they_are_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compile_in_turn(compiling)
    (line,) = lines(caplog)
    assert "compiled" in line
    assert str(folder) in line
    assert caplog.records[0].levelno == logging.WARNING  # which Python shows if a script sets up no logging


@pytest.mark.usefixtures("folder")
def test_nothing_is_said_where_nothing_is_compiled_or_by_other_local_ranks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compile_in_turn(lambda: None)
    monkeypatch.setenv("LOCAL_RANK", "1")
    compile_in_turn(compiling)
    assert not lines(caplog)


def test_without_a_folder_for_the_cache_the_line_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba_kernels, "cache_folder", lambda: None)
    compile_in_turn(compiling)
    (line,) = lines(caplog)
    assert "NUMBA_CACHE_DIR" in line


def test_a_process_waits_for_the_one_that_compiles(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_use, "_NOTICE_AFTER_S", 0.0)
    done: list[str] = []
    with (folder / first_use.LOCK_NAME).open("w") as other:  # a lock belongs to an open file, whichever process has it
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = threading.Thread(target=compile_in_turn, args=(lambda: done.append("rehearsed"),))
        waiting.start()
        time.sleep(0.1)
        assert not done
        fcntl.flock(other, fcntl.LOCK_UN)
        waiting.join(10)
    assert done == ["rehearsed"]
    assert len(lines(caplog)) == 1  # it waits for what another rank compiles
    compile_in_turn(lambda: done.append("again"))  # the lock was given back


def test_nobody_waits_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "LONGEST_WAIT_S", 0.05)
    done: list[str] = []
    with (folder / first_use.LOCK_NAME).open("w") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        compile_in_turn(lambda: done.append("rehearsed"))
    assert done == ["rehearsed"]


def test_a_folder_that_cannot_be_written_to_needs_no_lock(folder: Path) -> None:
    needs("no root")
    done: list[str] = []
    folder.chmod(0o500)
    compile_in_turn(lambda: done.append("rehearsed"))
    assert done == ["rehearsed"]


def names_in(trace: profile) -> set[str]:
    return {event.key for event in trace.key_averages() if event.key.startswith("binsgdm::")}


def test_a_stage_is_a_range_only_while_a_profiler_runs() -> None:
    assert isinstance(stage("merge"), nullcontext)
    with profile(activities=[ProfilerActivity.CPU]) as trace, stage("merge"):
        staged("apply")(torch.ones)(3)
    assert names_in(trace) == {"binsgdm::merge", "binsgdm::apply"}
    assert isinstance(stage("merge"), nullcontext)


def test_a_step_of_an_optimizer_alone_names_its_stages() -> None:
    value = torch.nn.Parameter(torch.ones(9))
    optimizer = BinSGDM([value])
    value.grad = torch.ones(9)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        optimizer.step()
    assert names_in(trace) == {"binsgdm::update", "binsgdm::apply"}
