"""Ranks of 1-bit Adam in one process, which step in lockstep."""

from collections.abc import Sequence
from typing import Any

import torch

from binsgdm.comm import Member, run_in_lockstep
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.one_bit_adam import OneBitAdam

SHAPES = [(5, 3), (), (0,), (33, 9), (7,)]
DENSE = 3


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def gradient(rank: int, step: int, number: int) -> torch.Tensor:
    """Return the gradient of a parameter."""
    generator = torch.Generator().manual_seed(1000 * rank + 10 * step + number)
    return torch.randn(SHAPES[number], generator=generator) + 0.5


def team(world_size: int = 4, dtype: torch.dtype = torch.float32, **options: Any) -> list[OneBitAdam]:
    """Return the optimizers of all ranks, two to a node."""
    ranks = [OneBitAdam(parameters(dtype), **({"dense_steps": DENSE} | options)) for _ in range(world_size)]
    for rank, optimizer in enumerate(ranks):
        optimizer.join(Member(rank=rank, world_size=world_size, ranks_per_node=2 if world_size % 2 == 0 else 1))
    return ranks


def params_of(optimizer: OneBitAdam) -> list[torch.nn.Parameter]:
    return [param_state.parameter for param_state in optimizer.param_states()]


def set_gradients(optimizer: OneBitAdam, rank: int, step: int) -> None:
    for number, parameter in enumerate(params_of(optimizer)):
        parameter.grad = gradient(rank, step, number).to(parameter.dtype)


def together(ranks: Sequence[OneBitAdam]) -> list[bool | str]:
    """Take a step with the gradients there are; return of each rank whether it counted, or what it raised."""

    def listening(optimizer: OneBitAdam) -> Any:
        try:
            return bool((yield from optimizer.step_protocol()))
        except BinsgdmError as error:
            return str(error)

    with torch.no_grad():
        return run_in_lockstep([listening(one) for one in ranks], min(len(ranks), 2))


def train(ranks: Sequence[OneBitAdam], first: int, last: int) -> None:
    """Take steps by their numbers."""
    for step in range(first, last + 1):
        for rank, optimizer in enumerate(ranks):
            set_gradients(optimizer, rank, step)
        assert together(ranks) == [True] * len(ranks)


def tensors(optimizer: OneBitAdam) -> list[torch.Tensor]:
    """Return parameters and all that is kept of them, in order."""
    return [
        torch.as_tensor(value).detach()
        for param_state in optimizer.param_states()
        for value in (param_state.parameter, *(param_state.state[name] for name in sorted(param_state.state)))
    ]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
