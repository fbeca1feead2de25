"""What a gloo rank does with the communication hook of every system, and the one-process control."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from small_model import RANKS_PER_NODE, WORLD_SIZE, loss, model, process_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.comm.replicas import check_replicas
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.errors import BinsgdmError
from binsgdm.parallel.ddp_hook import compress_gradients
from binsgdm.parallel.gradient_exchange import GradientExchange
from tests.helpers.launch import of_all

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
    ("qsgd", {"topology": "scatter_reduce"}),
    ("ef_sign_sgd", {"topology": "scatter_reduce"}),
    ("one_bit_sgd", {"topology": "hierarchical_scatter_reduce"}),
    ("ef_sign_sgd", {"topology": "hierarchical", "intra_node_dtype": "bf16"}),
    ("power_sgd", {"topology": "hierarchical"}),
    ("marsit", {"topology": "hierarchical"}),
    ("sign_sgd", {"topology": "hierarchical"}),
    ("byte_grad", {"dtype": "fp8_e4m3", "topology": "hierarchical", "intra_node_dtype": "bf16"}),
]


RESUMED = [
    ("marsit", {"torus": True}),
    *(
        (name, {"topology": topology, **SYSTEMS[name].usual_options})
        for name in SYSTEMS
        for topology in SYSTEMS[name].topologies
    ),
]


def work(rank: int, folder: str) -> None:
    """Train with every system; rank 0 leaves what it saw in a file."""
    with process_group(rank, folder):
        results: dict[str, Any] = {str(case): train(rank, *case) for case in CASES}
        results["refused"] = refused(rank)
        results["threads"] = threads(rank)
        results["detached"] = detached(rank)
        results["copied"] = copied(rank)
        results["resumed"] = {str(case): resumed(rank, *case) for case in RESUMED}
        results["joined"] = joined(rank)  # the last, as it closes connections
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
    exchange.detach()  # hundreds of groups would be hundreds of threads
    gathered = of_all(local)
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
    systems = [
        make(name, rank=rank, world_size=WORLD_SIZE, ranks_per_node=RANKS_PER_NODE, **options)
        for rank in range(WORLD_SIZE)
    ]
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


def threads(rank: int) -> dict[str, str]:
    """Return what ranks with other numbers of threads get to hear."""
    heard = {}
    for name in ("power_sgd", "atomo", "qsgd"):
        torch.set_num_threads(1 + rank % 2)
        try:
            compress_gradients(DistributedDataParallel(model()), name)
            heard[name] = ""
        except BinsgdmError as error:
            heard[name] = str(error)
        torch.set_num_threads(1)
    return heard


def detached(rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the gradients of a model whose exchange has ended, and those of DDP."""
    module, plain = DistributedDataParallel(model()), DistributedDataParallel(model())
    exchange = compress_gradients(module, "sign_sgd", seed=SEED)
    loss(module, rank, 0).backward()
    exchange.detach()
    for one in (module, plain):
        one.zero_grad()
        loss(one, rank, 1).backward()
    return _gradients(module), _gradients(plain)


def copied(rank: int) -> dict[str, Any]:
    """Return what a copy of a model with a system, and a moving average of it, do: they are DDP models without one."""
    module, plain = DistributedDataParallel(model()), DistributedDataParallel(model())
    compress_gradients(module, "sign_sgd", seed=SEED)
    loss(module, rank, 0).backward()
    average = AveragedModel(module)
    average.update_parameters(module)
    copy = deepcopy(module)
    for one in (copy, plain):
        one.zero_grad()
        loss(one, rank, 0).backward()
    found = _gradients(copy)
    compress_gradients(copy, "sign_sgd", seed=SEED)  # it may have one of its own
    return {"copy": found, "plain": _gradients(plain), "averaged": int(average.n_averaged)}


def joined(rank: int) -> list[str]:
    """Return what all ranks hear of where one has fewer batches, inside DDP.join()."""
    module = DistributedDataParallel(model())
    compress_gradients(module, "sign_sgd", seed=SEED)
    heard = "nothing"
    try:
        with module.join():
            for step in range(1 if rank == 0 else 2):
                loss(module, rank, step).backward()
    except (BinsgdmError, RuntimeError) as error:
        heard = str(error)
    return of_all(heard)


def resumed(rank: int, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return what two more steps make of a run that goes on, and of one that begins with its state and parameters."""
    module = DistributedDataParallel(model(), bucket_cap_mb=0.002)
    exchange = compress_gradients(module, name, seed=SEED, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def steps(module: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            optimizer.zero_grad()
            loss(module, rank, step).backward()
            optimizer.step()

    steps(module, optimizer, 0, 3)
    fresh = DistributedDataParallel(deepcopy(module.module), bucket_cap_mb=0.002)
    state = exchange.state_dict()
    begun = compress_gradients(fresh, name, seed=SEED, **options)
    begun.load_state_dict(state)
    steps(module, optimizer, 3, 5)
    steps(fresh, torch.optim.SGD(fresh.parameters(), lr=0.1), 3, 5)
    ends = [
        [*_gradients(one), *one.parameters(), *_tensors(of.state_dict())]
        for one, of in ((module, exchange), (fresh, begun))
    ]
    same = all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    buckets = [len(one["layout"]) for one in (state, begun.state_dict())]
    for one in (exchange, begun):
        one.detach()
    return {"same": of_all(same), "buckets": buckets}


def _tensors(state: Any) -> list[torch.Tensor]:
    """Return all tensors of a state, in order."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [found for one in state.values() for found in _tensors(one)] if isinstance(state, dict) else []
