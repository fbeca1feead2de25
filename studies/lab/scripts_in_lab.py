"""What a rank of the lab does: `python -m studies.lab.scripts_in_lab record|train JOBS.json`.

Scripts run as they are, each in a process of its own that is forked when torch is imported: eight ranks on two cores
would import for ten seconds each time.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.optim
from torch.optim import optimizer as optimizers

from binsgdm.recording import isolated_process

POLL_S = 0.05


def main(mode: str, jobs: list[dict[str, Any]]) -> None:
    """Do all jobs, one after the other."""
    for number, job in enumerate(jobs):
        if mode == "record":
            _record_until_all_have(job)
        else:
            _in_process(lambda job=job, number=number: _train(job, number))


def _record_until_all_have(job: dict[str, Any]) -> None:
    """Record, and keep the core as busy until every rank has: no recording is alone on its core."""
    folder, rank = Path(job["folder"]), os.environ["RANK"]
    hidden = folder / f".{rank}.json"
    settings = job["settings"] | {"found": str(hidden)}
    _in_process(lambda: sys.exit(isolated_process.main(settings)))
    hidden.rename(folder / f"rank_{rank}.json")
    again = _fork(lambda: sys.exit(isolated_process.main(settings)))
    while len(list(folder.glob("rank_*.json"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(POLL_S)
    again.kill()
    again.join()
    hidden.unlink(missing_ok=True)


def _train(job: dict[str, Any], number: int) -> None:
    """Run a script as one of the ranks, and write when each of its optimizer's steps ended."""
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 100 + number)
    ends, running = [], [0]

    def before(*_: object) -> None:
        running[0] += 1

    def after(*_: object) -> None:
        running[0] -= 1
        if not running[0]:  # ZeroRedundancyOptimizer runs another one inside
            ends.append(time.perf_counter())

    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)
    isolated_process.run_script(job["script"], job["arguments"])
    if os.environ["RANK"] == "0":
        Path(job["found"]).write_text(json.dumps([end - ends[0] for end in ends]), encoding="utf-8")


def _in_process(work: Callable[[], None]) -> None:
    """Do work in a forked process, and end with it if it fails."""
    child = _fork(work)
    child.join()
    if child.exitcode:
        sys.exit(child.exitcode)


def _fork(work: Callable[[], None]) -> BaseProcess:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
