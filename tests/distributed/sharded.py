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
from binsgdm.comm import run_in_lockstep
from binsgdm.kernels import select
from binsgdm.optimizers.base import ParamState
from binsgdm.optimizers.sign_exchange import Scheme
from binsgdm.optimizers.worker import Worker
from binsgdm.parallel.fsdp import ShardContext, attach_fsdp
from tests.helpers.launch import join

NODES, LOCAL = 2, 2
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
    "accumulate": Case(micro_batches=2),
    "mixed precision": Case(mixed=True),
    "clip": Case(clip=True),
    "grad scaler": Case(scale=1024.0),
    "groups": Case(lrs=(0.01, 0.003)),
    "unused on one node": Case(extra_on=(1,)),
    "unused": Case(extra_on=()),
    "resume": Case(resume=True),
    "shaped": Case(extra_on=(1,), is_shaped=True),
    "shaped, resume": Case(resume=True, is_shaped=True),
}


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
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if case.mixed else None
    model: Any = shard(Model(), mesh["local"], **({"mp_policy": policy} if policy else {}))
    _spoil_second_node(model, rank)
    optimizer = new_optimizer(model, case)
    scaler = torch.amp.GradScaler("cpu", init_scale=case.scale, enabled=case.scale > 1)
    record = Record()
    cap_mb = BUCKET_ELEMENTS * 4 / 2**20
    attach_fsdp(optimizer, mesh, bucket_cap_mb=cap_mb, on_sent=record.sent.append)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(case.micro_batches):
            model.set_requires_gradient_sync(number == case.micro_batches - 1)
            scaler.scale(loss_of(model, case, rank, step, number, torch.float32)).backward()
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


def _spoil_second_node(model: nn.Module, rank: int) -> None:
    """Let the second node start from other values, which attach_fsdp must put right."""
    if rank >= LOCAL:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)


def work(rank: int, folder: str) -> None:
    """Train every case as one rank; every rank leaves a file."""
    torch.set_num_threads(1)
    join(rank, NODES * LOCAL, folder)
    mesh = init_device_mesh("cpu", (NODES, LOCAL), mesh_dim_names=("node", "local"))
    results: dict[str, Any] = {name: train(rank, mesh, case) for name, case in CASES.items()}
    results["overflow"] = _one_shard_overflows(rank, mesh)
    results["told"] = _mistakes(mesh)
    torch.save(results, Path(folder) / f"rank{rank}.pt")
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


def _mistakes(mesh: Any) -> dict[str, str]:
    """Return what attach_fsdp says to mistakes."""
    plain, replicated, spanning, stepped = (nn.Linear(4, 4) for _ in range(4))
    fully_shard(replicated, mesh=mesh)
    fully_shard(spanning, mesh=init_device_mesh("cpu", (NODES * LOCAL,)))
    fully_shard(stepped, mesh=mesh["local"])
    sharded = binsgdm.BinSGDM(stepped.parameters())
    return {
        "not sharded": _told(binsgdm.BinSGDM(plain.parameters()), mesh),
        "replicated": _told(binsgdm.BinSGDM(replicated.parameters()), mesh),
        "spanning": _told(binsgdm.BinSGDM(spanning.parameters()), mesh),
        "one dimension": _told(sharded, mesh["local"]),
        "bucket": _told(sharded, mesh, bucket_cap_mb=0),
    }


def _told(optimizer: binsgdm.BinSGDM, mesh: Any, **options: Any) -> str:
    try:
        attach_fsdp(optimizer, mesh, **options)
    except binsgdm.BinsgdmError as error:
        return str(error)
    return ""


def control(case: Case, records: list[Record]) -> list[torch.Tensor]:
    """Return the parameters after the same steps, of all ranks in this process; clipped gradients are those recorded.

    The norm of a sharded gradient is summed shard by shard, so that its last bits differ from those of one process.
    """
    model = Model()
    workers = [_worker(model, case, rank) for rank in range(NODES * LOCAL)]
    for step in range(STEPS):
        for node in range(NODES):
            gradients = _node_gradients(model, case, node, step)
            for local in range(LOCAL):
                rank = node * LOCAL + local
                mine = (
                    records[rank].gradients[step]
                    if case.clip
                    else [None if g is None else _piece(g, local) for g in gradients]
                )
                for param_state, gradient in zip(workers[rank][1], mine, strict=True):
                    param_state.parameter.grad = gradient
        for local in range(LOCAL):
            _exchange([workers[node * LOCAL + local] for node in range(NODES)], step)
        _assemble(model, [param_states for _, param_states in workers[:LOCAL]])
    return [parameter.detach() for parameter in model.parameters()]


def _worker(model: Model, case: Case, rank: int) -> tuple[Worker, list[ParamState]]:
    parameters = list(model.parameters())
    lrs = [group["lr"] for group in groups_of(parameters, case) for _ in group["params"]]
    param_states = []
    for parameter, piece, lr in zip(parameters, pieces(model, rank % LOCAL), lrs, strict=True):
        piece.requires_grad_(parameter.requires_grad)
        settings = {"lr": lr, "maximize": False} | case.settings
        param_states.append(
            ParamState(parameter=piece, group=settings, state={n: torch.zeros(piece.shape) for n in "mb"})
        )
    context = ShardContext(rank=rank // LOCAL, world_size=NODES, ranks_per_node=1, seed=SEED, step=0, global_rank=rank)
    kernels = select("reference")
    scheme = Scheme(topology="flat")
    return Worker(
        param_states, context=context, scheme=scheme, bucket_elements=BUCKET_ELEMENTS, kernels=kernels
    ), param_states


def pieces(model: Model, local: int) -> list[torch.Tensor]:
    """Return copies of the shards of one local rank."""
    return [_piece(parameter.detach(), local).clone() for parameter in model.parameters()]


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


def _exchange(workers: list[tuple[Worker, list[ParamState]]], step: int) -> None:
    has_gradient = [
        int(any(s.parameter.grad is not None for s in param_states)) for param_states in _by_parameter(workers)
    ]
    with torch.no_grad():
        for worker, _ in workers:
            worker.begin_step(step + 1)
        for number, bucket in enumerate(workers[0][0].buckets):
            signs = run_in_lockstep([worker.signs(bucket) for worker, _ in workers], 1)
            for (worker, _), packed in zip(workers, signs, strict=True):
                worker.apply(worker.buckets[number], packed, has_gradient)


def _by_parameter(workers: list[tuple[Worker, list[ParamState]]]) -> list[tuple[ParamState, ...]]:
    return list(zip(*(param_states for _, param_states in workers), strict=True))


def _assemble(model: Model, of_local: list[list[ParamState]]) -> None:
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.cat([param_states[number].parameter.detach() for param_states in of_local]))
