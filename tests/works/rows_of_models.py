"""Rows about the model: what DDP can be told, compilation, shared, frozen and unusual parameters."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import binsgdm
from tests.works.table import COLUMNS, Way, refused, row, works
from tests.works.training import (
    CAP_MB,
    STEPS,
    Training,
    batch,
    check_equal,
    check_moved,
    join,
    model,
    optimizer_of,
    plain,
)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 3))


@row("`torch.compile` of DDP model or module")
def compiled(way: Way) -> None:
    # The compiler cuts its graphs where buckets end, and takes none below 1 MiB.
    wanted, around, within = (Training(way, wide(), bucket_cap_mb=1) for _ in range(3))
    around.forward = torch.compile(around.ddp, backend="eager")
    within.module.compile(backend="eager")
    for training in (wanted, around, within):
        training.run(range(2))
    for training in (around, within):
        check_equal(training.parameters(), wanted.parameters())
    ddp = nn.parallel.DistributedDataParallel(model())
    join(way, optimizer_of(way, ddp.parameters()), torch.compile(ddp, backend="eager"))  # it knows the model in it


class Checkpointed(nn.Sequential):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.Sequential(*self[2:])(checkpoint(nn.Sequential(*self[:2]), inputs, use_reentrant=False))


@row("Activation checkpointing", **dict.fromkeys(COLUMNS, works("with use_reentrant=False")))
def activation_checkpointing(way: Way) -> None:
    check_equal(Training(way, Checkpointed(*model())).run().parameters(), plain(way))


@row("`DDP(static_graph=True)`")
def static_graph(way: Way) -> None:
    training = Training(way, static_graph=True).run()
    check_moved(training.module)
    if way.column != "hook":  # whose systems follow DDP's buckets, which this cuts in another way
        check_equal(training.parameters(), plain(way))


@row("`DDP(gradient_as_bucket_view=True)`")
def gradient_as_bucket_view(way: Way) -> None:
    check_equal(Training(way, gradient_as_bucket_view=True).run().parameters(), plain(way))


class SometimesUnused(nn.Module):
    """Its second branch is used by one rank in one step and by no rank in the others."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = model(), model(), model()
        self.step = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.step += 1
        is_used = dist.get_rank() == 1 and self.step == 1
        return self.always(inputs) + (self.sometimes(inputs) if is_used else 0)


@row("`DDP(find_unused_parameters=True)`")
def find_unused_parameters(way: Way) -> None:
    module = SometimesUnused()
    training = Training(way, module, find_unused_parameters=True).run()
    training.parameters()
    moved = [
        not torch.equal(next(part.parameters()), next(model().parameters()))
        for part in (module.always, module.sometimes, module.never)
    ]
    assert moved == [True, True, False]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(6, 20, bias=False), nn.Linear(20, 6)
        self.tied = nn.Linear(6, 20, bias=False)
        self.tied.weight = self.encoder.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.tied(self.decoder(self.encoder(inputs).tanh()))


@row("Tied parameters")
def tied_parameters(way: Way) -> None:
    training = Training(way, Tied()).run()
    assert len(training.parameters()) == 3
    assert not torch.equal(training.module.tied.weight, Tied().encoder.weight)
    assert training.module.tied.weight is training.module.encoder.weight


@row("Frozen parameters")
def frozen_parameters(way: Way) -> None:
    module = model()
    module[0].requires_grad_(False)
    found = Training(way, module).run().parameters()
    moved = [not torch.equal(now, before) for now, before in zip(found, model().parameters(), strict=True)]
    assert moved == [False, False, True, True, True, True]


@row(
    "bf16 parameters",
    **dict.fromkeys(("binsgdm", "overlap", "adam"), works("state in fp32; a move below half the last digit is lost")),
)
def bf16_parameters(way: Way) -> None:
    module = model().to(torch.bfloat16)
    training = Training(way, module)
    training.forward = lambda inputs: training.ddp(inputs.to(torch.bfloat16)).float()
    found = training.run().parameters()
    before = model().to(torch.bfloat16).parameters()
    assert not any(torch.equal(now, old) for now, old in zip(found, before, strict=True))


@row(
    "Complex parameters",
    binsgdm=refused("a parameter of torch.complex64: must be float32, bfloat16 or float16"),
    overlap=refused("a parameter of torch.complex64: must be float32, bfloat16 or float16"),
    adam=refused("a parameter of torch.complex64: must be float32, bfloat16 or float16"),
    hook=refused("complex: must be real; leave it out of the model"),
)
def complex_parameters(way: Way) -> None:
    Training(way, nn.Linear(6, 3).to(torch.complex64))


@row(
    "FSDP2",
    binsgdm=works("with `binsgdm.attach_fsdp`"),
    overlap=refused("must be whole on every rank, as in DDP; call binsgdm.attach_fsdp"),
    adam=refused("sharded parameters (DTensor)"),
    hook=refused("must be a DistributedDataParallel model"),
)
def fsdp2(way: Way) -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("node", "local"))
    module: Any = model()
    fully_shard(module, mesh=mesh["local"])
    optimizer = optimizer_of(way, module.parameters())
    if way.column == "binsgdm":
        binsgdm.attach_fsdp(optimizer, mesh, bucket_cap_mb=CAP_MB)
    else:
        join(way, optimizer, module)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
    check_equal([parameter.full_tensor() for parameter in module.parameters()], plain(way))


@row(
    "FSDP1",
    **dict.fromkeys(("binsgdm", "overlap", "adam"), refused("FullyShardedDataParallel (FSDP1) is not supported")),
    hook=refused("must be a DistributedDataParallel model"),
)
def fsdp1(way: Way) -> None:
    module = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    join(way, optimizer_of(way, module.parameters()), module)


@row("EMA, SWA: `AveragedModel(ddp)`, `deepcopy(ddp)`")
def averaged_models(way: Way) -> None:
    training = Training(way)
    averaged = AveragedModel(training.ddp, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in range(STEPS):
        training.step(step)
        averaged.update_parameters(training.ddp)
    copied = copy.deepcopy(training.ddp)
    check_equal(training.parameters(), plain(way))
    check_equal([parameter.detach() for parameter in copied.module.parameters()], plain(way))
    first = next(averaged.module.module.parameters())
    assert not torch.equal(first, plain(way)[0])
    binsgdm.check_replicas(averaged)


@row(
    "Another communication hook of the model",
    **dict.fromkeys(COLUMNS, refused("must have none, as DDP takes only one")),
)
def another_communication_hook(way: Way) -> None:
    ddp = nn.parallel.DistributedDataParallel(model())
    ddp.register_comm_hook(None, fp16_compress_hook)
    join(way, optimizer_of(way, ddp.parameters()), ddp)


@row(
    "attach and `compress_gradients` on one model",
    **dict.fromkeys(COLUMNS, refused("must have one of both, as both take the place of DDP's averaging")),
)
def joined_twice(way: Way) -> None:
    training = Training(way)
    other = Way("binsgdm") if way.column == "hook" else Way("hook", "qsgd")
    join(other, optimizer_of(other, training.ddp.parameters()), training.ddp)
