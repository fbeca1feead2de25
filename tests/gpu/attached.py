"""What a training script calls on all ranks, and how many tensors differ from one process that computes for all.

It is attach with DDP, attach_fsdp and compress_replicas on a mesh of one rank a node, LocalSGD and DiLoCo.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from binsgdm.bench.ranks import Ranks
from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import make
from binsgdm.optimizers.local_steps import DiLoCo, LocalSGD
from binsgdm.optimizers.settings import Scheme
from binsgdm.parallel.ddp import attach, detach
from tests.gpu.lockstep import (
    BUCKET_ELEMENTS,
    INNER_LR,
    OUTER,
    OUTER_STEPS,
    averaged_steps,
    in_one_process,
    join_in_lockstep,
    make_binsgdm,
    outer_state,
    outer_steps,
)
from tests.gpu.samples import (
    MOST_WITH_ONE_ORDER,
    SEED,
    STEPS,
    ParametersWithGradients,
    Shapes,
    are_alike,
    gradients,
    num_different,
    num_far,
    num_wrong,
    parameters,
)

BUCKET_MB = BUCKET_ELEMENTS * 4 / 2**20
OTHERS = 100  # added to a step: gradients of the parameters that BinSGDM does not have
SHARDED: Shapes = ((64, 33), (7,), (96, 65), (1024,))
SGD_LR = 0.125  # a power of two: a fused product and sum gives the bits of two roundings
REPLICATED: dict[str, dict[str, Any]] = {"dense": {}, "byte_grad": {"topology": "scatter_reduce"}, "ef_sign_sgd": {}}
LOCAL_STEPS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp32, hidden by a step": {"overlap_steps": 1},
    "bf16": {"exchange": "bf16"},
    "int8": {"exchange": "int8"},
    "fp8": {"exchange": "fp8"},
    "one_bit, hidden by a step": {"exchange": "one_bit", "overlap_steps": 1},
}
# Of the norm, where sums have another order: of a few numbers of that format.
OTHER_ORDER = {"fp32": 1e-5, "bf16": 3e-2}


def _has_one_order(ranks: Ranks) -> bool:
    return ranks.world_size <= MOST_WITH_ONE_ORDER


def _tolerance(ranks: Ranks, exchange: str) -> float:
    """Return how far from one process an exchange may end, 0 for no bit."""
    return 0.0 if _has_one_order(ranks) else OTHER_ORDER.get(exchange, 0.0)


def num_wrong_attached(ranks: Ranks, overlap: bool) -> int:
    """Compare what BinSGDM makes of its parameters, and the averages of gradients that DDP makes of the others."""
    own, others = parameters(ranks.device), parameters(ranks.device)
    devices = [ranks.device.index] if ranks.device.type == "cuda" else None
    module = DistributedDataParallel(
        ParametersWithGradients([*own, *others]), device_ids=devices, bucket_cap_mb=BUCKET_MB
    )
    optimizer = make_binsgdm(own)
    attach(optimizer, module, overlap=overlap, bucket_cap_mb=BUCKET_MB, ranks_per_node=1)
    wrong = 0
    for step in range(1, STEPS + 1):
        module.zero_grad()
        module(
            [*gradients(ranks.rank, step, ranks.device), *gradients(ranks.rank, OTHERS + step, ranks.device)]
        ).backward()
        wrong += _num_wrong_averages(ranks, OTHERS + step, others)
        optimizer.step()
    detach(optimizer)
    control = in_one_process(make_binsgdm, partial(join_in_lockstep, Scheme()), (ranks.world_size, 1), ranks.device)
    return wrong + num_wrong(ranks, [one.detach() for one in own], control[ranks.rank])


def _num_wrong_averages(ranks: Ranks, step: int, averaged: Sequence[nn.Parameter]) -> int:
    """Return how many gradients are not the averages over all ranks, of which each is divided before the sum."""
    found = [one.grad for one in averaged if one.grad is not None]
    wanted = [torch.zeros_like(one) for one in found]
    for rank in range(ranks.world_size):
        for one, other in zip(wanted, gradients(rank, step, ranks.device), strict=True):
            one.add_(other / ranks.world_size)
    if _has_one_order(ranks):
        return num_wrong(ranks, found, wanted)
    return num_far(wanted, found, OTHER_ORDER["fp32"]) + (not are_alike(ranks, found))


def _sharded(ranks: Ranks) -> tuple[nn.Module, DeviceMesh]:
    """Return a model that FSDP2 shards over the one rank of its node, and the mesh of all nodes."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world_size, 1), mesh_dim_names=("node", "local"))
    module = ParametersWithGradients(parameters(ranks.device, shapes=SHARDED))
    fully_shard(module, mesh=mesh["local"])
    return module, mesh


