"""One process of a machine compiles at a time, and says so in one line."""

import fcntl
import logging
import threading
import time
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch", "numba")

from numba.core import event

from binsgdm.kernels import first_use, numba_kernels
from binsgdm.kernels.first_use import compile_in_turn


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
