"""What a gloo rank does with a sharded model whose copies a system averages, and the one-process control."""

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sharded import LOCAL, NODES, Case, Model, _node_gradients, _piece, _spoil_second_node, loss_of, shard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import binsgdm
from binsgdm.comm import run_in_lockstep
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import make
from binsgdm.parallel.compressed_replicas import ReplicaContext
from tests.helpers.launch import join

STEPS, SEED, CAP = 3, 7, 20
SYSTEMS: dict[str, dict[str, Any]] = {
    "byte_grad": {"topology": "scatter_reduce"},
    "ef_sign_sgd": {},
    "qsgd": {},
}
CASES = {name: Case() for name in SYSTEMS} | {
    "ef_sign_sgd, resume": Case(resume=True),
    "byte_grad, accumulate": Case(micro_batches=2),
    "byte_grad, mixed precision": Case(mixed=True),
}


def system_of(case: str) -> str:
    return case.split(",", maxsplit=1)[0]


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.125)


def train(rank: int, mesh: Any, name: str) -> tuple[list[torch.Tensor], list[Any]]:
    case, system = CASES[name], system_of(name)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if case.mixed else None
    model: Any = shard(Model(), mesh["local"], **({"mp_policy": policy} if policy else {}))
    _spoil_second_node(model, rank)
    sent: list[Any] = []
    settings = {"seed": SEED, "bucket_cap_mb": CAP * 4 / 2**20, "on_sent": sent.append, **SYSTEMS[system]}
    optimizer = optimizer_of(model)
    exchange = binsgdm.compress_replicas(optimizer, mesh, system, **settings)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(case.micro_batches):
            model.set_requires_gradient_sync(number == case.micro_batches - 1)
            loss_of(model, case, rank, step, number, torch.float32).backward()
        optimizer.step()
        if case.resume and step == 0:
            saved, optimizer = copy.deepcopy(exchange.state_dict()), optimizer_of(model)
            exchange = binsgdm.compress_replicas(optimizer, mesh, system, **settings)
            exchange.load_state_dict(saved)
    return [one.full_tensor().detach() for one in model.parameters()], sent


def work(rank: int, folder: str) -> None:
    """Train every case as one rank; every rank leaves a file."""
    torch.set_num_threads(1)
    join(rank, NODES * LOCAL, folder)
    mesh = init_device_mesh("cpu", (NODES, LOCAL), mesh_dim_names=("node", "local"))
    results: dict[str, Any] = {name: train(rank, mesh, name) for name in CASES}
    results["told"] = _mistakes(mesh, rank)
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _mistakes(mesh: Any, rank: int) -> dict[str, str]:
    model, plain = shard(torch.nn.Sequential(torch.nn.Linear(4, 4)), mesh["local"]), torch.nn.Linear(4, 4)
    sharded = torch.optim.SGD(model.parameters())
    told = {
        "not sharded": _told(torch.optim.SGD(plain.parameters()), mesh, "byte_grad"),
        "one dimension": _told(sharded, mesh["local"], "byte_grad"),
        "system": _told(sharded, mesh, "byte_grid"),
        "hierarchical": _told(sharded, mesh, "byte_grad", topology="hierarchical"),
        "one rank's seed": _told(sharded, mesh, "byte_grad", seed=rank),
        "binsgdm": _told(binsgdm.BinSGDM(model.parameters()), mesh, "byte_grad"),
        "bucket": _told(sharded, mesh, "byte_grad", bucket_cap_mb=0),
    }
    exchange = binsgdm.compress_replicas(sharded, mesh, "byte_grad")
    told["twice"] = _told(sharded, mesh, "byte_grad")
    told["no gradients"] = _raised(sharded.step)
    told["state"] = _raised(lambda: exchange.load_state_dict({"step": 1}))
    model(torch.ones(1, 4)).sum().backward()
    told["closure"] = _raised(lambda: sharded.step(lambda: 0.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(1))
    told["scaler"] = _raised(lambda: scaler.step(sharded))
    return told


def _told(*given: Any, **options: Any) -> str:
    return _raised(lambda: binsgdm.compress_replicas(*given, **options))


def _raised(call: Any) -> str:
    try:
        call()
    except binsgdm.BinsgdmError as error:
        return str(error)
    return ""


def control(name: str) -> list[torch.Tensor]:
    """Return the parameters after the same steps, of all ranks in this process."""
    case, system, model = CASES[name], system_of(name), Model()
    ends = [
        [make(system, rank=node, world_size=NODES, **SYSTEMS[system]) for node in range(NODES)] for _ in range(LOCAL)
    ]
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        of_nodes = [_node_gradients(model, case, node, step) for node in range(NODES)]
        means = [_means(ends[local], of_nodes, local, step + 1) for local in range(LOCAL)]
        trained = [one for one in model.parameters() if one.requires_grad]
        for number, parameter in enumerate(trained):
            parameter.grad = torch.cat([means[local][number] for local in range(LOCAL)])
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def _means(ends: list[Any], of_nodes: list[list[Any]], local: int, step: int) -> dict[int, torch.Tensor]:
    """Return the mean of each gradient's shard of one local rank."""
    mine = [[_piece(one, local) for one in gradients if one is not None] for gradients in of_nodes]
    found: dict[int, torch.Tensor] = {}
    for index, numbers in enumerate(_buckets([one.numel() for one in mine[0]])):
        shapes = tuple(tuple(mine[0][number].shape) for number in numbers)
        protocols = [
            end.mean(
                GradientBucket(
                    values=torch.cat([mine[node][number].reshape(-1) for number in numbers]),
                    parameters=tuple(numbers),
                    shapes=shapes,
                ),
                ReplicaContext(
                    rank=node, world_size=NODES, ranks_per_node=1, seed=SEED, step=step, bucket=index, shard=local,
                    num_shards=LOCAL,
                ),
            )
            for node, end in enumerate(ends)
        ]  # fmt: skip
        if sum(mine[0][number].numel() for number in numbers):
            flat = run_in_lockstep(protocols, 1)[0]
            parts = flat.split([mine[0][number].numel() for number in numbers])
            found |= {number: part.view(shape) for number, part, shape in zip(numbers, parts, shapes, strict=True)}
        else:
            found |= {number: mine[0][number] for number in numbers}
    return found


def _buckets(numels: list[int]) -> list[list[int]]:
    """Return the parameters of each message, from the last, each ended by the element that fills it."""
    found: list[list[int]] = [[]]
    for number in reversed(range(len(numels))):
        if sum(numels[one] for one in found[-1]) >= CAP:
            found.append([])
        found[-1].append(number)
    return found
