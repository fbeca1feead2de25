"""What a gloo rank of the table does: every row in every way, and what all ranks were told."""

import os
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError
from tests.helpers.launch import join
from tests.works import training
from tests.works.rows import ROWS
from tests.works.table import WAYS, Way

WORLD_SIZE = 2


class Outcome(NamedTuple):
    """How a row ended on one rank: `said` is empty if it works."""

    kind: str
    said: str
    seconds: float


def work(rank: int, folder: str, only: str = "") -> None:
    """Show every row that works or is refused; rank 0 leaves what all ranks found in a file."""
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = "1"  # two nodes: one bit travels
    join(rank, WORLD_SIZE, folder)
    reports = dist.new_group(timeout=timedelta(seconds=60))
    training.FOLDER[:] = [Path(folder)]
    results = {}
    for name, one in ROWS.items():
        for way in WAYS:
            if one.show is None or (only and only not in f"{name} {way}"):
                continue
            theirs: list[Any] = [None] * WORLD_SIZE
            dist.all_gather_object(theirs, outcome(one.show, way), group=reports)
            results[name, str(way)] = theirs
            _leave_groups(but={dist.group.WORLD, reports})
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    dist.barrier(group=reports)
    dist.destroy_process_group()


def _leave_groups(but: set[Any]) -> None:
    """Let go of what a row has made; the threads of hundreds of groups would take their time."""
    for group in set(dist.distributed_c10d._world.pg_map) - but:
        dist.destroy_process_group(group)


def outcome(show: Callable[[Way], None], way: Way) -> Outcome:
    start = time.monotonic()
    kind = said = ""
    try:
        show(way)
    except BinsgdmError as error:
        kind, said = type(error).__name__, str(error)
    except BaseException as error:  # a defect, told with its place; torch's CheckpointException is no Exception
        kind, said = type(error).__name__, "".join(traceback.format_exception(error)[-3:])
    return Outcome(kind, said, time.monotonic() - start)
