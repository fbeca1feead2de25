"""One worker's outer steps, as protocols with the other workers: their settings, what is exchanged, what is applied."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch

from binsgdm.comm import AllGather, AllReduceSum, Member, Protocol, RankContext
from binsgdm.compressors.base import (
    REPAIR,
    Averager,
    GradientBucket,
    check_choice,
    check_state,
    check_stateless,
    check_whole,
    is_number,
    is_share,
)
from binsgdm.compressors.registry import SYSTEMS, check_options, make
from binsgdm.compressors.topologies import BETWEEN_NODES, among_nodes, node_context
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels.functional import divided

Workers = Literal["rank", "node"]
WIRE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
COMPRESSED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "int8": ("byte_grad", {"topology": "scatter_reduce"}),
    "fp8": ("byte_grad", {"topology": "scatter_reduce", "dtype": "fp8_e4m3"}),
    "one_bit": ("ef_sign_sgd", {"topology": "scatter_reduce", "scale_per": "bucket"}),
}
"""Short names of exchanges, with the system and the options that they stand for."""
DEFAULT_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class OuterSettings:
    """How DiLoCo exchanges; `binsgdm.DiLoCo` says what each setting means."""

    inner_steps: int = 50
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    exchange: str = "fp32"
    fragments: int = 1
    overlap_steps: int = 0
    local_share: float | None = None
    workers: Workers = "rank"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("DiLoCo: inner_steps", self.inner_steps, low=1)
        check_whole("DiLoCo: seed", self.seed, low=0, high=2**64 - 1)
        check_choice("DiLoCo: workers", self.workers, get_args(Workers))
        check_choice("DiLoCo: nesterov", self.nesterov, (False, True))
        if not is_number(self.outer_lr, above=0):
            raise BinsgdmError(f"DiLoCo: outer_lr: {shown(self.outer_lr)}: must be a number above 0; give 0.7")
        if not is_share(self.outer_momentum) or self.outer_momentum == 1:
            raise BinsgdmError(
                f"DiLoCo: outer_momentum: {shown(self.outer_momentum)}: must be a number in [0, 1); give 0.9"
            )
        if self.nesterov and self.outer_momentum == 0:
            raise BinsgdmError("DiLoCo: nesterov: True without outer_momentum: has no effect; give nesterov=False")
        self._check_schedule()
        self._check_exchange()

    @property
    def steps_between(self) -> int:
        """Steps from the exchange of a fragment to that of the next one."""
        return self.inner_steps // self.fragments

    @property
    def share(self) -> float:
        """Of a worker's own parameters in the mix."""
        if not self.overlap_steps:
            return 0.0
        return DEFAULT_SHARE if self.local_share is None else self.local_share

    @property
    def system(self) -> tuple[str, Mapping[str, Any]]:
        """The system that compresses, with its options."""
        name, options = COMPRESSED.get(self.exchange, (self.exchange, {}))
        return name, {**options, **self.options}

    def _check_schedule(self) -> None:
        check_whole("DiLoCo: fragments", self.fragments, low=1)
        check_whole("DiLoCo: overlap_steps", self.overlap_steps, low=0)
        if self.inner_steps % self.fragments:
            raise BinsgdmError(
                f"DiLoCo: fragments: {self.fragments}: must divide inner_steps ({self.inner_steps}); change one of them"
            )
        if self.overlap_steps >= self.steps_between:
            raise BinsgdmError(
                f"DiLoCo: overlap_steps: {self.overlap_steps}: must be below inner_steps / fragments "
                f"({self.steps_between}), so that one exchange ends before the next; lower it"
            )
        if self.local_share is None:
            return
        if not is_share(self.local_share):
            raise BinsgdmError(f"DiLoCo: local_share: {shown(self.local_share)}: must be a number in [0, 1]; give 0.5")
        if not self.overlap_steps:
            raise BinsgdmError(f"DiLoCo: local_share: {self.local_share}: has no effect with overlap_steps=0; drop it")

    def _check_exchange(self) -> None:
        if isinstance(self.exchange, str) and self.exchange in WIRE_DTYPES:
            if self.options:
                raise BinsgdmError(
                    f"DiLoCo: {next(iter(self.options))}: an option of a system: has no effect with "
                    f"exchange={self.exchange!r}; drop it"
                )
            return
        if not isinstance(self.exchange, str) or (self.exchange not in COMPRESSED and self.exchange not in SYSTEMS):
            known = ", ".join([*WIRE_DTYPES, *COMPRESSED, *SYSTEMS])
            raise BinsgdmError(f"DiLoCo: exchange: {shown(self.exchange)}: unknown; give one of {known}")
        name, options = self.system
        check_options(name, [option for option in options if option != "topology"])
        if options.get("topology") in BETWEEN_NODES:
            raise BinsgdmError(
                f"DiLoCo: topology: {options['topology']!r}: averages in the node first, where workers are alike; give "
                "workers='node'"
            )


