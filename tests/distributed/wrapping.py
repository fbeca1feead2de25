"""What gloo ranks do with systems in models that are wrapped and stepped in every way that DDP offers."""

from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from small_model import process_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm.replicas import check_replicas
from binsgdm.parallel.ddp_hook import compress_gradients
from binsgdm.parallel.gradient_exchange import GradientExchange
from tests.helpers.launch import of_all

SEED = 5
SYSTEMS: dict[str, dict[str, Any]] = {
    "sign_sgd": {"topology": "scatter_reduce", "momentum": 0.9},
    "power_sgd": {"topology": "hierarchical", "matrix_rank": 2},
    "marsit": {"torus": True},
}


class Setting(NamedTuple):
    """How a model is wrapped, whether a part of it is used in some steps alone, and backwards of a step."""

    ddp: dict[str, Any]
    has_unused: bool = False
    backwards: int = 1


SETTINGS = {
    "static graph, bucket views": Setting({"static_graph": True, "gradient_as_bucket_view": True}),
    "unused parameters, bucket views": Setting(
        {"find_unused_parameters": True, "gradient_as_bucket_view": True}, has_unused=True
    ),
    "no_sync, bucket views": Setting({"gradient_as_bucket_view": True}, backwards=3),
}


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
    """Train in every setting; rank 0 leaves what it saw in a file."""
    with process_group(rank, folder):
        results: dict[Any, Any] = {}
        for name, setting in SETTINGS.items():
            results[name] = dense(rank, setting)
            for system in SYSTEMS:
                results[name, system] = resumed(rank, setting, system)
        if rank == 0:
            torch.save(results, Path(folder) / "results.pt")


def wrapped(setting: Setting, module: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(module, bucket_cap_mb=0.001, **setting.ddp)


def train(module: DistributedDataParallel, setting: Setting, rank: int, steps: range) -> list[list[torch.Tensor]]:
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
        found.append([torch.zeros(1) if one.grad is None else one.grad.clone() for one in module.parameters()])
        optimizer.step()
    return found


def dense(rank: int, setting: Setting) -> tuple[Any, Any]:
    """Return the gradients of DDP, and those of the system that sends them as they are."""
    plain, module = wrapped(setting, Branches()), wrapped(setting, Branches())
    compress_gradients(module, "dense")
    return train(plain, setting, rank, range(5)), train(module, setting, rank, range(5))


def resumed(rank: int, setting: Setting, system: str) -> dict[str, Any]:
    """Return whether a run that was saved after 3 steps ends as one that goes on, on every rank."""
    options = SYSTEMS[system]
    module = wrapped(setting, Branches())
    exchange = compress_gradients(module, system, seed=SEED, **options)
    train(module, setting, rank, range(3))
    state = exchange.state_dict()
    fresh = wrapped(setting, deepcopy(module.module))
    begun = compress_gradients(fresh, system, seed=SEED, **options)
    begun.load_state_dict(state)
    ends = [train(one, setting, rank, range(3, 6)) for one in (module, fresh)]
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
