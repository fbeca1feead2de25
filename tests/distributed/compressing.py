"""What a gloo rank does with the communication hook of every system, and the one-process control."""

import copy
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from binsgdm.bench.ranks import Ranks
from binsgdm.comm.consistency import check_replicas
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import GradientExchange, compress_gradients
from tests.distributed.small_model import RANKS_PER_NODE, WORLD_SIZE, loss, model
from tests.gpu.replicas import num_wrong_with_system
from tests.helpers import stacked
from tests.helpers.launch import of_all, rank_of_gloo
from tests.helpers.stacked import AveragedGradients, systems_of

STEPS = 4
SEED = 11
CASES: list[tuple[str, dict[str, Any]]] = [
    ("dense", {}),
    ("marsit", {"torus": True}),
    ("qsgd", {"coding": "elias", "bits": 2}),
    ("top_k", {"ratio": 0.1}),
    ("random_k", {"ratio": 0.2}),
    ("atomo", {}),
    ("ef_sign_sgd", {"topology": "scatter_reduce"}),
    ("one_bit_sgd", {"topology": "hierarchical_scatter_reduce"}),
    ("power_sgd", {"topology": "hierarchical"}),
    ("sign_sgd", {"topology": "hierarchical"}),
    ("byte_grad", {"dtype": "fp8_e4m3", "topology": "hierarchical", "intra_node_dtype": "bf16"}),
]
ONE_BIT_ADAM = {"lr": 0.01, "dense_steps": 2, "variance_floor": 0.001, "scales_momenta": True}
STACKED: list[tuple[str, dict[str, Any]]] = [
    ("dense", {}),
    ("marsit", {"sync_period": 4, "momentum": 0.9, "residual_decay": 0.5}),
    ("top_k", {"ratio": 0.1, "momentum": 0.9, "warmup_steps": 2}),
    ("qsgd", {"topology": "scatter_reduce"}),
    ("ef_sign_sgd", {"topology": "hierarchical", "momentum": 0.9}),
    ("one_bit_adam", {}),
]
SYSTEMS: dict[str, dict[str, Any]] = {
    "sign_sgd": {"topology": "scatter_reduce", "momentum": 0.9},
    "power_sgd": {"topology": "hierarchical", "matrix_rank": 2},
    "marsit": {"torus": True},
    "one_bit_sgd": {"topology": "hierarchical_scatter_reduce"},
    "top_k": {"ratio": 0.1, "momentum": 0.9},
}


class Setting(NamedTuple):
    """How a model is wrapped, whether a part of it is used in some steps alone, and backwards of a step."""

    ddp: dict[str, Any]
    has_unused: bool = False
    backwards: int = 1


SETTINGS = {
    "": Setting({}),
    "static graph, bucket views": Setting({"static_graph": True, "gradient_as_bucket_view": True}),
    "unused parameters, bucket views": Setting(
        {"find_unused_parameters": True, "gradient_as_bucket_view": True}, has_unused=True
    ),
    "no_sync, bucket views": Setting({"gradient_as_bucket_view": True}, backwards=3),
}
RESUMED = [
    ("", "one_bit_sgd"),
    ("", "top_k"),
    ("static graph, bucket views", "marsit"),
    ("unused parameters, bucket views", "power_sgd"),
    ("unused parameters, bucket views", "marsit"),
    ("no_sync, bucket views", "sign_sgd"),
]
"""Settings and systems: of the first, DDP begins with other buckets than it had."""


