"""What the ranks of worlds of several sizes do: nodes of every size, DDP, meshes, mistakes, and bytes on the wire."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ranks
import torch
import torch.distributed as dist
import wire
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.optimizers.settings import Rounding
from tests.helpers.launch import join, of_all

HIERARCHICAL, ONE_BIT, FLAT = ranks.Case(ranks.HIERARCHICAL), ranks.Case(ranks.ONE_BIT), ranks.Case(ranks.FLAT)
SHAPED, SHAPED_ONE_BIT = ranks.Case(ranks.HIERARCHICAL, is_shaped=True), ranks.Case(ranks.ONE_BIT, is_shaped=True)
CASES = [  # world size, ranks per node, case
    (8, 2, HIERARCHICAL),
    (8, 2, FLAT),
    (4, 1, HIERARCHICAL),
    (4, 1, FLAT),
    (4, 4, HIERARCHICAL),
    (4, 4, ONE_BIT),
    (2, 1, HIERARCHICAL),
    (2, 2, HIERARCHICAL),
    (8, 2, SHAPED),
    (4, 4, SHAPED_ONE_BIT),
    (2, 1, SHAPED),
]
WIRE = [(2, 1), (2, 2), (4, 1), (4, 2), (8, 2)]  # world size, ranks per node
DDP = [(overlap, view) for overlap in (False, True) for view in (False, True)]
MICRO_BATCHES = 2


def work(rank: int, world_size: int, folder: str) -> None:
    """Do all that is asked of a world of this size; rank 0 leaves the results in a file."""
    torch.set_num_threads(1)
    join(rank, world_size, folder)
    results: dict[Any, Any] = {}
    for size, local, case in CASES:
        if size == world_size:
            results[local, case] = ranks.train(rank, case, ranks_per_node=local)
    for size, local in WIRE:
        if size == world_size:
            results["wire", local] = of_all(wire.one_step(world_size, local))
    if world_size == 4:
        results["mesh"] = ranks.train(rank, HIERARCHICAL, mesh=init_device_mesh("cpu", (2, 2)))
        results["ddp"] = {case: of_all(ddp_and_plain(rank, *case)) for case in DDP}
        results["two optimizers"] = of_all(two_optimizers(rank))
        results["told"] = {name: of_all(_told(mistake)) for name, mistake in _mistakes(rank).items()}
    if world_size == 1:
        results["alone"] = {case: ranks.train(rank, case, ranks_per_node=1) for case in (HIERARCHICAL, SHAPED)}
    if rank == 0:
        torch.save(results, Path(folder) / f"results{world_size}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 40), nn.Tanh(), nn.Linear(40, 3))


def ddp_and_plain(rank: int, overlap: bool, gradient_as_bucket_view: bool) -> dict[str, list[torch.Tensor]]:
    """Return parameters and last gradients of a DDP model, and of the same model with local gradients and no DDP."""
    view, rounding = gradient_as_bucket_view, ranks.ROUNDINGS[gradient_as_bucket_view]
    ddp = DistributedDataParallel(_model(), bucket_cap_mb=0.001, gradient_as_bucket_view=view)
    plain = _model()
    return {
        "ddp": _train_accumulating(ddp, rank, rounding, model=ddp, overlap=overlap),
        "plain": _train_accumulating(plain, rank, rounding),
    }


def two_optimizers(rank: int) -> dict[str, list[torch.Tensor]]:
    """Return gradients after a backward where some are not BinSGDM's, and those that ranks have alone."""
    ddp, plain = DistributedDataParallel(_model(), bucket_cap_mb=0.001), _model()
    first, *others = list(ddp.parameters())
    binsgdm.attach(binsgdm.BinSGDM([first]), ddp, ranks_per_node=2)
    binsgdm.attach(binsgdm.BinSGDM(others[1:3]), ddp, ranks_per_node=2)
    samples = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    for trained in (ddp, plain):
        trained(samples).square().mean().backward()
    return {name: [p.grad for p in net.parameters()] for name, net in {"ddp": ddp, "plain": plain}.items()}


def _train_accumulating(trained: nn.Module, rank: int, rounding: Rounding, **options: Any) -> list[torch.Tensor]:
    settings = {"lr": ranks.LR, "weight_decay": ranks.WEIGHT_DECAY, "seed": ranks.SEED}
    optimizer = binsgdm.BinSGDM(trained.parameters(), rounding=rounding, **settings)
    cap_mb = ranks.BUCKET_ELEMENTS * 4 / 2**20
    binsgdm.attach(optimizer, ranks_per_node=2, bucket_cap_mb=cap_mb, **options)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(ranks.STEPS):
        optimizer.zero_grad()
        for number in range(MICRO_BATCHES):
            last = number == MICRO_BATCHES - 1
            is_ddp = isinstance(trained, DistributedDataParallel)
            with trained.no_sync() if is_ddp and not last else nullcontext():
                trained(torch.randn(4, 6, generator=generator)).square().mean().backward()
        optimizer.step()
    binsgdm.check_replicas(trained)
    return [tensor.detach().clone() for p in trained.parameters() for tensor in (p, p.grad)]


def _told(mistake: Callable[[], None]) -> str:
    try:
        mistake()
    except binsgdm.BinsgdmError as error:
        return str(error)
    return ""


def _mistakes(rank: int) -> dict[str, Callable[[], None]]:
    """Return mistakes that a user can make, all ranks alike or one rank alone."""

    def attach(*shapes: int, seed: int = 0, value: float = 0.0, **options: Any) -> None:
        parameters = [torch.nn.Parameter(torch.full((shape,), value)) for shape in shapes or (3,)]
        binsgdm.attach(binsgdm.BinSGDM(parameters, seed=seed), **{"ranks_per_node": 2} | options)

    def attach_with_environment(size: str) -> None:
        os.environ["LOCAL_WORLD_SIZE"] = size
        try:
            attach(ranks_per_node=None)
        finally:
            del os.environ["LOCAL_WORLD_SIZE"]

    def step_on_two_devices() -> None:
        parameters = [torch.nn.Parameter(torch.zeros(3, device=device)) for device in ("cpu", "meta")]
        optimizer = binsgdm.BinSGDM(parameters)
        binsgdm.attach(optimizer, ranks_per_node=2)
        optimizer.step()

    return {
        "node size": lambda: attach(ranks_per_node=3),
        "node size of 0": lambda: attach(ranks_per_node=0),
        "LOCAL_WORLD_SIZE": lambda: attach_with_environment("3"),
        "LOCAL_WORLD_SIZE is no number": lambda: attach_with_environment("two"),
        "no node size": lambda: attach(ranks_per_node=None),
        "mesh of one dimension": lambda: attach(mesh=init_device_mesh("cpu", (4,))),
        "mesh of three dimensions": lambda: attach(mesh=init_device_mesh("cpu", (2, 2, 1))),
        "mesh in another order": lambda: attach(mesh=DeviceMesh("cpu", [[0, 2], [1, 3]])),
        "two devices": step_on_two_devices,
        "seed": lambda: attach(seed=5 if rank == 2 else 4),
        "shapes": lambda: attach(3, 4 if rank == 3 else 5),
        "number of parameters": lambda: attach(*[3] * (2 if rank == 1 else 1)),
        "topology": lambda: attach(topology="flat" if rank == 1 else "hierarchical"),
        "bucket_cap_mb": lambda: attach(bucket_cap_mb=1.0 + rank),
        "ranks_per_node": lambda: attach(ranks_per_node=4 if rank == 3 else 2),
        "values": lambda: attach(value=float(rank == 2)),
    }
