"""What two gloo ranks do with the checks that `simnet measure gpu` makes over all cards."""

import json
import os
from pathlib import Path

import torch

from binsgdm.measure.bench import Bench
from binsgdm.measure.gpu import replicas
from binsgdm.measure.ranks import joined
from binsgdm.measure.record import Record
from binsgdm.measure.timing import StopRule

WORLD_SIZE = 2


def work(rank: int, where: dict[str, str], folder: str) -> None:
    """Compare everything, then with a planted error; rank 0 leaves the outcomes in a file."""
    torch.set_num_threads(1)
    os.environ |= where | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE), "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
    }  # fmt: skip
    with joined(device="cpu") as ranks:
        good = Record(ranks)
        replicas.check(Bench(record=good, ranks=ranks, stop_rule=StopRule()))
        planted = Record(ranks)
        bench = Bench(record=planted, ranks=ranks, stop_rule=StopRule())
        wrong = [torch.ones(3), torch.ones(2) + (2.0**-23 if rank == 1 else 0.0)]
        replicas._add(bench, "a bit of rank 1", lambda: replicas._num_wrong(ranks, wrong, wrong))
        system = replicas._means
        replicas._means = lambda *args: [one + 1.0 for one in system(*args)]
        replicas._add(bench, "another mean", lambda: replicas._system(ranks, ranks.groups, "qsgd"))
        replicas._add(bench, "an error", lambda: 1 // 0)
    if rank == 0:
        (Path(folder) / "checks.json").write_text(json.dumps({"good": good.checks, "planted": planted.checks}))
