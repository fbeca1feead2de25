"""What a gloo rank does with a model that FSDP2 shards over its node, and the one-process control."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import binsgdm
from binsgdm.comm import Member, RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import make
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from binsgdm.parallel.fsdp import ShardContext, attach_fsdp
from tests.helpers.launch import heard, join, of_all

NODES, LOCAL = 2, 2
WORLD_SIZE = NODES * LOCAL
STEPS, SEED, WEIGHT_DECAY, BUCKET_ELEMENTS = 3, 7, 0.1, 40
CLIP_NORM = 0.05


@dataclass(frozen=True, kw_only=True)
class Case:
    micro_batches: int = 1
    mixed: bool = False
    clip: bool = False
    scale: float = 1.0
    """Of the loss, by a GradScaler; a power of two, which changes no bit of a gradient."""
    lrs: tuple[float, ...] = (0.01,)
    extra_on: tuple[int, ...] = (0, 1)
    """Nodes that use the layer `extra`."""
    resume: bool = False
    """Go on after the first step with a new optimizer that loads what the old one saved."""
    is_shaped: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Of the optimizer, alike in all groups."""
        shaped = {"rounding": "shaped", "gain": 1.5, "beta_b": 0.99}
        settings = {"weight_decay": WEIGHT_DECAY, "seed": SEED, "beta": 0.95} | binsgdm.PAPER
        return settings | (shaped if self.is_shaped else {})


CASES = {
    "plain": Case(),
    "mixed precision": Case(mixed=True),
    "clip": Case(clip=True),
    "accumulate, grad scaler, groups": Case(micro_batches=2, scale=1024.0, lrs=(0.01, 0.003)),
    "unused": Case(extra_on=()),
    "shaped, unused on one node": Case(extra_on=(1,), is_shaped=True),
    "shaped, resume": Case(resume=True, is_shaped=True),
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "byte_grad": {"topology": "scatter_reduce"},
    "ef_sign_sgd": {},
    "qsgd": {},
}
COMPRESSED = {
    "byte_grad": Case(micro_batches=2),
    "ef_sign_sgd": Case(resume=True),
    "qsgd": Case(mixed=True),
}
"""Of the systems that average copies of the model."""


class Model(nn.Module):
    """Shards of unequal size, an empty one (the last layer has one row), and a bias that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(5, 9), nn.LayerNorm(9)
        self.extra, self.last = nn.Linear(9, 9), nn.Linear(9, 1)
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor, use_extra: bool) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        if use_extra:
            x = torch.relu(self.extra(x))
        return self.last(x)


def inputs(rank: int, step: int, micro_batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10_000 * rank + 100 * step + micro_batch)
    return torch.randn(6, 5, generator=generator)


def loss_of(model: nn.Module, case: Case, rank: int, step: int, micro_batch: int, dtype: torch.dtype) -> torch.Tensor:
    x = inputs(rank, step, micro_batch).to(dtype)
    return model(x, rank // LOCAL in case.extra_on).float().square().mean()


def groups_of(parameters: list[Any], case: Case) -> list[dict[str, Any]]:
    size = -(-len(parameters) // len(case.lrs))
    return [{"params": parameters[k * size : (k + 1) * size], "lr": lr} for k, lr in enumerate(case.lrs)]


def shard(model: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    for layer in list(model.children()):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


@dataclass
class Record:
    """What one rank saw: whole parameters after training, and its shards' gradients in each step."""

    parameters: list[torch.Tensor] = field(default_factory=list)
    gradients: list[list[torch.Tensor | None]] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)


def new_optimizer(model: nn.Module, case: Case) -> binsgdm.BinSGDM:
    return binsgdm.BinSGDM(groups_of(list(model.parameters()), case), **case.settings)


def train(rank: int, mesh: Any, case: Case) -> Record:
    model = _apart(rank, mesh, case)
    optimizer = new_optimizer(model, case)
    scaler = torch.amp.GradScaler("cpu", init_scale=case.scale, enabled=case.scale > 1)
    record = Record()
    cap_mb = BUCKET_ELEMENTS * 4 / 2**20
    attach_fsdp(optimizer, mesh, bucket_cap_mb=cap_mb, on_sent=record.sent.append)
    for step in range(STEPS):
        optimizer.zero_grad()
        _backward(model, case, rank, step, scaler)
        if case.clip:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        record.gradients.append([None if p.grad is None else p.grad.to_local().clone() for p in model.parameters()])
        scaler.step(optimizer)
        scaler.update()
        if case.resume and step == 0:
            saved, optimizer = copy.deepcopy(optimizer.state_dict()), new_optimizer(model, case)
            attach_fsdp(optimizer, mesh, bucket_cap_mb=cap_mb)
            optimizer.load_state_dict(saved)
    shards = [optimizer.state[p][name].to_local().shape for p in model.parameters() for name in "mb"]
    assert shards == [p.to_local().shape for p in model.parameters() for _ in "mb"], "averages must be sharded"
    record.parameters = [p.full_tensor().detach() for p in model.parameters()]
    return record


