"""Models that are joined, trained, left and dropped leave nothing: no process group, thread or open file."""

import gc
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from binsgdm.parallel.fsdp import attach_fsdp
from tests.helpers.launch import of_all, rank_of_gloo

WORLD_SIZE = 2
ROUNDS, WARM_UP = 4, 2
"""Models of each kind, and after how many of them counting begins."""


def work(rank: int, folder: str) -> None:
    """Leave in a file what this process holds after every model."""
    gc.freeze()  # what torch has made needs no look after every model, half a second each
    with rank_of_gloo(rank, WORLD_SIZE, folder) as results:
        found: dict[str, list[dict[str, int]]] = {}
        for name, live in LIVES.items():
            held = found[name] = []
            for _ in range(ROUNDS):
                held.append(_held_after(live, held[-1]["tasks"] if held else None))
        results["held"] = of_all(found)


def _held_after(live: Callable[[DistributedDataParallel], object], most_tasks: int | None) -> dict[str, int]:
    live(DistributedDataParallel(nn.Linear(6, 3)))
    gc.collect()
    dist.barrier()  # connections close when both ranks have let go of them
    return {
        "groups": len(dist.distributed_c10d._world.pg_map),
        "threads": threading.active_count(),
        "tasks": _num_tasks(most_tasks),
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


def _num_tasks(most: int | None) -> int:
    """Return how many threads the kernel has of this process; those that are about to end get two seconds for it."""
    for _ in range(100):
        number = len(list(Path("/proc/self/task").iterdir()))
        if most is None or number <= most:
            break
        time.sleep(0.02)
    return number


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()


def bin_sgdm(model: DistributedDataParallel, **options: Any) -> None:
    optimizer = binsgdm.BinSGDM(model.parameters())
    binsgdm.attach(optimizer, model, ranks_per_node=1, **options)
    _step(model, optimizer)
    binsgdm.detach(optimizer)


def one_bit_adam(model: DistributedDataParallel) -> None:
    optimizer = OneBitAdam(model.parameters(), dense_steps=1)
    attach_one_bit_adam(optimizer, model, ranks_per_node=1)
    _step(model, optimizer)
    _step(model, optimizer)
    binsgdm.detach(optimizer)


def hook(model: DistributedDataParallel) -> None:
    exchange = compress_gradients(model, "qsgd")
    _step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    exchange.detach()


@cache
def _mesh() -> Any:
    return init_device_mesh("cpu", (2, 1), mesh_dim_names=("node", "local"))


def fsdp(_: DistributedDataParallel) -> None:
    model: Any = fully_shard(nn.Linear(6, 3), mesh=_mesh()["local"])
    optimizer = binsgdm.BinSGDM(model.parameters())
    attach_fsdp(optimizer, _mesh())
    _step(model, optimizer)
    binsgdm.detach(optimizer)


def replicas(model: DistributedDataParallel) -> None:
    binsgdm.check_replicas(model)


LIVES: dict[str, Callable[[DistributedDataParallel], object]] = {
    "BinSGDM": bin_sgdm,
    "BinSGDM, overlap": lambda model: bin_sgdm(model, overlap=True),
    "1-bit Adam": one_bit_adam,
    "hook": hook,
    "FSDP2": fsdp,
    "check_replicas": replicas,
}


@pytest.mark.parametrize("name", LIVES)
def test_what_a_process_holds_does_not_grow_with_the_models_it_has_trained(results, name):
    for of_rank in results["held"]:
        first, *later = of_rank[name][WARM_UP:]
        assert [{key for key, number in one.items() if number > first[key]} for one in later] == [set()] * len(later)
