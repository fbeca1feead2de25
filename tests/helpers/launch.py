"""Start ranks fast: torch is imported once, in a server that every rank is forked from."""

import faulthandler
import fcntl
import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError

# The compiler takes two seconds to import, in each process that makes its first optimizer.
PRELOAD = [
    "torch", "torch.distributed", "torch.distributed.fsdp", "torch._dynamo", "sklearn.datasets", "numba",
    "binsgdm.parallel.ddp", "tests.helpers.warm",
]  # fmt: skip
LONGEST_S = 240.0
"""Of a rank; the tests that it is for are ended a minute later."""


def launch(work: Callable[..., None], *args: Any, nprocs: int, longest_s: float = LONGEST_S) -> None:
    """Run `work(rank, *args)` in as many processes and wait for all; one that takes too long fails, as do all then."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    torch.multiprocessing.start_processes(_in_time, (longest_s, work, args), nprocs=nprocs, start_method="forkserver")


def _in_time(rank: int, longest_s: float, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    end_after(longest_s)
    _end_with_launcher()
    work(rank, *args)


def _end_with_launcher() -> None:
    """Let Linux end this process, by SIGIO, when the one that has launched it is gone.

    The server would not: ranks may ask it for others, and so it stays as long as any of them.
    """
    launcher = multiprocessing.parent_process()
    if launcher is None or not hasattr(os, "O_ASYNC"):
        return
    pipe = int(launcher.sentinel)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([pipe], 0):  # it was gone before
        os.kill(os.getpid(), signal.SIGKILL)


def end_after(longest_s: float) -> None:
    """Let this process end with exit code 1 after so many seconds, and say where it stands, if it still runs then."""
    faulthandler.dump_traceback_later(longest_s, exit=True)


def join(rank: int, world_size: int, folder: str | Path, timeout: timedelta = timedelta(seconds=60)) -> None:
    """Take part as a rank of gloo; rank 0 has the store, as under torchrun, and leaves its port in the folder.

    A store in a file is read again and again by all who wait, which takes longer than what is tested.
    """
    port = Path(folder) / f"port{world_size}"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, timeout=timeout, wait_for_workers=False)
        partial = port.with_suffix(".partial")
        partial.write_text(str(store.port), encoding="ascii")
        partial.rename(port)
    else:
        _wait_for(port, timeout)
        store = dist.TCPStore("127.0.0.1", int(port.read_text(encoding="ascii")), world_size, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)


def _wait_for(path: Path, timeout: timedelta) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path}: rank 0 has not come in {timeout.total_seconds():g} s")
        time.sleep(0.002)


@contextmanager
def rank_of_gloo(
    rank: int,
    world_size: int,
    folder: str,
    *,
    node: int | None = None,
    timeout: timedelta = timedelta(seconds=60),
    leaves: str = "results.pt",
) -> Iterator[dict[Any, Any]]:
    """Take part as a rank on one thread, of nodes of so many; all end together, and rank 0 leaves the results.

    What is put into the dictionary is what it leaves.
    """
    torch.set_num_threads(1)
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    if node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(node)
    join(rank, world_size, folder, timeout)
    results: dict[Any, Any] = {}
    yield results
    if rank == 0:
        torch.save(results, Path(folder) / leaves)
    dist.barrier()
    dist.destroy_process_group()


def heard(call: Callable[[], object], *also: type[Exception]) -> str:
    """Return the sentence of a BinsgdmError, or of an error of other kinds; any other ends the rank."""
    try:
        call()
    except (BinsgdmError, *also) as error:
        return str(error)
    return ""


def outcome(call: Callable[[], object]) -> tuple[str, str, float]:
    """Return the type and the text of what a call raises, whatever it is, and how long it took [s]."""
    start = time.monotonic()
    try:
        call()
    except Exception as error:  # whatever a user would see
        return type(error).__name__, str(error), time.monotonic() - start
    return "", "", time.monotonic() - start


def of_all(mine: Any) -> list[Any]:
    """Return what every rank has, in the order of ranks."""
    theirs: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(theirs, mine)
    return theirs


class Ended(NamedTuple):
    """How a script ended: the first exit code that is not 0, and what all ranks have printed, rank by rank."""

    code: int
    stdout: str
    stderr: str


def run_script(script: Path, *flags: str, folder: Path, ranks: int = 1) -> Ended:
    """Run a Python script in a folder as torchrun does with these ranks, or as Python does with one."""
    outputs = folder / "outputs"
    outputs.mkdir()
    with meeting_point() as where:
        launch(_as_rank, str(script), flags, str(folder), where | {"WORLD_SIZE": str(ranks)}, nprocs=ranks)
    found = [
        [(outputs / f"{rank}.{name}").read_text() for name in ("code", "stdout", "stderr")] for rank in range(ranks)
    ]
    codes, stdouts, stderrs = zip(*found, strict=True)
    return Ended(next((int(code) for code in codes if code != "0"), 0), "".join(stdouts), "".join(stderrs))


def _as_rank(rank: int, script: str, flags: Sequence[str], folder: str, where: dict[str, str]) -> None:
    if where["WORLD_SIZE"] != "1":
        os.environ |= where | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": where["WORLD_SIZE"]}
    os.chdir(folder)
    with output_to(Path(folder) / "outputs" / str(rank)):
        code = exit_code(lambda: runpy.run_path(script, run_name="__main__"), [script, *flags])
    (Path(folder) / "outputs" / f"{rank}.code").write_text(str(code))


def exit_code(work: Callable[[], object], argv: list[str]) -> int:
    """Do what a process would do with these arguments, and return the exit code it would end with."""
    sys.argv = argv
    try:
        work()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            sys.stderr.write(f"{stop.code}\n")
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Let this process write into two files, PATH.stdout and PATH.stderr."""
    for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
        with path.with_suffix(f".{name}").open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
    yield
    sys.stdout.flush()
    sys.stderr.flush()


@contextmanager
def meeting_point() -> Iterator[dict[str, str]]:
    """Keep the store that ranks meet in, and yield the variables that lead them there, as torchrun's agent does.

    A port that is only found, and left for rank 0 to bind, may be a stranger's by then: rank 0 fails, and the others
    wait for an answer of the stranger, for which torch has no timeout.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}


def once(tmp_path_factory: Any, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` has filled, once for all workers of pytest-xdist; where it failed, fail at once."""
    base: Path = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = folder / "failed"
        if failed.exists():
            raise RuntimeError(f"{name}: failed in another test: {failed.read_text(encoding='utf-8')}")
        if not (folder / "done").exists():
            folder.mkdir()
            failed.write_text("its process was ended", encoding="utf-8")
            try:
                make(folder)
            except BaseException as error:
                failed.write_text(str(error), encoding="utf-8")
                raise
            failed.rename(folder / "done")
    return folder
