"""What gloo ranks do of which one alone is given something wrong: all are to end, and soon."""

import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import GradientExchange, compress_gradients
from tests.distributed import differing
from tests.helpers.launch import of_all, outcome, rank_of_gloo

WORLD_SIZE, WRONG = 3, 1
TIMEOUT = timedelta(seconds=120)
"""Of the collectives: a rank that waits for one that refused would take as long."""
OPTIONS: dict[str, dict[str, Any]] = {"top_k": {"ratio": 0.5}, "random_k": {"ratio": 0.5}}


def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = [nn.Embedding(10, 6), nn.Linear(6, 8), nn.Linear(8, 9)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.0003)


def backward(module: nn.Module, factor: float = 1.0) -> None:
    (module(torch.tensor([1, 2, 3])).square().mean() * factor).backward()


def work(rank: int, folder: str) -> None:
    """Do every case; rank 0 leaves what all ranks were told, and how long it took, in a file."""
    with rank_of_gloo(rank, WORLD_SIZE, folder, timeout=TIMEOUT) as results:
        results |= {name: of_all(outcome(case)) for name, case in cases(rank == WRONG).items()}
        results["differing"] = {name: of_all(case()) for name, case in differing.cases(rank == WRONG).items()}


def cases(is_wrong: bool) -> dict[str, Callable[[], object]]:
    """Return by name what all ranks do; `is_wrong` on the one that has something wrong."""

    def attach(system: str = "qsgd", module: Any = None, **options: Any) -> GradientExchange:
        return compress_gradients(module or model(), system, **options)

    def environment() -> None:
        os.environ["LOCAL_WORLD_SIZE"] = "two" if is_wrong else "3"
        try:
            attach()
        finally:
            del os.environ["LOCAL_WORLD_SIZE"]

    def threads(system: str) -> None:
        torch.set_num_threads(1 + is_wrong)
        try:
            attach(system)
        finally:
            torch.set_num_threads(1)

    return {
        "bits": lambda: attach(bits=9 if is_wrong else 4),
        "bits that differ": lambda: attach(bits=3 if is_wrong else 4),
        "threads, power_sgd": lambda: threads("power_sgd"),
        "threads, atomo": lambda: threads("atomo"),
        "threads, qsgd": lambda: threads("qsgd"),
        "system": lambda: attach("qsdg" if is_wrong else "qsgd"),
        "seed": lambda: attach(seed=-1 if is_wrong else 0),
        "bits, a function": lambda: attach(bits=(lambda: 4) if is_wrong else 4),
        "topology, a list": lambda: attach(topology=["gather"] if is_wrong else "gather"),
        "timeout, a number": lambda: attach(timeout=60 if is_wrong else TIMEOUT),
        "LOCAL_WORLD_SIZE": environment,
        "no DDP": lambda: attach(module=model().module[1] if is_wrong else model()),
        "residual of another model": lambda: loaded(is_wrong, "ef_sign_sgd", _of_another_model),
        "step of another time": lambda: loaded(is_wrong, "random_k", lambda state: state | {"step": 7}),
        "factors on one rank": lambda: loaded(is_wrong, "grad_zip", _with_factors),
        "state after backward": state_after_backward,
        "a broken compressor": lambda: broken_compressor(is_wrong),
        "1-bit Adam, sparse": lambda: one_bit_adam(is_wrong),
        "BinSGDM, beta_b": lambda: attach_binsgdm(beta_b=0.5 if is_wrong else None),
        "BinSGDM, state after attach": lambda: load_residuals(is_wrong),
        "BinSGDM, residual put in": lambda: put_a_residual(is_wrong, overlap=False),
        "BinSGDM, residual put in, overlap": lambda: put_a_residual(is_wrong, overlap=True),
        "BinSGDM, sparse": lambda: attach_with_a_sparse_gradient(is_wrong),
        "1-bit Adam, node size": lambda: attach_one_bit_adam(
            OneBitAdam([nn.Parameter(torch.zeros(3))]), ranks_per_node=2 if is_wrong else 3
        ),
    }


def loaded(is_wrong: bool, system: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Go on from a state, which one rank has changed."""
    module = model()
    exchange = compress_gradients(module, system, **OPTIONS.get(system, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exchange.load_state_dict(change(exchange.state_dict()) if is_wrong else exchange.state_dict())
    backward(module)
    backward(module)


def _of_another_model(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"system": state["system"] | {"residuals": {0: torch.zeros(61)}}}


def _with_factors(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"system": state["system"] | {"factors": {0: torch.ones(6, 4)}, "turns": {0: 1}}}


def state_after_backward() -> None:
    module = model()
    exchange = compress_gradients(module, "qsgd")
    backward(module)
    exchange.load_state_dict(exchange.state_dict())


def broken_compressor(is_wrong: bool) -> None:
    """Exchange two steps; in the second, one rank fails in the last bucket with an error that is no sentence."""
    module = model()
    exchange = compress_gradients(module, "atomo")
    backward(module)
    mean = exchange.system.mean

    def failing(bucket: Any, context: Any) -> Any:
        if is_wrong and context.bucket == 1:
            raise torch.linalg.LinAlgError("svd did not converge")
        return mean(bucket, context)

    exchange.system.mean = failing  # type: ignore[method-assign]
    backward(module)


def attach_binsgdm(**settings: Any) -> None:
    binsgdm.attach(binsgdm.BinSGDM([nn.Parameter(torch.zeros(40))], **settings), ranks_per_node=1)


def load_residuals(is_wrong: bool) -> None:
    """Go on from a state in which one rank has a residual of the merge that three ranks cannot leave."""
    value = nn.Parameter(torch.zeros(500))
    value.grad = torch.ones(500)
    first, second = (binsgdm.BinSGDM([value], rounding="shaped") for _ in range(2))
    binsgdm.attach(first, ranks_per_node=1)
    first.step()
    state = first.state_dict()
    if is_wrong:
        state["state"][0]["merge_residual"] = torch.full_like(state["state"][0]["merge_residual"], 4)
    binsgdm.attach(second, ranks_per_node=1)
    second.load_state_dict(state)
    second.step()


def put_a_residual(is_wrong: bool, *, overlap: bool) -> None:
    value = nn.Parameter(torch.zeros(40))
    optimizer = binsgdm.BinSGDM([value], rounding="shaped")
    binsgdm.attach(optimizer, ranks_per_node=1, overlap=overlap)
    if is_wrong:
        optimizer.state[value]["local_residual"] = torch.zeros(40)
    value.sum().backward()
    optimizer.step()


def one_bit_adam(is_wrong: bool) -> None:
    """Take a step of which one rank has a sparse gradient."""
    parameter = nn.Parameter(torch.zeros(4, 2))
    optimizer = OneBitAdam([parameter], dense_steps=1)
    attach_one_bit_adam(optimizer, ranks_per_node=1)
    parameter.grad = torch.ones(4, 2)
    optimizer.step()
    before = parameter.detach().clone()
    if is_wrong:
        parameter.grad = torch.ones(4, 2).to_sparse()
    try:
        optimizer.step()
    finally:
        assert torch.equal(parameter.detach(), before)


def attach_with_a_sparse_gradient(is_wrong: bool) -> None:
    parameter = nn.Parameter(torch.zeros(4, 2))
    parameter.grad = torch.ones(4, 2).to_sparse() if is_wrong else torch.ones(4, 2)
    binsgdm.attach(binsgdm.BinSGDM([parameter]), ranks_per_node=1)
