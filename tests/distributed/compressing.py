"""What a gloo rank does with the communication hook of every system, and the one-process control."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_model import RANKS_PER_NODE, WORLD_SIZE, loss, model, process_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import RankContext, run_in_lockstep
from binsgdm.exchange.replicas import check_replicas
from binsgdm.systems.base import GradientBucket
from binsgdm.systems.ddp_hook import GradientExchange, compress_gradients
from binsgdm.systems.registry import SYSTEMS, make

STEPS = 4
SEED = 11
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SYSTEMS if name not in ("top_k", "ms_top_k", "random_k", "marsit")),
    ("marsit", {"sync_period": 3}),
    ("marsit", {"torus": True}),
    ("qsgd", {"coding": "elias", "bits": 2}),
    ("top_k", {"ratio": 0.1}),
    ("ms_top_k", {"k": 5}),
    ("random_k", {"ratio": 0.2}),
]


def work(rank: int, folder: str) -> None:
    """Train with every system; rank 0 leaves what it saw in a file."""
    with process_group(rank, folder):
        results: dict[str, Any] = {str(case): train(rank, *case) for case in CASES}
        results["refused"] = refused(rank)
        results["resumed"] = resumed(rank)
        if rank == 0:
            torch.save(results, Path(folder) / "results.pt")


def train(rank: int, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients of every step, those of the control, and whether replicas stayed equal."""
    module = DistributedDataParallel(model(), bucket_cap_mb=0.002)
    exchange = compress_gradients(module, name, seed=SEED, **options)
    layouts = _noting(exchange)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    plain = model()
    found, local, used = [], [], []
    for step in range(STEPS):
        plain.load_state_dict(module.module.state_dict())
        plain.zero_grad()
        loss(plain, rank, step).backward()
        local.append(_gradients(plain))
        layouts.clear()
        optimizer.zero_grad()
        loss(module, rank, step).backward()
        used.append(list(layouts))
        found.append(_gradients(module))
        optimizer.step()
    check_replicas(module)
    gathered: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(gathered, local)
    control = control_of(name, options, gathered, used) if rank == 0 else None
    return {"found": found, "control": control, "buckets": [len(one) for one in used]}


def _noting(exchange: GradientExchange) -> list[tuple[int, tuple[int, ...]]]:
    """Return a list to which every bucket adds its number and parameters."""
    layouts: list[tuple[int, tuple[int, ...]]] = []
    mean = exchange.system.mean

    def noting(bucket: GradientBucket, context: RankContext) -> Any:
        layouts.append((context.bucket, bucket.parameters))  # type: ignore[arg-type]
        return mean(bucket, context)

    exchange.system.mean = noting  # type: ignore[method-assign]
    return layouts


def _gradients(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters()]  # type: ignore[union-attr]


def control_of(name: str, options: dict[str, Any], gathered: list[Any], used: list[Any]) -> list[list[torch.Tensor]]:
    """Return what all ranks in one process get from the same gradients in the same buckets."""
    systems = [make(name, rank=rank, world_size=WORLD_SIZE, **options) for rank in range(WORLD_SIZE)]
    steps = []
    for step, layouts in enumerate(used):
        means: dict[int, torch.Tensor] = {}
        for number, parameters in layouts:
            talks = []
            for rank, system in enumerate(systems):
                gradients = [gathered[rank][step][one] for one in parameters]
                bucket = GradientBucket(
                    values=torch.cat([gradient.reshape(-1) for gradient in gradients]),
                    parameters=parameters,
                    shapes=tuple(tuple(gradient.shape) for gradient in gradients),
                )
                context = RankContext(
                    rank=rank,
                    world_size=WORLD_SIZE,
                    ranks_per_node=RANKS_PER_NODE,
                    seed=SEED,
                    step=step + 1,
                    bucket=number,
                )
                talks.append(system.mean(bucket, context))
            flat = run_in_lockstep(talks, RANKS_PER_NODE)[0]
            pieces = flat.split([gathered[0][step][one].numel() for one in parameters])
            means |= {
                one: piece.view(gathered[0][step][one].shape) for one, piece in zip(parameters, pieces, strict=True)
            }
        steps.append([means[one] for one in sorted(means)])
    return steps


def refused(rank: int) -> list[str]:
    """Return what is said to an unknown system, a wrong option, and options that differ between ranks."""
    said = []
    for name, options in (("qsdg", {}), ("qsgd", {"bit": 4}), ("qsgd", {"bits": 9}), ("qsgd", {"bits": 3 + rank % 2})):
        try:
            compress_gradients(DistributedDataParallel(model()), name, **options)
        except BinsgdmError as error:
            said.append(str(error))
        else:
            said.append("nothing")
    return said


def resumed(rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradients of the third step, in one go and after a checkpoint of the second."""
    ends = []
    for saves in (False, True):
        module = DistributedDataParallel(model(), find_unused_parameters=True)  # whose buckets stay as they are
        exchange = compress_gradients(module, "ef_sign_sgd", seed=SEED)
        for step in range(3):
            if saves and step == 2:
                state = exchange.state_dict()
                module = DistributedDataParallel(module.module, find_unused_parameters=True)
                exchange = compress_gradients(module, "ef_sign_sgd", seed=SEED)
                exchange.load_state_dict(state)
            module.zero_grad()
            loss(module, rank, step).backward()
        ends.append(_gradients(module))
    return ends[0], ends[1]
