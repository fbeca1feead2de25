"""Many ranks in one process, each with the real code of binsgdm and its own state, in lock-step.

A search over settings needs many runs, and a run of four gloo ranks costs three to four times the processor time of the
same batch in one process. Messages are those that gloo would carry; `binsgdm.comm.run_in_lockstep` carries them here.

Shape letters: R ranks, B samples of a rank, N elements of all parameters.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from binsgdm import BinSGDM
from binsgdm.comm import Member, Protocol, RankContext, run_in_lockstep
from binsgdm.compressors.base import Averager, GradientBucket, Payload, Shapes
from binsgdm.compressors.compressor import Aggregation, CompressorAverager, CompressorSystem
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.compressors.topologies import Hierarchical
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.outer_steps import OuterSettings, OuterSteps, averaged
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme

Make = Callable[[list[nn.Parameter], Member], OneBitOptimizer]
"""Returns the optimizer of one rank for its copy of the parameters, joined to the others as this member."""


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return mean nats of scores (..., classes) for targets (...)."""
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def rank_gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the gradients (R, N) of all ranks at the same parameters, in one pass, in the order of the parameters.

    The model has no state that samples share, such as batch norm.

    Shape:
        inputs: (R, B, ...); targets: (R, B), for texts (R, B, characters).
    """
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss_of(values: dict[str, Tensor], samples: Tensor, wanted: Tensor) -> Tensor:
        return loss(functional_call(model, values, (samples,)), wanted)

    # Attention falls back to one rank after the other and warns; the form that would not is slower.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, inputs, targets)
    return torch.cat([gradients[name].flatten(1) for name in parameters], dim=1)


class LockStep:
    """One optimizer a rank, each with its own copy of the parameters; the given parameters follow those of rank 0."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Make, *, num_ranks: int, ranks_per_node: int = 1
    ) -> None:
        self._parameters = list(parameters)
        self._ranks_per_node = ranks_per_node
        self.copies = [[nn.Parameter(p.detach().clone()) for p in self._parameters] for _ in range(num_ranks)]
        self.optimizers = [
            make(copies, Member(rank=rank, world_size=num_ranks, ranks_per_node=ranks_per_node))
            for rank, copies in enumerate(self.copies)
        ]
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @torch.no_grad()
    def step(self, gradients: Tensor) -> None:
        """Let every rank step with its own gradients (R, N)."""
        for copies, values in zip(self.copies, gradients, strict=True):
            for parameter, piece in zip(copies, values.split([tensor.numel() for tensor in copies]), strict=True):
                parameter.grad = piece.view_as(parameter)
        run_in_lockstep([optimizer.step_protocol() for optimizer in self.optimizers], self._ranks_per_node)
        for parameter, of_rank_0 in zip(self._parameters, self.copies[0], strict=True):
            parameter.copy_(of_rank_0)


SCHEME = ("topology", "intra_node_dtype", "average")
"""What `binsgdm.attach` takes; the other settings are the optimizer's."""


def binsgdm(**settings: Any) -> Make:
    scheme = Scheme(
        **{"topology": "hierarchical", "intra_node_dtype": "fp32", "average": "updates"}
        | {name: settings.pop(name) for name in SCHEME if name in settings}
    )

    def make(copies: list[nn.Parameter], member: Member) -> BinSGDM:
        optimizer = BinSGDM(copies, **settings)
        optimizer.join(Session(member, scheme))
        return optimizer

    return make


def one_bit_adam(**settings: Any) -> Make:
    def make(copies: list[nn.Parameter], member: Member) -> OneBitAdam:
        optimizer = OneBitAdam(copies, **settings)
        optimizer.join(member)
        return optimizer

    return make


class DecodedOnce:
    """An aggregation in which rank 0 computes the mean that every rank would compute alike, and the others take it.

    Every rank still sends what it sends and gets what it gets. Without this R ranks in one process decode R payloads
    each. One such object serves the systems of all ranks; `run_in_lockstep` lets rank 0 go first.
    """

    def __init__(self, aggregate: Aggregation) -> None:
        self._aggregate = aggregate
        self._of: tuple[int, int] | None = None
        self._mean = torch.empty(0)

    def __call__(
        self, compressor: CompressorSystem, payload: Payload, shapes: Shapes, context: RankContext, own: Tensor | None
    ) -> Protocol:
        protocol = self._aggregate(compressor, payload, shapes, context, own)
        if context.rank == 0:
            self._mean = yield from protocol
            self._of = context.step, context.bucket
            return self._mean
        # The other ranks take part in every message, since a rank that is silent would block the rest. They stop
        # as soon as rank 0, which goes first, has decoded.
        answer: Tensor | None = None
        while self._of != (context.step, context.bucket):
            answer = yield protocol.send(answer)  # type: ignore[arg-type]
        return self._mean