def _apart(rank: int, mesh: Any, case: Case) -> Any:
    """Return the sharded model; the second node starts from other values, which are to be put right."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if case.mixed else None
    model = shard(Model(), mesh["local"], **({"mp_policy": policy} if policy else {}))
    if rank >= LOCAL:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    return model


def _backward(model: Any, case: Case, rank: int, step: int, scaler: torch.amp.GradScaler | None = None) -> None:
    for number in range(case.micro_batches):
        model.set_requires_gradient_sync(number == case.micro_batches - 1)
        loss = loss_of(model, case, rank, step, number, torch.float32)
        (scaler.scale(loss) if scaler else loss).backward()


def train_compressed(rank: int, mesh: Any, system: str) -> tuple[list[torch.Tensor], list[Any]]:
    """Return the parameters of a model whose copies a system averages, and what was sent."""
    case, sent = COMPRESSED[system], []
    model = _apart(rank, mesh, case)
    cap_mb = BUCKET_ELEMENTS * 4 / 2**20
    settings = {"seed": SEED, "bucket_cap_mb": cap_mb, "on_sent": sent.append, **SYSTEMS[system]}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    exchange = binsgdm.compress_replicas(optimizer, mesh, system, **settings)
    for step in range(STEPS):
        optimizer.zero_grad()
        _backward(model, case, rank, step)
        optimizer.step()
        if case.resume and step == 0:
            saved, optimizer = copy.deepcopy(exchange.state_dict()), torch.optim.SGD(model.parameters(), lr=0.125)
            exchange = binsgdm.compress_replicas(optimizer, mesh, system, **settings)
            exchange.load_state_dict(saved)
    return [parameter.full_tensor().detach() for parameter in model.parameters()], sent


def work(rank: int, folder: str) -> None:
    """Train every case as one rank; every rank leaves a file."""
    torch.set_num_threads(1)
    join(rank, NODES * LOCAL, folder)
    mesh = init_device_mesh("cpu", (NODES, LOCAL), mesh_dim_names=("node", "local"))
    results: dict[str, Any] = {name: train(rank, mesh, case) for name, case in CASES.items()}
    results["overflow"] = _one_shard_overflows(rank, mesh)
    results["compressed"] = {name: train_compressed(rank, mesh, name) for name in COMPRESSED}
    results["told"] = _mistakes(mesh, rank)
    found = of_all(results)
    if rank == 0:
        torch.save(found, Path(folder) / "results.pt")
    dist.barrier()
    dist.destroy_process_group()


def _one_shard_overflows(rank: int, mesh: Any) -> tuple[bool, int]:
    """Return whether parameters moved in a step in which one element of one shard of one node is infinite."""
    model: Any = shard(nn.Sequential(nn.Linear(4, 4)), mesh["local"])
    optimizer = binsgdm.BinSGDM(model.parameters())
    attach_fsdp(optimizer, mesh)
    before = [p.to_local().clone() for p in model.parameters()]
    model(torch.ones(1, 4)).sum().backward()
    if rank == NODES * LOCAL - 1:
        model[0].weight.grad.to_local()[0, 0] = torch.inf
    optimizer.step()
    moved = any(not torch.equal(p.to_local(), old) for p, old in zip(model.parameters(), before, strict=True))
    return moved, optimizer.param_groups[0]["step"]


def _mistakes(mesh: Any, rank: int) -> dict[str, str]:
    """Return what attach_fsdp and compress_replicas say to mistakes."""
    plain, replicated, spanning, model = (nn.Linear(4, 4) for _ in range(4))
    fully_shard(replicated, mesh=mesh)
    fully_shard(spanning, mesh=init_device_mesh("cpu", (NODES * LOCAL,)))
    shard(model, mesh["local"])
    sharded = torch.optim.SGD(model.parameters())

    def attach(module: nn.Module) -> str:
        return heard(lambda: attach_fsdp(binsgdm.BinSGDM(module.parameters()), mesh))

    def compress(given: Any = mesh, optimizer: Any = sharded, **options: Any) -> str:
        return heard(lambda: binsgdm.compress_replicas(optimizer, given, "byte_grad", **options))

    told = {
        "not sharded": attach(plain),
        "replicated": attach(replicated),
        "spanning": attach(spanning),
        "one dimension": compress(mesh["local"]),
        "bucket": compress(bucket_cap_mb=0),
        "hierarchical": compress(topology="hierarchical"),
        "one rank's seed": compress(seed=rank),
        "binsgdm": compress(optimizer=binsgdm.BinSGDM(model.parameters())),
    }
    exchange = binsgdm.compress_replicas(sharded, mesh, "byte_grad")
    told["twice"] = compress()
    told["no gradients"] = heard(sharded.step)
    told["state"] = heard(lambda: exchange.load_state_dict({"step": 1}))
    model(torch.ones(1, 4)).sum().backward()
    told["closure"] = heard(lambda: sharded.step(lambda: 0.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(1))
    told["scaler"] = heard(lambda: scaler.step(sharded))
    for name in CHANGES:
        told[name] = _changed_behind(mesh, rank, name)
    return told


CHANGES = ("cleared", "loaded", "written")


def _changed_behind(mesh: Any, rank: int, name: str) -> str:
    """Return what a step says after the last rank alone has changed something between steps."""
    torch.manual_seed(0)
    model: Any = shard(nn.Sequential(nn.Linear(4, 4)), mesh["local"])
    optimizer = torch.optim.AdamW(model.parameters())
    exchange = binsgdm.compress_replicas(optimizer, mesh, "byte_grad")
    saved: Any = None
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        saved = saved or copy.deepcopy(optimizer.state_dict())
    if rank == NODES * LOCAL - 1:
        if name == "cleared":
            optimizer.state.clear()
        elif name == "loaded":
            optimizer.load_state_dict(saved)
        else:
            with torch.no_grad():
                model[0].weight.mul_(2)
    model(torch.ones(1, 4)).sum().backward()
    said = heard(optimizer.step)
    del exchange
    return said


def control(case: Case, records: list[Record]) -> list[torch.Tensor]:
    """Return the parameters after the same steps, of all ranks in this process; clipped gradients are those recorded.

    The norm of a sharded gradient is summed shard by shard, so that its last bits differ from those of one process.
    """
    model = Model()
    all_pieces = [pieces(model, rank % LOCAL) for rank in range(WORLD_SIZE)]
    optimizers = []
    for rank, mine in enumerate(all_pieces):
        optimizer = binsgdm.BinSGDM(groups_of(mine, case), kernels="reference", **case.settings)
        optimizer.join(_OneShard(rank))
        optimizers.append(optimizer)
    for step in range(STEPS):
        of_nodes = [_node_gradients(model, case, node, step) for node in range(NODES)]
        for rank, mine in enumerate(all_pieces):
            gradients = [None if g is None else _piece(g, rank % LOCAL) for g in of_nodes[rank // LOCAL]]
            for piece, gradient in zip(mine, records[rank].gradients[step] if case.clip else gradients, strict=True):
                piece.grad = gradient
        for local in range(LOCAL):
            run_in_lockstep([optimizer.step_protocol() for optimizer in optimizers[local::LOCAL]], 1)
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.cat([all_pieces[local][number] for local in range(LOCAL)]))
    return [parameter.detach() for parameter in model.parameters()]


class _OneShard(Session):
    """The ranks that hold the same shard, one a node, with the draws of a rank among all."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        super().__init__(Member(rank=rank // LOCAL, world_size=NODES), Scheme(topology="flat"), BUCKET_ELEMENTS)

    def reset(self, param_states: Any, context: RankContext, kernels: Any) -> None:
        super().reset(param_states, ShardContext(**vars(context), shard=self._rank % LOCAL, num_shards=LOCAL), kernels)


