"""What a rank of the lab does: `python -m studies.lab.uneven_ranks JOBS.json`, one training after the other.

A job trains so many steps in a row with one strategy, and writes them as `simnet measure training` does: those of the
slowest rank, and those of every rank.
"""

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from binsgdm.bench import training
from binsgdm.bench.ranks import Ranks, joined
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule
from binsgdm.bench.without_messages import answered_at_once

Job = dict[str, Any]
POLL_S = 0.005


def main(path: Path) -> None:
    """Do all jobs of a file, once every rank has its part of a core."""
    jobs = json.loads(path.read_text(encoding="utf-8"))
    with joined(device="cpu", threads=1) as ranks:
        if ranks.rank == 0:
            path.with_suffix(".joined").touch()
            while not path.with_suffix(".limited").exists():
                time.sleep(POLL_S)
        for job in jobs:
            _train(job, ranks)


def _train(job: Job, ranks: Ranks) -> None:
    """Train a while that does not count, say that it begins, train, and write what steps took."""
    how, cap = training.strategy(job["strategy"]), job["bucket_cap_mb"]
    with answered_at_once() if job["without_messages"] else nullcontext():
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
    main(Path(sys.argv[1]))
