"""Many ranks in one process: their gradients in one pass, then each system's own code on every rank.

The systems are those of `binsgdm.compressors`, every rank with its own state; `binsgdm.comm.run_in_lockstep` carries
the same messages as gloo would. For the two 1-bit optimizers, `lockstep.py` does the same.

Shape letters: R ranks, B samples of a rank, N elements of all parameters.
"""

import typing
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from binsgdm.comm import Protocol, RankContext, run_in_lockstep
from binsgdm.compressors.aggregation import Aggregation
from binsgdm.compressors.base import Averager, Compressor, GradientBucket, Payload, Shapes
from binsgdm.compressors.error_feedback import ErrorFeedback, WithoutFeedback
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.compressors.topologies import Hierarchical


class Stack(typing.Protocol):
    """All ranks of a training; `param_groups` hold the lr, as those of an optimizer do."""

    @property
    def param_groups(self) -> Sequence[dict[str, Any]]:
        """Where lr is set."""
        ...

    def step(self, gradients: torch.Tensor) -> None:
        """Move the parameters by the gradients (R, N) of all ranks."""
        ...


def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return mean nats of scores (..., classes) for targets (...)."""
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def rank_gradients(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the gradients of all ranks at the same parameters, in one pass.

    Args:
        model: without state that samples share (no batch norm); in the order of its parameters.
        inputs: of all ranks.
        targets: of all ranks.

    Shape:
        inputs: (R, B, ...); targets: (R, B), for texts (R, B, characters); returned: (R, N).
    """
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss_of(values: dict[str, torch.Tensor], samples: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(model, values, (samples,)), wanted)

    # Attention falls back to one rank after the other and warns; the form that would not is slower.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, inputs, targets)
    return torch.cat([found[name].flatten(1) for name in parameters], dim=1)


class DecodedOnce:
    """An aggregation in which rank 0 computes the mean that every rank would compute alike, and the others take it.

    Every rank still sends what it sends and gets what it gets. Without this R ranks in one process decode R payloads
    each. One such object serves the systems of all ranks; `run_in_lockstep` lets rank 0 go first.

    Args:
        aggregate: the aggregation whose messages and mean these are.
    """

    def __init__(self, aggregate: Aggregation) -> None:
        self._aggregate = aggregate
        self._of: tuple[int, int] | None = None
        self._mean = torch.empty(0)

    def __call__(
        self, compressor: Compressor, payload: Payload, shapes: Shapes, context: RankContext, own: torch.Tensor | None
    ) -> Protocol:
        """Do as `binsgdm.compressors.aggregation.Aggregation`."""
        protocol = self._aggregate(compressor, payload, shapes, context, own)
        if context.rank == 0:
            self._mean = yield from protocol
            self._of = context.step, context.bucket
            return self._mean
        # The other ranks take part in every message, since a rank that is silent would block the rest. They stop
        # as soon as rank 0, which goes first, has decoded.
        answer: torch.Tensor | None = None
        while self._of != (context.step, context.bucket):
            answer = yield protocol.send(answer)  # type: ignore[arg-type]
        return self._mean


def systems_of(name: str, options: dict[str, Any], num_ranks: int, ranks_per_node: int = 1) -> list[Averager]:
    """Return a system's ends on all ranks; payloads that all ranks of a group gather are decoded once.

    Args:
        name: in `SYSTEMS`.
        options: of the system; its topology may be among them, else it is the system's own, whatever is its default.
        num_ranks: all of them.
        ranks_per_node: of them in a node.
    """
    named = {"topology": SYSTEMS[name].topologies[0], **options}
    systems = [
        make(name, rank=rank, world_size=num_ranks, ranks_per_node=ranks_per_node, **named) for rank in range(num_ranks)
    ]
    if isinstance(systems[0], Hierarchical):
        # Between nodes, the ranks with the same local rank are a group of their own.
        between = [one.between for one in systems if isinstance(one, Hierarchical)]
        for local in range(ranks_per_node):
            _decode_once(between[local::ranks_per_node])
    else:
        _decode_once(systems)
    return systems


def _decode_once(systems: Sequence[Averager]) -> None:
    """Let the ends of one group decode once what they gather, where payloads are gathered."""
    if isinstance(systems[0], WithoutFeedback | ErrorFeedback):
        aggregate = DecodedOnce(systems[0].aggregate)
        for system in systems:
            system.aggregate = aggregate  # type: ignore[attr-defined]


class AveragedGradients:
    """A system that averages gradients on all ranks, and one optimizer that goes on with their mean.

    All parameters are one bucket, as with DDP for a model below its first MiB.

    Args:
        optimizer: of the one model that stands for all replicas.
        systems: one a rank.
        ranks_per_node: of them in a node.
        seed: of the draws.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, systems: Sequence[Averager], *, ranks_per_node: int, seed: int
    ) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self._parameters: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
        self.systems, self._ranks_per_node, self._seed = systems, ranks_per_node, seed
        self._step = 0

    @torch.no_grad()
    def step(self, gradients: torch.Tensor) -> None:
        """Average, and let the optimizer step."""
        mean = self.mean(gradients)
        pieces = mean.split([parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        self.optimizer.step()

    def mean(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return the systems' estimate of the mean (N) in the next step; each call is one step."""
        self._step += 1
        shapes = tuple(tuple(parameter.shape) for parameter in self._parameters)
        protocols = [
            system.mean(
                GradientBucket(values=values, parameters=tuple(range(len(shapes))), shapes=shapes), self._context(rank)
            )
            for rank, (system, values) in enumerate(zip(self.systems, gradients, strict=True))
        ]
        return run_in_lockstep(protocols, self._ranks_per_node)[0]

    def _context(self, rank: int) -> RankContext:
        return RankContext(
            rank=rank,
            world_size=len(self.systems),
            ranks_per_node=self._ranks_per_node,
            seed=self._seed,
            step=self._step,
        )