class Branches(nn.Module):
    """Two branches, of which a step may use one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 20)
        self.branches = nn.ModuleList([nn.Linear(20, 30), nn.Linear(20, 30)])
        self.last = nn.Linear(30, 3)

    def forward(self, inputs: torch.Tensor, branch: int | None) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs))
        chosen = self.branches if branch is None else [self.branches[branch]]
        result: torch.Tensor = self.last(torch.tanh(sum(one(hidden) for one in chosen)))
        return result


def work(rank: int, folder: str) -> None:
    """Train with every system; rank 0 leaves what it saw in a file."""
    with rank_of_gloo(rank, WORLD_SIZE, folder, node=RANKS_PER_NODE) as results:
        sizes = {"world_size": WORLD_SIZE, "ranks_per_node": RANKS_PER_NODE, "ranks_on_machine": WORLD_SIZE}
        ranks = Ranks(rank=rank, device=torch.device("cpu"), backend="gloo", groups=None, **sizes)
        results |= {
            str((name, options)): num_wrong_with_system(ranks, None, name, ranks_per_node=RANKS_PER_NODE, **options)
            for name, options in CASES
        }
        results["stacked"] = {str(case): train_in_one_bucket(rank, *case) for case in STACKED}
        results["copied"] = copied(rank)
        results["wrapped"] = {name: dense(rank, setting) for name, setting in SETTINGS.items()}
        results["resumed"] = {(name, system): resumed(rank, SETTINGS[name], system) for name, system in RESUMED}


def train_in_one_bucket(rank: int, name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the parameters after training on this rank; one bucket, in the order of the parameters."""
    module = DistributedDataParallel(model(), find_unused_parameters=True)  # whose bucket stays as it is
    optimizer: torch.optim.Optimizer
    if name == "one_bit_adam":
        optimizer = one_bit = OneBitAdam(module.parameters(), **ONE_BIT_ADAM)
        attach_one_bit_adam(one_bit, module)
    else:
        compress_gradients(module, name, seed=SEED, ranks_per_node=RANKS_PER_NODE, **options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(module, rank, step).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


def train_stacked(name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the same of stacked gradients in one process, on one core as they: sums on several have another order."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    module = model()
    parameters = list(module.parameters())
    stack: Any
    if name == "one_bit_adam":
        make_one = stacked.one_bit_adam(**ONE_BIT_ADAM)
        stack = stacked.LockStep(parameters, make_one, num_ranks=WORLD_SIZE, ranks_per_node=RANKS_PER_NODE)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        systems = systems_of(name, options, WORLD_SIZE, RANKS_PER_NODE)
        stack = AveragedGradients(optimizer, systems, ranks_per_node=RANKS_PER_NODE, seed=SEED)
    for step in range(STEPS):
        of_ranks = []
        for rank in range(WORLD_SIZE):
            module.zero_grad()
            loss(module, rank, step).backward()
            of_ranks.append(torch.cat([gradient.flatten() for gradient in _gradients(module)]))
        stack.step(torch.stack(of_ranks))
    torch.set_num_threads(cores)
    return [parameter.detach() for parameter in parameters]


def _gradients(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters()]  # type: ignore[union-attr]


def copied(rank: int) -> dict[str, Any]:
    """Return what a copy of a model with a system, and a moving average of it, do: they are DDP models without one."""
    module, plain = DistributedDataParallel(model()), DistributedDataParallel(model())
    compress_gradients(module, "sign_sgd", seed=SEED)
    loss(module, rank, 0).backward()
    average = AveragedModel(module)
    average.update_parameters(module)
    other = copy.deepcopy(module)
    for one in (other, plain):
        one.zero_grad()
        loss(one, rank, 0).backward()
    found = _gradients(other)
    compress_gradients(other, "sign_sgd", seed=SEED)  # it may have one of its own
    return {"copy": found, "plain": _gradients(plain), "averaged": int(average.n_averaged)}


def wrapped(setting: Setting, module: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=0.001, **setting.ddp)


def train_wrapped(
    module: DistributedDataParallel, setting: Setting, rank: int, steps: range
) -> list[list[torch.Tensor]]:
    """Return the gradients of every step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    for step in steps:
        optimizer.zero_grad()
        for number in range(setting.backwards):
            with module.no_sync() if number < setting.backwards - 1 else nullcontext():
                generator = torch.Generator().manual_seed(1000 * rank + 10 * step + number)
                # In one step of three ranks use different branches, in the others the same.
                branch = ((step + (rank if step % 3 == 2 else 0)) % 2) if setting.has_unused else None
                module(torch.randn(5, 6, generator=generator), branch).square().mean().backward()
        found.append(
            [torch.zeros(1) if parameter.grad is None else parameter.grad.clone() for parameter in module.parameters()]
        )
        optimizer.step()
    return found


def dense(rank: int, setting: Setting) -> tuple[Any, Any]:
    """Return the gradients of DDP, and those of the system that sends them as they are."""
    plain, module = wrapped(setting, Branches()), wrapped(setting, Branches())
    compress_gradients(module, "dense")
    return train_wrapped(plain, setting, rank, range(5)), train_wrapped(module, setting, rank, range(5))


def resumed(rank: int, setting: Setting, system: str) -> dict[str, Any]:
    """Return whether a run that was saved after 3 steps ends as one that goes on, on every rank."""
    options = SYSTEMS[system]
    module = wrapped(setting, Branches())
    exchange = compress_gradients(module, system, seed=SEED, **options)
    train_wrapped(module, setting, rank, range(3))
    state = exchange.state_dict()
    fresh = wrapped(setting, copy.deepcopy(module.module))
    begun = compress_gradients(fresh, system, seed=SEED, **options)
    begun.load_state_dict(state)
    ends = [train_wrapped(one, setting, rank, range(3, 6)) for one in (module, fresh)]
    check_replicas(module)
    same = _are_equal(ends) and _are_equal([_all_of(module, exchange), _all_of(fresh, begun)])
    return {"same": of_all(same), "step": begun.step, "layout": begun.state_dict()["layout"], "was": state["layout"]}


def _all_of(module: nn.Module, exchange: GradientExchange) -> list[torch.Tensor]:
    return [*module.parameters(), *_tensors(exchange.state_dict())]


def _tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    return [found for one in state.values() for found in _tensors(one)] if isinstance(state, dict) else []


def _are_equal(pair: list[Any]) -> bool:
    one, other = pair
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(_are_equal([first, second]) for first, second in zip(one, other, strict=True))
