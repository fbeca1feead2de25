"""Gradients into buckets, each reduced by one exchange, as PyTorch's DDP and the schemes of the papers cut them."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.workload.training_step import Step, Tensor

MIB = 1024.0**2
MAX_BUCKETS = 20_000
# A small first bucket starts communication early; PyTorch uses it only where no bucket_cap_mb is given.
# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES (PyTorch 2.13).
DDP_FIRST_BUCKET_BYTES = 1 * MIB
# DDP's default bucket_cap_mb, which counts MiB.
DDP_BUCKET_BYTES = 25 * MIB


class Bucketing(Protocol):
    """What of a strategy says how buckets are cut."""

    @property
    def bucketing(self) -> str:
        """The rule: "ddp", "per_tensor", "fused" or "mg_wfbp"."""

    @property
    def bucket_cap(self) -> Size | None:
        """Where the rule "ddp" closes a bucket; None for PyTorch's default."""


class Bucket(Struct, frozen=True, kw_only=True):
    """Gradients that travel together; ready when `backward_fraction` more of backward is done than at its predecessor.

    `shapes` are those of its tensors; None where they are not known.
    """

    index: int
    num_elements: float
    backward_fraction: float
    shapes: tuple[tuple[int, ...], ...] | None = None


class LinearCost(Struct, frozen=True, kw_only=True):
    """Time of one exchange as `start_up_s + s_per_byte * bytes`, for rules that weigh start-up cost against waiting."""

    start_up_s: float
    s_per_byte: float


def build(strategy: Bucketing, step: Step, exchange_cost: LinearCost) -> tuple[Bucket, ...]:
    """Return the buckets of a strategy in the order in which they become ready; `exchange_cost` is for "mg_wfbp" alone.

    DDP's state from the second iteration on is meant: in the first one all gradients are one bucket.
    """
    if strategy.bucketing == "fused":
        return (Bucket(index=0, num_elements=step.num_elements, backward_fraction=1.0, shapes=_shapes(step.tensors)),)
    if strategy.bucketing != "ddp" and not step.tensors:
        raise SimnetError(
            f"strategy.bucketing: {strategy.bucketing!r}: needs the model's tensors; give workload.tensors or "
            "workload.gradients"
        )
    if strategy.bucketing == "per_tensor":
        return _numbered([[tensor] for tensor in step.tensors])
    if strategy.bucketing == "mg_wfbp":
        return _numbered(_merged(step, exchange_cost))
    caps = _caps(strategy)
    return _ddp(step.tensors, step.bytes_per_element, *caps) if step.tensors else _even(step, *caps)


def _caps(strategy: Bucketing) -> tuple[float, float]:
    """Return the size at which the first and every later bucket closes [B]."""
    if strategy.bucket_cap is None:
        return DDP_FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES
    return float(strategy.bucket_cap), float(strategy.bucket_cap)


def _numbered(groups: list[list[Tensor]]) -> tuple[Bucket, ...]:
    return tuple(
        Bucket(
            index=index,
            num_elements=sum(tensor.num_elements for tensor in group),
            backward_fraction=sum(tensor.backward_fraction for tensor in group),
            shapes=_shapes(group),
        )
        for index, group in enumerate(groups)
    )


def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...] | None:
    shapes = tuple(tensor.shape for tensor in tensors if tensor.shape is not None)
    # Shapes of some tensors alone would stand for fewer elements than travel.
    return shapes if shapes and len(shapes) == len(tensors) else None


@lru_cache(maxsize=64)
def _ddp(tensors: tuple[Tensor, ...], bytes_per_element: int, first_cap: float, cap: float) -> tuple[Bucket, ...]:
    """Close a bucket when its size reaches the cap; the tensor that reaches the cap stays in the bucket.

    Tensors come in the order in which their gradients are ready, as DDP rebuilds its buckets after the first iteration.

    Source: compute_bucket_assignment_by_size in PyTorch's torch/csrc/distributed/c10d/reducer.cpp.
    """
    groups: list[list[Tensor]] = []
    current: list[Tensor] = []
    size = 0.0
    for tensor in tensors:
        current.append(tensor)
        size += tensor.num_elements * bytes_per_element
        # The first bucket is small, so that its all-reduce begins early in backward.
        if size >= (cap if groups else first_cap):
            groups.append(current)
            current, size = [], 0.0
    return _numbered([*groups, current] if current else groups)


