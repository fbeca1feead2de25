"""All ranks of a real optimizer in one process, in lock-step: every rank's own optimizer on its own copy.

A search over settings needs many runs, and a run of four gloo ranks costs three to four times the processor time of the
same batch in one process. What runs is `binsgdm` itself, with its own messages; only the transport differs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from binsgdm import BinSGDM
from binsgdm.comm import Member, run_in_lockstep
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.sign_exchange import Average, IntraNode, Scheme, Topology

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
    topology: Topology = "hierarchical",
    intra_node_dtype: IntraNode = "fp32",
    average: Average = "updates",
    **settings: Any,
) -> Make:
    """Return what makes BinSGDM.

    Args:
        topology: as of `binsgdm.attach`.
        intra_node_dtype: as of `binsgdm.attach`.
        average: as of `binsgdm.attach`.
        settings: of the optimizer.

    Raises:
        BinsgdmError: settings that are refused there.
    """
    scheme = Scheme(topology=topology, intra_node_dtype=intra_node_dtype, average=average)

    def make(copies: list[nn.Parameter], member: Member) -> BinSGDM:
        optimizer = BinSGDM(copies, **settings)
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
