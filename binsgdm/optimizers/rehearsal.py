"""A step on a few elements, so that all that BinSGDM's steps need is compiled before the first of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from binsgdm.comm import Protocol, RankContext
from binsgdm.comm.answers import run_as_if_alike
from binsgdm.kernels import Kernels, compile_in_turn, select
from binsgdm.optimizers.base import ParamState
from binsgdm.optimizers.settings import Rounding
from binsgdm.optimizers.sign_exchange import Scheme
from binsgdm.optimizers.worker import Worker

_SETTINGS: dict[str, Any] = {"lr": 0.0, "weight_decay": 0.0, "maximize": False, "beta": 0.9, "seed": 0, "step": 0}


@dataclass(frozen=True, kw_only=True)
class _Needs:
    """What decides which kernels are compiled."""

    dtypes: tuple[torch.dtype, ...]
    rounding: Rounding
    scheme: Scheme
    ranks_per_node: int
    num_nodes: int


def compile_for(param_states: Sequence[ParamState], *, context: RankContext, scheme: Scheme, kernels: Kernels) -> None:
    """Compile what steps will need, if that has not been done in this process; see `compile_in_turn`.

    Args:
        param_states: parameters with their state.
        context: of this rank in the coming step.
        scheme: of the exchange.
        kernels: which implementation; only that of the CPU is compiled ahead.
    """
    if kernels.name != "cpu":
        return
    dtypes = {param_state.parameter.dtype: None for param_state in param_states}
    _compile_for(
        _Needs(
            dtypes=tuple(sorted(dtypes, key=str)),
            rounding=param_states[0].group.get("rounding", "random"),
            scheme=scheme,
            ranks_per_node=context.ranks_per_node,
            num_nodes=context.num_nodes,
        )
    )


@cache
def _compile_for(needs: _Needs) -> None:
    compile_in_turn(lambda: _rehearse(needs))


@torch.no_grad()
def _rehearse(needs: _Needs) -> None:
    """Take a step with one parameter of each dtype, and other ranks that send what this one does."""
    context = RankContext(
        rank=0,
        world_size=needs.num_nodes * needs.ranks_per_node,
        ranks_per_node=needs.ranks_per_node,
        seed=0,
        step=1,
    )
    group = {**_SETTINGS, "rounding": needs.rounding}
    param_states = [_param_state(dtype, group) for dtype in needs.dtypes]
    worker = Worker(
        param_states, context=context, scheme=needs.scheme, bucket_elements=len(param_states), kernels=select("cpu")
    )
    run_as_if_alike(_step(worker), context)


def _param_state(dtype: torch.dtype, group: dict[str, Any]) -> ParamState:
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=dtype, device="cpu"))
    parameter.grad = torch.zeros_like(parameter)
    return ParamState(
        parameter=parameter, group=group, state={name: torch.zeros(1, device="cpu") for name in ("m", "b")}
    )


def _step(worker: Worker) -> Protocol:
    """Exchange and apply all buckets; `Session` also asks all ranks whether the step counts."""
    signs = torch.empty(0)
    for bucket in worker.begin_step(1):
        signs = yield from worker.signs(bucket)
        worker.apply(bucket, signs, [1] * len(worker.parameters))
    return signs