def _even(step: Step, first_cap: float, cap: float) -> tuple[Bucket, ...]:
    """Cut a total without layers at the caps, with an equal fraction of backward for each bucket."""
    sizes: list[float] = []
    left = step.gradient_bytes
    while left > 1e-9 * step.gradient_bytes:  # what rounding leaves over makes no bucket of its own
        sizes.append(min(left, cap if sizes else first_cap))
        left -= sizes[-1]
        if len(sizes) > MAX_BUCKETS:
            raise SimnetError(f"strategy.bucket_cap: more than {MAX_BUCKETS} buckets; give a larger bucket_cap")
    return tuple(
        Bucket(index=index, num_elements=size / step.bytes_per_element, backward_fraction=1 / len(sizes))
        for index, size in enumerate(sizes)
    )


# The published code merges smaller groups whatever they cost.
MERGE_BELOW_ELEMENTS = 8192


def _merged(step: Step, exchange_cost: LinearCost) -> list[list[Tensor]]:
    """Merge the next gradient into a group where waiting for it costs less than another start-up.

    An all-reduce costs `start_up_s` + bytes / rate: n small ones pay n start-ups, one merged all-reduce pays one but
    starts when its last gradient is ready. `wire_free_s` is when the groups closed so far have been sent.

    Source: Shi, Chu and Li, "MG-WFBP: Efficient data communication for distributed synchronous SGD algorithms",
    INFOCOM 2019, in the form of their code (HKBU-HPML/ddl-benchmarks, mgwfbp/hv_distributed_optimizer.py).
    """
    groups: list[list[Tensor]] = []
    current: list[Tensor] = []
    elements = 0.0  # of `current`
    wire_free_s = 0.0
    ready_s = step.forward_s
    for tensor in step.tensors:
        next_ready_s = ready_s + tensor.backward_fraction * step.exchanged_backward_s
        if current and not _waits(elements, step, exchange_cost, max(wire_free_s, ready_s), next_ready_s):
            wire_free_s = _end_s(elements, step, exchange_cost, max(wire_free_s, ready_s))
            groups.append(current)
            current, elements = [], 0.0
        current.append(tensor)
        elements += tensor.num_elements
        ready_s = next_ready_s
    return [*groups, current]


def _end_s(elements: float, step: Step, exchange_cost: LinearCost, begin_s: float) -> float:
    size = elements * step.bytes_per_element
    return begin_s + exchange_cost.start_up_s + exchange_cost.s_per_byte * size


def _waits(elements: float, step: Step, exchange_cost: LinearCost, begin_s: float, next_ready_s: float) -> bool:
    """Tell whether a group that could begin at `begin_s` should take the next gradient along."""
    # Waiting is free while the wire is busy with earlier groups, and worth it while it is shorter than a start-up; but
    # a group that would be through before the next gradient is ready gains nothing by waiting.
    if elements < MERGE_BELOW_ELEMENTS:
        return True
    still_waiting = begin_s > next_ready_s or next_ready_s - begin_s < exchange_cost.start_up_s
    return still_waiting and next_ready_s < _end_s(elements, step, exchange_cost, begin_s)


Cut = Literal["elements", "rows", "columns"]
"""Along what a matrix (first dimension, all others) is cut: "elements" where a system knows no matrices."""


def longest_piece(bucket: Bucket, count: int, cut: Cut) -> Bucket:
    """Return the longest of `count` pieces of a bucket; equal ones where the shapes of its tensors are not known.

    As `binsgdm.compressors.topologies` cuts it tensor by tensor: matrices along rows or columns where a system knows
    matrices, else elements; all pieces of a tensor differ by at most one of these, and the first is the longest.
    """
    if count == 1:
        return bucket
    if bucket.shapes is None:
        return replace(bucket, num_elements=bucket.num_elements / count)
    shapes = tuple(_longest(shape, count, cut) for shape in bucket.shapes)
    return replace(bucket, num_elements=float(sum(map(math.prod, shapes))), shapes=shapes)


def _longest(shape: tuple[int, ...], count: int, cut: Cut) -> tuple[int, ...]:
    rows = shape[0] if shape else 1
    columns = math.prod(shape[1:])
    if len(shape) > 1 and rows * columns:
        if cut == "rows" and rows >= count:
            return (-(-rows // count), *shape[1:])
        if cut == "columns" and columns >= count:
            return rows, -(-columns // count)
    return (-(-math.prod(shape) // count),)
