"""Start ranks fast: torch is imported once, in a server that every rank is forked from."""

import fcntl
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PRELOAD = ["torch", "torch.distributed", "torch.distributed.fsdp", "numba", "binsgdm.ddp", "tests.helpers.warm"]


def launch(work: Callable[..., None], *args: Any, nprocs: int) -> None:
    """Run `work(rank, *args)` in as many processes and wait for all."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    torch.multiprocessing.start_processes(work, args, nprocs=nprocs, start_method="forkserver")


def once(tmp_path_factory: Any, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled, once for all workers of pytest-xdist."""
    base: Path = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "done").touch()
    return folder
