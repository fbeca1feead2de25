"""A step of BinSGDM: the exchange of all buckets, then the finite check, which decides whether the step counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from binsgdm.exchange import AllReduceMax, Member, Protocol, RankContext
from binsgdm.flat_buckets import FlatBucket
from binsgdm.kernels import Kernels
from binsgdm.optimizers.base import Flag, ParamState, check_gradients
from binsgdm.optimizers.scheme import Scheme
from binsgdm.optimizers.worker import Worker
from binsgdm.random import MAX_NUMEL

MIB = 2**20
BYTES_PER_ELEMENT = 4
ONE_BUCKET = MAX_NUMEL  # for a rank alone, which gains nothing from several messages


class Session:
    """One rank's steps, inside `optimizer.step()`, in lock-step with the others.

    Args:
        member: this rank, and who carries its messages; by default it is alone.
        scheme: how the ranks agree on the signs.
        bucket_elements: parameters of one message.

    Attributes:
        starts_in_backward: gradients leave before `optimizer.step()`, which is then too late to change them.
    """

    starts_in_backward = False

    def __init__(
        self,
        member: Member | None = None,
        scheme: Scheme = Scheme(topology="flat"),  # noqa: B008 - frozen
        bucket_elements: int = ONE_BUCKET,
    ) -> None:
        self.member = member or Member()
        self.scheme, self.bucket_elements = scheme, bucket_elements

    @property
    def layout(self) -> str:
        """In words, which elements this rank rounds where; what rounding lost belongs to it."""
        member, scheme = self.member, self.scheme
        is_one_bit = scheme.intra_node_dtype == "one_bit"
        if member.world_size == 1 and not is_one_bit:
            return "a rank alone"
        # With the rank: with the residual of another, both would round alike, and their errors would add up.
        rank = f"rank {member.rank} of {member.world_size}"
        cap_mb = f"bucket_cap_mb={self.bucket_elements * BYTES_PER_ELEMENT / MIB:.9g}"
        if scheme.topology == "flat":
            return f"{rank}, flat, {cap_mb}"
        return f"{rank}, {member.ranks_per_node} a node{', one_bit inside' * is_one_bit}, {cap_mb}"

    def reset(self, param_states: Sequence[ParamState], context: RankContext, kernels: Kernels) -> None:
        """Begin, or start over with other state.

        Args:
            param_states: parameters with their state, in the order in which they were given.
            context: of this rank in the coming step.
            kernels: which implementation.
        """
        self.param_states = param_states
        self.worker = Worker(
            param_states,
            context=context,
            scheme=self.scheme,
            bucket_elements=self.bucket_elements,
            kernels=kernels,
            layout=self.layout,
        )

    def check_residuals(self, states: Sequence[Mapping[str, Any]], layout: str) -> None:
        """Refuse states of all parameters whose residuals are of this layout and cannot be.

        Raises:
            BinsgdmError: see `RoundingResiduals.check`.
        """
        if self.worker.residuals is not None and layout == self.layout:
            self.worker.residuals.check(states)

    def step_protocol(self, step: int, *, skip: Flag) -> Protocol:
        """Take a step as a protocol, which returns whether parameters moved (a bool scalar, alike on all ranks).

        Args:
            step: its number, from 1.
            skip: the GradScaler of this rank found gradients that are not finite.
        """
        check_gradients("BinSGDM", self.worker.parameters)
        buckets = self.worker.begin_step(step)
        self.worker.skip_step_if(skip)
        # All signs are kept until the finite check: a parameter moves only if every gradient of every rank was finite,
        # and the last bucket may hold the first infinity.
        signs: list[torch.Tensor] = []
        for bucket in buckets:
            packed = yield from self.worker.signs(bucket)
            signs.append(packed)
        return (yield from self.check_and_apply(buckets, signs))

    def check_and_apply(self, buckets: Iterable[FlatBucket], signs: Iterable[torch.Tensor]) -> Protocol:
        """Move the parameters, unless flags of all ranks say that a gradient was not finite."""
        # One message decides for all ranks, also where only one of them saw an infinity (or its GradScaler did): ranks
        # that decided alone would apply different numbers of steps and drift apart.
        flags = yield AllReduceMax(sent=self.worker.finite_check_flags())
        stop, *has_gradient = flags.tolist()
        if not stop:
            for bucket, packed in zip(buckets, signs, strict=True):
                self.worker.apply(bucket, packed, has_gradient)
        return torch.tensor(not stop, device="cpu")

    def close(self) -> None:
        """Take no part any more."""