def pieces(model: Model, local: int) -> list[torch.Tensor]:
    """Return copies of the shards of one local rank."""
    given = model.parameters()
    return [_piece(one.detach(), local).clone().requires_grad_(one.requires_grad) for one in given]


def _piece(values: torch.Tensor, local: int) -> torch.Tensor:
    """Return the rows of one local rank, as torch.chunk deals them."""
    chunks = values.chunk(LOCAL, dim=0)
    return chunks[local] if local < len(chunks) else values[:0]


def _node_gradients(model: Model, case: Case, node: int, step: int) -> list[torch.Tensor | None]:
    """Return the mean of the gradients of a node's ranks, in fp32."""
    dtype = torch.bfloat16 if case.mixed else torch.float32
    of_ranks = []
    for rank in range(node * LOCAL, (node + 1) * LOCAL):
        copied = copy.deepcopy(model).to(dtype)
        for number in range(case.micro_batches):
            loss_of(copied, case, rank, step, number, dtype).backward()
        of_ranks.append([None if p.grad is None else p.grad.float() for p in copied.parameters()])
    return [None if of_rank[0] is None else sum(of_rank) / LOCAL for of_rank in zip(*of_ranks, strict=True)]


def control_of_system(system: str) -> list[torch.Tensor]:
    """Return the parameters after the same steps, of all ranks in this process."""
    case, model = COMPRESSED[system], Model()
    ends = [
        [make(system, rank=node, world_size=NODES, **SYSTEMS[system]) for node in range(NODES)] for _ in range(LOCAL)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
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
    mine = [[_piece(gradient, local) for gradient in gradients if gradient is not None] for gradients in of_nodes]
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
                ShardContext(
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
        if sum(numels[one] for one in found[-1]) >= BUCKET_ELEMENTS:
            found.append([])
        found[-1].append(number)
    return found
