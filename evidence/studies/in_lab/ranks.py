"""What a rank of the lab does: `python -m evidence.studies.in_lab.ranks record|train|uneven FILE`."""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed.fsdp
import torch.distributed.optim
from torch.optim import optimizer as optimizers

from binsgdm.bench import training
from binsgdm.bench.ranks import Ranks, joined
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule
from binsgdm.recording import isolated_process


def scripts(mode: str, jobs: list[dict[str, Any]]) -> None:
    """Record or train with scripts as they are, each in a process of its own, forked when torch is imported.

    Eight ranks on two cores would import for ten seconds each time.
    """
    torch.set_num_threads(1)
    for number, job in enumerate(jobs):
        if mode == "record":
            _record_until_all_have(job)
        else:
            _in_process(lambda job=job, number=number: _train_script(job, number))


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


def _train_script(job: dict[str, Any], number: int) -> None:
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
    child = _fork(work)
    child.join()
    if child.exitcode:
        sys.exit(child.exitcode)


def _fork(work: Callable[[], None]) -> BaseProcess:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


POLL_S = 0.005


def uneven(path: Path) -> None:
    """Train, job after job of a file, once every rank has its part of a core.

    A job trains so many steps in a row with one strategy, and writes them as `simnet measure training` does: those of
    the slowest rank, and those of every rank.
    """
    jobs = json.loads(path.read_text(encoding="utf-8"))
    with joined(device="cpu", threads=1) as ranks:
        if ranks.rank == 0:
            path.with_suffix(".joined").touch()
            while not path.with_suffix(".limited").exists():
                time.sleep(POLL_S)
        for job in jobs:
            _train(job, ranks)


def _train(job: dict[str, Any], ranks: Ranks) -> None:
    """Train a while that does not count, say that it begins, train, and write what steps took."""
    how, cap = training.strategy(job["strategy"]), job["bucket_cap_mb"]
    with training.answered_at_once() if job["without_messages"] else nullcontext():
        step = training.training_step(job["model"], job["batch"], how, ranks, cap)
        training.timed_block(step, job["warm_up"], ranks)
        if ranks.rank == 0:
            Path(job["output"]).with_suffix(".begun").touch()
        rows = training.timed_block(step, job["steps"], ranks)
    record = Record(ranks, nic_bytes_per_s=job["nic_bytes_per_s"], network=job["network"])
    labels = {"model": job["model"], "batch": job["batch"], **how.labels, "bucket_cap_mb": cap}
    kind = "own_work" if job["without_messages"] else "training"
    training.add_rows(Bench(record=record, ranks=ranks, stop_rule=StopRule()), kind, rows, labels)
    if ranks.rank == 0:
        record.write(Path(job["output"]))


if __name__ == "__main__":
    mode, file = sys.argv[1], Path(sys.argv[2])
    if mode == "uneven":
        uneven(file)
    else:
        scripts(mode, json.loads(file.read_text(encoding="utf-8")))
