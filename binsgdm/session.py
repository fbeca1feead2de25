"""Who takes part in a step: one rank alone, or all ranks of a process group, after backward or beside it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Place
from binsgdm.groups import Groups
from binsgdm.kernels import Kernels
from binsgdm.kernels.checks import FLOATS
from binsgdm.layout import Bucket
from binsgdm.random import MAX_NUMEL
from binsgdm.transport import Sent, Transport
from binsgdm.worker import Scheme, Slot, Worker

ONE_BUCKET = MAX_NUMEL
"""Where nothing is sent, nothing is gained by cutting."""


class Session(Protocol):
    """Takes steps for an optimizer.

    Attributes:
        starts_in_backward: gradients leave before `optimizer.step()`, which is then too late to change them.
    """

    starts_in_backward: bool
    rank: int
    world_size: int
    ranks_per_node: int

    def step(self, step: int, *, skip: bool) -> bool:
        """Take step number `step`; return whether parameters moved. All ranks decide alike.

        Args:
            step: from 1.
            skip: this rank has been told that its gradients are not finite.
        """
        ...

    def renew(self, slots: Sequence[Slot], place: Place) -> None:
        """Start over with other state."""
        ...

    def close(self) -> None:
        """Take no part any more."""
        ...


def check_dense(where: str, gradient: torch.Tensor) -> None:
    """Refuse a gradient that cannot be laid out flat.

    Raises:
        BinsgdmError: it is sparse or complex.
    """
    if gradient.is_sparse or gradient.is_complex():
        kind = "sparse" if gradient.is_sparse else "complex"
        raise BinsgdmError(
            f"{where}: a {kind} gradient of shape {tuple(gradient.shape)}: must be dense and real; set sparse=False or "
            "give this parameter to another optimizer"
        )


def check_gradients(slots: Sequence[Slot]) -> None:
    """Refuse gradients that cannot be packed.

    Raises:
        BinsgdmError: a sparse or complex gradient, or parameters on different devices.
    """
    for slot in slots:
        gradient = slot.parameter.grad
        if gradient is None:
            continue
        check_dense("BinSGDM", gradient)
        if gradient.shape != slot.parameter.shape or gradient.dtype not in FLOATS:
            raise BinsgdmError(
                f"BinSGDM: a gradient of {gradient.dtype} and shape {tuple(gradient.shape)} for a parameter of shape "
                f"{tuple(slot.parameter.shape)}: must be of that shape, in float32, bfloat16 or float16"
            )
    devices = {str(slot.parameter.device) for slot in slots}
    if len(devices) > 1:
        raise BinsgdmError(f"BinSGDM: parameters on {', '.join(sorted(devices))}: must be on one device")


def settle(worker: Worker, buckets: Sequence[Bucket], signs: Sequence[torch.Tensor], flags: torch.Tensor) -> bool:
    """Move the parameters, unless flags of all ranks say that a gradient was not finite; return whether they moved."""
    stop, *has_gradient = flags.tolist()
    if stop:
        return False
    for bucket, packed in zip(buckets, signs, strict=True):
        worker.apply(bucket, packed, has_gradient)
    return True


def exchange_and_settle(worker: Worker, step: int, *, skip: bool, carrier: Transport, everyone: Transport) -> bool:
    """Exchange every bucket, agree whether the step counts, and move the parameters; return whether they moved.

    Args:
        worker: of this rank.
        step: from 1.
        skip: this rank knows of gradients that are not finite.
        carrier: of the buckets.
        everyone: who agrees.
    """
    buckets = worker.begin(step)
    if skip:
        worker.refuse()
    signs = [worker.signs(bucket, carrier.run) for bucket in buckets]
    return settle(worker, buckets, signs, everyone.largest(worker.flags()))


class Alone:
    """One rank without messages."""

    starts_in_backward = False
    rank, world_size, ranks_per_node = 0, 1, 1

    def __init__(self, slots: Sequence[Slot], place: Place, kernels: Kernels) -> None:
        self._kernels = kernels
        self.renew(slots, place)

    def renew(self, slots: Sequence[Slot], place: Place) -> None:
        """Start over with other state."""
        self._slots = slots
        self._worker = Worker(slots, place=place, scheme="flat", bucket_elements=ONE_BUCKET, kernels=self._kernels)

    def step(self, step: int, *, skip: bool) -> bool:
        """Update, and apply if all gradients are finite."""
        check_gradients(self._slots)
        worker = self._worker
        buckets = worker.begin(step)
        if skip:
            return False
        return settle(worker, buckets, [worker.alone(bucket) for bucket in buckets], worker.flags())

    def close(self) -> None:
        """Hold nothing."""


class AfterBackward:
    """All ranks, one bucket after the other inside `optimizer.step()`."""

    starts_in_backward = False

    def __init__(  # noqa: PLR0913
        self,
        slots: Sequence[Slot],
        place: Place,
        kernels: Kernels,
        groups: Groups,
        *,
        scheme: Scheme,
        bucket_elements: int,
        on_sent: Callable[[Sent], None] | None = None,
    ) -> None:
        self.rank, self.world_size, self.ranks_per_node = groups.rank, groups.world_size, groups.ranks_per_node
        self._kernels = kernels
        self._scheme: Scheme = scheme
        self._bucket_elements = bucket_elements
        self._transport = Transport(groups, on_sent)
        self.renew(slots, place)

    def renew(self, slots: Sequence[Slot], place: Place) -> None:
        """Start over with other state."""
        self._slots = slots
        self._worker = Worker(
            slots, place=place, scheme=self._scheme, bucket_elements=self._bucket_elements, kernels=self._kernels
        )

    def step(self, step: int, *, skip: bool) -> bool:
        """Exchange every bucket, agree with all ranks whether the step counts, and apply."""
        check_gradients(self._slots)
        return exchange_and_settle(self._worker, step, skip=skip, carrier=self._transport, everyone=self._transport)

    def close(self) -> None:
        """Hold nothing."""
