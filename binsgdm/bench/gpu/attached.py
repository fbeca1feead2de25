"""Check what a training script calls on all ranks, against one process that computes for all of them.

It is attach with DDP, attach_fsdp and compress_replicas on a mesh of one rank a node, LocalSGD and DiLoCo.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from binsgdm.bench.gpu.lockstep import (
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
from binsgdm.bench.gpu.samples import (
    MOST_WITH_ONE_ORDER,
    SEED,
    STEPS,
    ParametersWithGradients,
    RankComparison,
    Shapes,
    are_alike,
    gradients,
    num_far,
    num_wrong,
    parameters,
)
from binsgdm.bench.gpu.trainings import num_different, told_in_graph
from binsgdm.bench.ranks import Ranks
from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import make
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.diloco import DiLoCo
from binsgdm.optimizers.local_sgd import LocalSGD
from binsgdm.optimizers.sign_exchange import Scheme
from binsgdm.parallel.ddp import attach, detach

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


def missing() -> str:
    """Say what cannot be compared with this torch, or return an empty string."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        return f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard: FSDP2 is left out"
    return ""


def cases(ranks: Ranks) -> Iterator[RankComparison]:
    """Yield every comparison; every rank makes each of them."""
    where = f"{ranks.world_size} ranks over {ranks.backend}"
    for overlap in (False, True):
        name = f"{where}: attach with DDP, and parameters of others, {'overlapped' if overlap else 'in step()'}"
        yield RankComparison(name=name, num_wrong=partial(_attached, ranks, overlap))
    if not missing():
        yield RankComparison(name=f"{where}: attach_fsdp, one rank a node", num_wrong=partial(_attached_fsdp, ranks))
        for system, options in REPLICATED.items():
            if _has_one_order(ranks) or system != "dense":
                compare = partial(_compressed_replicas, ranks, system, options)
                yield RankComparison(name=f"{where}: compress_replicas, {system}, one rank a node", num_wrong=compare)
    for dtype in ("fp32", "bf16"):
        yield _near(ranks, dtype, f"{where}: LocalSGD {dtype}", partial(_local_sgd, ranks, dtype))
    for name, given in LOCAL_STEPS.items():
        yield _near(ranks, given.get("exchange", "fp32"), f"{where}: DiLoCo {name}", partial(_diloco, ranks, given))
    if ranks.device.type == "cuda":
        for name, make_step in _steps_to_capture(ranks).items():
            yield RankComparison(
                name=f"refused in a CUDA graph: {name}",
                num_wrong=partial(num_not_refused, ranks, make_step),
                outcome="refused in a sentence",
            )


def _has_one_order(ranks: Ranks) -> bool:
    return ranks.world_size <= MOST_WITH_ONE_ORDER


def _tolerance(ranks: Ranks, exchange: str) -> float:
    """Return how far from one process an exchange may end, 0 for no bit."""
    return 0.0 if _has_one_order(ranks) else OTHER_ORDER.get(exchange, 0.0)


def _near(ranks: Ranks, exchange: str, name: str, compare: Callable[[], int]) -> RankComparison:
    if not (tolerance := _tolerance(ranks, exchange)):
        return RankComparison(name=name, num_wrong=compare)
    return RankComparison(
        name=f"{name}, near one process", num_wrong=compare, outcome=f"within {tolerance:g} of the norm"
    )


def _attached(ranks: Ranks, overlap: bool) -> int:
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


def _attached_fsdp(ranks: Ranks) -> int:
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


def _compressed_replicas(ranks: Ranks, system: str, options: dict[str, Any]) -> int:
    """Compare shards that are whole with plain parameters, whose gradients the system averages in one process."""
    from binsgdm.parallel.compressed_replicas import compress_replicas

    module, mesh = _sharded(ranks)
    optimizer = torch.optim.SGD(module.parameters(), lr=SGD_LR)
    exchange = compress_replicas(optimizer, mesh, system, seed=SEED, **options)
    found = _train_sharded(ranks, module, optimizer)
    del exchange  # it steps as long as it is kept
    return num_wrong(ranks, found, _averaged_in_one_process(ranks, system, options))


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


def _local_sgd(ranks: Ranks, wire_dtype: Any) -> int:
    values = parameters(ranks.device)
    optimizer = LocalSGD(torch.optim.SGD(values, lr=INNER_LR), inner_steps=2, wire_dtype=wire_dtype)
    _take_local_steps(ranks, values, optimizer)
    control = averaged_steps(wire_dtype, ranks.world_size, ranks.device)[ranks.rank]
    found = [value.detach() for value in values]
    return _num_elsewhere(ranks, found, control, wire_dtype) + (not are_alike(ranks, found))


def _diloco(ranks: Ranks, given: dict[str, Any]) -> int:
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


class _ToCapture(NamedTuple):
    """A step that is to be refused in a CUDA graph, the tensors that it must not move, and what ends its exchange."""

    step: Callable[[], object]
    tensors: list[Tensor]
    end: Callable[[], object]


def _steps_to_capture(ranks: Ranks) -> dict[str, Callable[[], _ToCapture]]:
    """Return by name what makes each step."""
    found: dict[str, Callable[[], _ToCapture]] = {
        "LocalSGD": partial(_local_step, ranks, partial(LocalSGD, inner_steps=1)),
        "DiLoCo": partial(_local_step, ranks, partial(DiLoCo, inner_steps=1)),
    }
    return found if missing() else {**found, "compress_replicas": partial(_step_of_replicas, ranks)}


def _local_step(ranks: Ranks, wrap: Callable[[torch.optim.Optimizer], Any]) -> _ToCapture:
    values = parameters(ranks.device)
    optimizer = wrap(torch.optim.SGD(values, lr=INNER_LR))
    for value, gradient in zip(values, gradients(ranks.rank, 1, ranks.device), strict=True):
        value.grad = gradient
    return _ToCapture(optimizer.step, [value.detach() for value in values], optimizer.close)


def _step_of_replicas(ranks: Ranks) -> _ToCapture:
    from binsgdm.parallel.compressed_replicas import compress_replicas

    module, mesh = _sharded(ranks)
    optimizer = torch.optim.SGD(module.parameters(), lr=SGD_LR)
    exchange = compress_replicas(optimizer, mesh, "byte_grad")
    module(gradients(ranks.rank, 1, ranks.device, shapes=SHARDED)).backward()
    whole: Any = list(module.parameters())
    return _ToCapture(optimizer.step, [one.to_local().detach() for one in whole], exchange.state_dict)


def num_not_refused(ranks: Ranks, make_step: Callable[[], _ToCapture]) -> int:
    """Return how many tensors have moved in a step inside a CUDA graph.

    Raises:
        AssertionError: no sentence has refused it.
    """
    one = make_step()
    before = [tensor.clone() for tensor in one.tensors]
    told = told_in_graph(one.step, ranks.device)
    one.end()
    if not told.startswith(BinsgdmError.__name__):
        raise AssertionError(told)
    return num_different(before, one.tensors)
