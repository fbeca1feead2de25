"""All ranks of a real optimizer in one process, in lock-step: every rank's own optimizer on its own copy.

A search over settings needs many runs, and a run of four gloo ranks costs three to four times the processor time of the
same batch in one process. What runs is `binsgdm` itself, with its own messages; only the transport differs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from binsgdm import BinSGDM, functional
from binsgdm.exchange import Member, Protocol, run_in_lockstep
from binsgdm.kernels import reference
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.scheme import Average, IntraNode, Scheme, Topology
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import gain_of, is_shaped, momenta_of
from binsgdm.systems.aggregation import all_reduce_mean

Make = Callable[[list[nn.Parameter], Member], OneBitOptimizer]
"""Returns the optimizer of one rank for its copy of the parameters, joined to the others as this member."""


class LockStep:
    """One optimizer a rank, each with its own copy of the parameters; all step together.

    Args:
        parameters: of the one model that stands for all replicas; they follow those of rank 0.
        make: the optimizer of each rank.
        num_ranks: how many ranks.
        ranks_per_node: of them in a node.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Make, *, num_ranks: int, ranks_per_node: int = 1
    ) -> None:
        self._parameters = list(parameters)
        self._ranks_per_node = ranks_per_node
        self.copies = [[nn.Parameter(p.detach().clone()) for p in self._parameters] for _ in range(num_ranks)]
        self.optimizers = [
            make(copies, Member(rank=rank, world_size=num_ranks, ranks_per_node=self._ranks_per_node))
            for rank, copies in enumerate(self.copies)
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of every rank."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @torch.no_grad()
    def step(self, gradients: torch.Tensor) -> None:
        """Let every rank step with its own gradients (ranks, elements of all parameters)."""
        for copies, values in zip(self.copies, gradients, strict=True):
            for copy, piece in zip(copies, values.split([copy.numel() for copy in copies]), strict=True):
                copy.grad = piece.view_as(copy)
        run_in_lockstep([optimizer.step_protocol() for optimizer in self.optimizers], self._ranks_per_node)
        for parameter, copy in zip(self._parameters, self.copies[0], strict=True):
            parameter.copy_(copy)


def binsgdm(
    *,
    draw: bool = True,
    topology: Topology = "hierarchical",
    intra_node_dtype: IntraNode = "fp32",
    average: Average = "updates",
    **settings: Any,
) -> Make:
    """Return what makes BinSGDM.

    Args:
        draw: round to signs; else it moves by lr u in place of lr Q(u).
        topology: as of `binsgdm.attach`.
        intra_node_dtype: as of `binsgdm.attach`.
        average: as of `binsgdm.attach`.
        settings: of the optimizer.

    Raises:
        BinsgdmError: settings that are refused there.
        ValueError: settings of the rounding, where there is none.
    """
    scheme = Scheme(topology=topology, intra_node_dtype=intra_node_dtype, average=average)
    if not draw and (scheme != Scheme() or is_shaped(settings)):
        raise ValueError("binsgdm: draw=False: has no rounding and averages updates; drop draw or the other settings")

    def make(copies: list[nn.Parameter], member: Member) -> BinSGDM:
        optimizer = (BinSGDM if draw else WithoutDraws)(copies, **settings)
        optimizer.join(Session(member, scheme))
        return optimizer

    return make


def one_bit_adam(**settings: Any) -> Make:
    """Return what makes 1-bit Adam."""

    def make(copies: list[nn.Parameter], member: Member) -> OneBitAdam:
        optimizer = OneBitAdam(copies, **settings)
        optimizer.join(member)
        return optimizer

    return make


class WithoutDraws(BinSGDM):
    """BinSGDM that moves by lr u, clipped on each rank and averaged over all in fp32: no bit can carry that.

    The difference to BinSGDM is what the draws cost.
    """

    @torch.no_grad()
    def step_protocol(self) -> Protocol:
        """Take one step as a protocol."""
        param_states, updates = self.param_states(), []
        for param_state in param_states:
            gradient = param_state.parameter.grad
            given = torch.zeros_like(param_state.parameter) if gradient is None else gradient
            state, gain, u = param_state.state, gain_of(param_state.group, self.coming_step), torch.empty_like(given)
            reference.update_(given, state["m"], state["b"], **momenta_of(param_state.group), out_u=u)
            updates.append(functional.clip(u, gain=gain).flatten())
        mean = yield from all_reduce_mean(torch.cat(updates), self.rank_context())
        for param_state, u in zip(param_states, mean.split([update.numel() for update in updates]), strict=True):
            x, lr, decay = param_state.parameter, param_state.group["lr"], param_state.group["weight_decay"]
            x.copy_(functional.apply_signs(x, u.view_as(x), lr=lr, weight_decay=decay))
        self._set_all("step", self.coming_step)
        return torch.tensor(True)
