"""A scheduler of Dask and its workers as processes of this machine, on loopback."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST_S = 60.0


class DaskProcesses:
    """A scheduler, and workers of one thread each; a worker that is killed stays dead."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(self._file), "--no-show")
        wait_until(self._has_address, "the scheduler starts")
        self.address = str(json.loads(self._file.read_text())["address"])

    def add_worker(self, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a worker, and return when the scheduler knows it."""
        options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self._folder))
        process = self._start("worker", self.address, *options, environment=environment)
        log = self._log(len(self._processes) - 1)
        wait_until(lambda: b"Registered to:" in log.read_bytes(), "a worker is registered")
        return process

    def _has_address(self) -> bool:
        # Dask writes the file in place: it may be there and empty.
        return self._file.exists() and self._file.read_text().endswith("}")

    def _start(self, what: str, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with self._log(len(self._processes)).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", what, *options, "--host", "127.0.0.1", "--no-dashboard"],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def _log(self, number: int) -> Path:
        return self._folder / f"{number}.log"

    def end(self) -> None:
        """End all of them."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()


@contextmanager
def dask_processes(folder: Path, num_workers: int = 2) -> Iterator[DaskProcesses]:
    """Yield a scheduler with workers, which end with the test."""
    processes = DaskProcesses(folder)
    try:
        for _ in range(num_workers):
            processes.add_worker()
        yield processes
    finally:
        processes.end()


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that others do."""
    deadline = time.monotonic() + LONGEST_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {LONGEST_S:.0f} s: {what}"
        time.sleep(0.01)
