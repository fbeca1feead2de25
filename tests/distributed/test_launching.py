"""Ranks under test end, whatever they wait for: the test fails, and says where each of them stood."""

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from tests.helpers.launch import join, launch, output_to


def wait_for_ever(rank: int, folder: str) -> None:
    with output_to(Path(folder) / str(rank)):
        while rank:
            time.sleep(0.01)


@pytest.mark.slow
def test_a_rank_that_waits_for_ever_says_where_and_fails(tmp_path) -> None:
    with pytest.raises(ProcessExitedException, match="process 1 terminated with exit code 1"):
        launch(wait_for_ever, str(tmp_path), nprocs=2, longest_s=1.0)
    assert "in wait_for_ever" in (tmp_path / "1.stderr").read_text()


def launch_another(_: int, folder: str) -> None:
    launch(end_the_launcher, folder, nprocs=1)


def end_the_launcher(_: int, folder: str) -> None:
    launcher = multiprocessing.parent_process()
    (Path(folder) / "pid").write_text(str(os.getpid()))
    os.kill(launcher.pid, signal.SIGKILL)
    wait([launcher.sentinel])
    time.sleep(1.0)
    (Path(folder) / "outlived").touch()


@pytest.mark.slow
def test_a_rank_ends_with_the_process_that_has_launched_it(tmp_path) -> None:
    needs("Linux")
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        launch(launch_another, str(tmp_path), nprocs=1)
    with suppress(ProcessLookupError):
        while True:
            os.kill(int((tmp_path / "pid").read_text()), 0)
            time.sleep(0.01)
    assert not (tmp_path / "outlived").exists()


def come_alone(rank: int, folder: str) -> None:
    if rank:
        join(rank, 2, folder, timedelta(seconds=0.1))


@pytest.mark.slow
def test_rank_0_that_never_comes_is_not_waited_for_for_ever(tmp_path) -> None:
    with pytest.raises(ProcessRaisedException, match=r"rank 0 has not come in 0\.1 s"):
        launch(come_alone, str(tmp_path), nprocs=2)