def _train_sharded(ranks: Ranks, module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        module(gradients(ranks.rank, step, ranks.device, shapes=SHARDED)).backward()
        optimizer.step()
    whole: Any = list(module.parameters())
    return [one.full_tensor().detach() for one in whole]


def num_wrong_in_fsdp(ranks: Ranks) -> int:
    """Compare shards that are whole with the plain parameters of one process."""
    from binsgdm.parallel.fsdp import attach_fsdp

    module, mesh = _sharded(ranks)
    optimizer = make_binsgdm(list(module.parameters()))
    attach_fsdp(optimizer, mesh, bucket_cap_mb=BUCKET_MB)
    found = _train_sharded(ranks, module, optimizer)
    detach(optimizer)
    join = partial(join_in_lockstep, Scheme(topology="flat"))
    control = in_one_process(make_binsgdm, join, (ranks.world_size, 1), ranks.device, shapes=SHARDED)
    return num_wrong(ranks, found, control[ranks.rank])


def num_wrong_in_compressed_replicas(ranks: Ranks, system: str, options: dict[str, Any]) -> int:
    """Compare shards that are whole with plain parameters, whose gradients the system averages in one process."""
    from binsgdm.parallel.compressed_replicas import compress_replicas

    module, mesh = _sharded(ranks)
    optimizer = torch.optim.SGD(module.parameters(), lr=SGD_LR)
    exchange = compress_replicas(optimizer, mesh, system, seed=SEED, **options)
    found = _train_sharded(ranks, module, optimizer)
    del exchange  # it steps as long as it is kept
    wanted = _averaged_in_one_process(ranks, system, options)
    if system == "dense" and not _has_one_order(ranks):
        return num_far(wanted, found, OTHER_ORDER["fp32"])
    return num_wrong(ranks, found, wanted)


def _averaged_in_one_process(ranks: Ranks, name: str, options: dict[str, Any]) -> list[Tensor]:
    """Return plain parameters after steps of SGD along what the systems of all ranks make of their gradients."""
    size = ranks.world_size
    systems = [make(name, rank=rank, world_size=size, **options) for rank in range(size)]
    values = parameters(ranks.device, shapes=SHARDED)
    plain = torch.optim.SGD(values, lr=SGD_LR)
    numbers = tuple(reversed(range(len(SHARDED))))  # as backward makes them
    shapes = tuple(SHARDED[number] for number in numbers)
    for step in range(1, STEPS + 1):
        protocols = []
        for rank, system in enumerate(systems):
            given = gradients(rank, step, ranks.device, shapes=SHARDED)
            flat = torch.cat([given[number].reshape(-1) for number in numbers])
            context = RankContext(rank=rank, world_size=size, ranks_per_node=1, seed=SEED, step=step)
            protocols.append(system.mean(GradientBucket(values=flat, parameters=numbers, shapes=shapes), context))
        mean = run_in_lockstep(protocols, 1)[0]
        sizes = [values[number].numel() for number in numbers]
        for number, part in zip(numbers, torch.split(mean, sizes), strict=True):
            values[number].grad = part.view(SHARDED[number]).clone()
        plain.step()
    return [value.detach() for value in values]


def _take_local_steps(ranks: Ranks, values: Sequence[nn.Parameter], optimizer: Any) -> None:
    """Take the steps of `outer_steps` and `averaged_steps` with the others, and end the exchange."""
    for step in range(1, OUTER_STEPS + 1):
        for value, gradient in zip(values, gradients(ranks.rank, step, ranks.device), strict=True):
            value.grad = gradient
        optimizer.step()
    optimizer.close()


def num_wrong_with_local_sgd(ranks: Ranks, wire_dtype: Any) -> int:
    values = parameters(ranks.device)
    optimizer = LocalSGD(torch.optim.SGD(values, lr=INNER_LR), inner_steps=2, wire_dtype=wire_dtype)
    _take_local_steps(ranks, values, optimizer)
    control = averaged_steps(wire_dtype, ranks.world_size, ranks.device)[ranks.rank]
    found = [value.detach() for value in values]
    return _num_elsewhere(ranks, found, control, wire_dtype) + (not are_alike(ranks, found))


def num_wrong_with_diloco(ranks: Ranks, given: dict[str, Any]) -> int:
    values = parameters(ranks.device)
    settings: dict[str, Any] = {"seed": SEED, **OUTER, **given}
    optimizer = DiLoCo(torch.optim.SGD(values, lr=INNER_LR), **settings)
    _take_local_steps(ranks, values, optimizer)
    outer = outer_state(optimizer.outer)
    control = outer_steps(given, ranks.world_size, ranks.device)[ranks.rank]
    found = [value.detach() for value in values] + outer
    # Workers themselves differ where a step has hidden an exchange.
    return _num_elsewhere(ranks, found, control, given.get("exchange", "fp32")) + (not are_alike(ranks, outer))


def _num_elsewhere(ranks: Ranks, found: Sequence[Tensor], wanted: Sequence[Tensor], exchange: str) -> int:
    if tolerance := _tolerance(ranks, exchange):
        return num_far(wanted, found, tolerance)
    return num_different(wanted, found)