class Fragment:
    """Some parameters of a rank, of one number format, and the slice of their outer state that this rank keeps.

    Attributes:
        outer: outer parameters of the slice, flat fp32.
        momentum: of the outer SGD, of the same form.

    Shape:
        outer, momentum: (L,), L elements of a slice, ceil(N / ranks) for N elements; the last slice ends with zeros.
    """

    def __init__(self, number: int, parameters: Sequence[torch.Tensor], position: int, ranks: int) -> None:
        self.number, self.parameters = number, tuple(parameters)
        self._length = math.ceil(sum(parameter.numel() for parameter in parameters) / ranks)
        self._first = position * self._length
        self._is_whole = ranks == 1
        self.outer = self._slice_of(flattened(parameters))
        self.momentum = torch.zeros_like(self.outer)

    def _slice_of(self, whole: torch.Tensor) -> torch.Tensor:
        part = whole[self._first : self._first + self._length]
        # Slices are gathered as rows of one tensor, so that the last one must be as long.
        return torch.nn.functional.pad(part, (0, self._length - part.numel()))

    def pseudo_gradient(self) -> GradientBucket:
        """Return how far this worker went from the outer parameters, with the sign of a gradient."""
        # Workers start from the outer parameters as their own number format holds them: what that rounds is no way
        # that a worker went.
        start = self.outer.to(self.parameters[0].dtype).to(torch.float32)
        values = start - self._slice_of(flattened(self.parameters))
        if not self._is_whole:
            return GradientBucket(values=values, parameters=(self.number,), shapes=((self._length,),))
        numbers = tuple(f"{self.number}.{index}" for index in range(len(self.parameters)))
        return GradientBucket(
            values=values, parameters=numbers, shapes=tuple(tuple(parameter.shape) for parameter in self.parameters)
        )

    def stepped(self, mean: torch.Tensor, settings: OuterSettings) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outer parameters and momentum after a step of SGD along the mean, as torch.optim.SGD does it."""
        # Both are new tensors: where the exchange fails, the old ones are still whole.
        momentum = self.momentum * settings.outer_momentum + mean
        along = mean.add(momentum, alpha=settings.outer_momentum) if settings.nesterov else momentum
        return self.outer.add(along, alpha=-settings.outer_lr), momentum

    def of_slice(self, name: str, value: object) -> torch.Tensor:
        """Return a copy of saved values of the slice, on the device of the parameters."""
        if not isinstance(value, torch.Tensor) or value.shape != self.outer.shape or value.dtype != torch.float32:
            raise BinsgdmError(
                f"DiLoCo: {name}: {shown(value)}: must be {self._length} values of float32; {REPAIR} on this rank"
            )
        if not bool(value.isfinite().all()):
            raise BinsgdmError(f"DiLoCo: {name}: values that are not finite: no run has them; {REPAIR} on this rank")
        return value.to(self.outer.device, copy=True)


class OuterSteps:
    """One rank's end of DiLoCo: which fragment is exchanged when, its mean over workers, and the outer step.

    Args:
        parameters: of the model on this rank, which are changed.
        settings: the same on all ranks.
        member: this rank; the ranks of a node train as one worker, and share the outer state.

    Attributes:
        fragments: with their outer state.
        system: what averages.

    Source: Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, algorithm 1,
    https://arxiv.org/abs/2311.08105; fragments and overlap: Douillard et al., "Streaming DiLoCo with overlapping
    communication", 2025, https://arxiv.org/abs/2501.18512. Differs: the ranks of a worker share the outer state;
    fragments are tensors that follow each other, of about as many elements, not layers far apart.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], settings: OuterSettings, member: Member) -> None:
        self._settings = settings
        self._context = context = member.context(seed=settings.seed, step=0)
        pieces = cut([parameter.numel() for parameter in parameters], settings.fragments)
        self.fragments = [
            Fragment(number, [parameters[index] for index in piece], context.local_rank, context.ranks_per_node)
            for number, piece in enumerate(pieces)
        ]
        self.system: Averager
        if settings.exchange in WIRE_DTYPES:
            self.system = _WireMean(WIRE_DTYPES[settings.exchange])
        else:
            name, options = settings.system
            self.system = make(name, rank=context.node, world_size=context.num_nodes, **options)

    def starting(self, step: int) -> Fragment | None:
        """Return the fragment whose exchange starts after a step, counted from 1; None where none does."""
        between = self._settings.steps_between
        return None if step % between else self.fragments[(step // between - 1) % len(self.fragments)]

    def ending(self, step: int) -> Fragment | None:
        """Return the fragment whose exchange ends after a step; None where none does."""
        started = step - self._settings.overlap_steps
        return self.starting(started) if started > 0 else None

    def mean(self, fragment: Fragment, bucket: GradientBucket, step: int) -> Protocol:
        """Return the mean of the pseudo-gradients that workers have after a step."""
        # Draws are counted by periods; the fragments of one share none, since each is a bucket.
        period = -(-step // self._settings.inner_steps)
        context = replace(self._context, step=period, bucket=fragment.number)
        return among_nodes(self.system.mean(bucket, node_context(context)))

    def finish(self, fragment: Fragment, mean: torch.Tensor) -> Protocol:
        """Take the outer step, gather the new parameters in the worker, and write them.

        Raises:
            BinsgdmError: they are not finite; on all ranks alike, and nothing has changed.
        """
        outer, momentum = fragment.stepped(mean, self._settings)
        whole = outer
        if self._context.ranks_per_node > 1:
            whole = (yield AllGather(group="intra_node", sent=outer, is_read_by_host=True)).reshape(-1)
        check_finite("DiLoCo", whole)
        fragment.outer, fragment.momentum = outer, momentum
        write_into(fragment.parameters, whole, self._settings.share)
        return whole

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of outer state and residuals; each rank saves its own."""
        fragments = [
            {"outer": fragment.outer.clone(), "momentum": fragment.momentum.clone()} for fragment in self.fragments
        ]
        return {"fragments": fragments, "system": self.system.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned.

        Raises:
            BinsgdmError: it is no such state; then nothing is taken.
        """
        check_state("DiLoCo: outer state", state, ("fragments", "system"))
        states = state["fragments"]
        if not isinstance(states, list) or len(states) != len(self.fragments):
            raise BinsgdmError(
                f"DiLoCo: fragments of the state: {shown(states)}: must be {len(self.fragments)}; {REPAIR}"
            )
        checked = []
        for fragment, saved in zip(self.fragments, states, strict=True):
            check_state("DiLoCo: state of a fragment", saved, ("outer", "momentum"))
            checked.append([fragment.of_slice(f"{name} of the state", saved[name]) for name in ("outer", "momentum")])
        self.system.load_state_dict(state["system"])
        for fragment, (outer, momentum) in zip(self.fragments, checked, strict=True):
            fragment.outer, fragment.momentum = outer, momentum


class _WireMean(Averager):
    """The mean of what all ranks give, all-reduced in a number format."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return the mean; see `binsgdm.compressors.base.Averager`."""
        total = yield AllReduceSum(group="world", sent=bucket.values.to(self._dtype))
        return divided(total.to(torch.float32), context.world_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""
        check_stateless("the mean", state)


def averaged(parameters: Sequence[torch.Tensor], wire_dtype: str, world_size: int) -> Protocol:
    """Set the parameters of all ranks to their mean, in one message: the exchange of local SGD.

    Raises:
        BinsgdmError: it is not finite; on all ranks alike, and nothing has changed.
    """
    sent = flattened(parameters).to(WIRE_DTYPES[wire_dtype])
    total = yield AllReduceSum(group="world", sent=sent, may_overwrite=True, is_read_by_host=True)
    mean = divided(total.to(torch.float32), world_size)
    check_finite("LocalSGD", mean)
    write_into(parameters, mean)
    return mean


def cut(numels: Sequence[int], count: int) -> list[range]:
    """Return which consecutive tensors each of so many fragments has, of about as many elements.

    Example:
        >>> cut([10, 1, 1, 12], 2)
        [range(0, 3), range(3, 4)]
    """
    if count > len(numels):
        raise BinsgdmError(
            f"DiLoCo: fragments: {count}: the model has {len(numels)} tensors; give at most {len(numels)}"
        )
    ends, total, seen = [0], sum(numels), 0
    for number, numel in enumerate(numels):
        seen += numel
        left = count - len(ends)
        # Or each of the tensors that are left has to be a fragment of its own.
        is_full = seen >= total * len(ends) / count or len(numels) - number - 1 == left
        if left and is_full:
            ends.append(number + 1)
    return [range(first, end) for first, end in zip(ends, [*ends[1:], len(numels)], strict=True)]


def flattened(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a flat fp32 copy of tensors."""
    return torch.cat([tensor.detach().reshape(-1).to(torch.float32) for tensor in tensors])


@torch.no_grad()
def write_into(parameters: Sequence[torch.Tensor], values: torch.Tensor, share: float = 0.0) -> None:
    """Set parameters to values, mixed with a share of what they are.

    Shape:
        values: (N,), N elements of all parameters, or longer.
    """
    first = 0
    for parameter in parameters:
        wanted = values[first : first + parameter.numel()].view(parameter.shape)
        first += parameter.numel()
        if share:
            wanted = torch.lerp(wanted, parameter.to(torch.float32), share)
        parameter.copy_(wanted)


def check_finite(where: str, values: torch.Tensor) -> None:
    """Refuse parameters that all ranks would go on with."""
    if not bool(values.isfinite().all()):
        raise BinsgdmError(
            f"{where}: an exchange that gives parameters that are not finite: those of each worker must be; lower lr, "
            "and go on from a checkpoint"
        )
