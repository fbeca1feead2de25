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

import torch.distributed as dist
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from tests.helpers.launch import join, launch, meeting_point, once, output_to


def wait_for_ever(rank: int, folder: str) -> None:
    with output_to(Path(folder) / str(rank)):
        while rank:
            time.sleep(0.01)


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


def test_rank_0_that_never_comes_is_not_waited_for_for_ever(tmp_path) -> None:
    with pytest.raises(ProcessRaisedException, match=r"rank 0 has not come in 0\.1 s"):
        launch(come_alone, str(tmp_path), nprocs=2)


def meet(rank: int, where: dict[str, str], folder: str) -> None:
    os.environ |= where | {"RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")
    dist.barrier()  # else a rank may leave while another still connects to it
    (Path(folder) / str(rank)).write_text(type(dist.distributed_c10d._get_default_store()).__name__)
    dist.destroy_process_group()


def test_ranks_meet_at_a_store_that_none_of_them_has_to_make(tmp_path) -> None:
    with meeting_point() as where:
        launch(meet, where, str(tmp_path), nprocs=2)
    assert (tmp_path / "0").read_text() == (tmp_path / "1").read_text() == "PrefixStore"


def test_what_could_not_be_made_for_all_is_not_tried_again(tmp_path_factory) -> None:
    def fail(folder: Path) -> None:
        tries.append(folder)
        raise ValueError("no room")

    tries: list[Path] = []
    with pytest.raises(ValueError, match="no room"):
        once(tmp_path_factory, "never_made", fail)
    with pytest.raises(RuntimeError, match="never_made: failed in another test: no room"):
        once(tmp_path_factory, "never_made", fail)
    assert len(tries) == 1