def systems_of(name: str, options: dict[str, Any], num_ranks: int, ranks_per_node: int = 1) -> list[Averager]:
    """Return a system's ends on all ranks, in its own topology if the options name none, whatever is its default.

    Payloads that all ranks of a group gather are decoded once.
    """
    named = {"topology": SYSTEMS[name].topologies[0], **options}
    systems = [
        make(name, rank=rank, world_size=num_ranks, ranks_per_node=ranks_per_node, **named) for rank in range(num_ranks)
    ]
    groups: list[list[Any]] = [systems]
    if isinstance(systems[0], Hierarchical):
        # Between nodes, the ranks with the same local rank are a group of their own.
        between = [system.between for system in systems]
        groups = [between[local::ranks_per_node] for local in range(ranks_per_node)]
    for group in groups:
        if isinstance(group[0], CompressorAverager):
            aggregate = DecodedOnce(group[0].aggregate)
            for system in group:
                system.aggregate = aggregate
    return systems


class AveragedGradients:
    """A system that averages gradients on all ranks, and one optimizer that goes on with their mean.

    All parameters are one bucket, as with DDP for a model below its first MiB.

    Attributes:
        gradients: of the last step (R, N).
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, systems: Sequence[Averager], *, ranks_per_node: int, seed: int
    ) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        self._parameters: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
        self.systems, self._ranks_per_node, self._seed = systems, ranks_per_node, seed
        self._step = 0

    @torch.no_grad()
    def step(self, gradients: Tensor) -> None:
        self.gradients = gradients
        pieces = self.mean(gradients).split([parameter.numel() for parameter in self._parameters])
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        self.optimizer.step()

    def mean(self, gradients: Tensor) -> Tensor:
        """Return the systems' estimate of the mean (N) in the next step; each call is one step."""
        self._step += 1
        shapes = tuple(tuple(parameter.shape) for parameter in self._parameters)
        where = {"world_size": len(self.systems), "ranks_per_node": self._ranks_per_node}
        protocols = [
            system.mean(
                GradientBucket(values=values, parameters=tuple(range(len(shapes))), shapes=shapes),
                RankContext(rank=rank, **where, seed=self._seed, step=self._step),
            )
            for rank, (system, values) in enumerate(zip(self.systems, gradients, strict=True))
        ]
        return run_in_lockstep(protocols, self._ranks_per_node)[0]


class Workers:
    """Workers that take steps alone, each with a model and an Adam of its own, and exchange now and then.

    Args:
        first: the model of the first worker, from which all others start.
        inner_steps: between two exchanges; 1 averages gradients.
        outer: settings of DiLoCo; None averages parameters.
        trial: lr of Adam, and settings of the outer step beside those of `outer`.
    """

    def __init__(
        self,
        first: nn.Module,
        *,
        num_workers: int,
        seed: int,
        inner_steps: int,
        outer: Mapping[str, Any] | None,
        trial: Mapping[str, Any],
    ) -> None:
        self._inner_steps, self._step = inner_steps, 0
        self._models = [first, *(copy.deepcopy(first) for _ in range(num_workers - 1))]
        self._parameters = [list(model.parameters()) for model in self._models]
        self._inner = [torch.optim.AdamW(parameters, weight_decay=0.0) for parameters in self._parameters]
        self.param_groups = [group for optimizer in self._inner for group in optimizer.param_groups]
        self._outer: list[OuterSteps] = []
        if outer is not None:
            searched = {name: value for name, value in trial.items() if name.startswith("outer_")}
            settings = OuterSettings(inner_steps=inner_steps, seed=seed, **{**searched, **outer})
            self._outer = [
                OuterSteps(of_worker, settings, Member(rank=rank, world_size=num_workers))
                for rank, of_worker in enumerate(self._parameters)
            ]

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Take a step on the workers' shares of a batch (R, B, ...)."""
        self._step += 1
        for rank, (model, optimizer) in enumerate(zip(self._models, self._inner, strict=True)):
            optimizer.zero_grad()
            loss(model(inputs[rank]), targets[rank]).backward()
        if self._inner_steps == 1:
            for alike in zip(*self._parameters, strict=True):
                mean = torch.stack([parameter.grad for parameter in alike if parameter.grad is not None]).mean(0)
                for parameter in alike:
                    parameter.grad = mean
        for optimizer in self._inner:
            optimizer.step()
        if self._inner_steps > 1 and self._step % self._inner_steps == 0:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        if not self._outer:
            run_in_lockstep([averaged(parameters, "fp32", len(self._models)) for parameters in self._parameters], 1)
            return
        pairs = [(outer, outer.fragments[0]) for outer in self._outer]
        means = run_in_lockstep([outer.mean(part, part.pseudo_gradient(), self._step) for outer, part in pairs], 1)
        run_in_lockstep([outer.finish(part, mean) for (outer, part), mean in zip(pairs, means, strict=True)], 1)
