"""One rank's part of a step, bucket by bucket: update the momenta, exchange signs, apply them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch

from binsgdm import exchange, layout
from binsgdm.bits import packed_numel
from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Protocol, RankContext
from binsgdm.functional import ratio
from binsgdm.kernels import Kernels, zeros
from binsgdm.layout import BITS_PER_BYTE, Bucket, Segment
from binsgdm.optimizers.base import Slot
from binsgdm.random import Stream

Topology = Literal["hierarchical", "flat"]
IntraNode = Literal["fp32", "bf16", "one_bit"]
Average = Literal["updates", "gradients"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How signs are agreed on.

    Attributes:
        topology: average inside nodes first, or treat all ranks alike.
        intra_node_dtype: what travels inside a node (hierarchical only).
        average: what is averaged inside a node (hierarchical only).

    Raises:
        BinsgdmError: an unknown value, or values that do not go together.
    """

    topology: Topology = "hierarchical"
    intra_node_dtype: IntraNode = "fp32"
    average: Average = "updates"

    def __post_init__(self) -> None:
        dtype, average = self.intra_node_dtype, self.average
        given = {"topology": self.topology, "intra_node_dtype": dtype, "average": average}
        for (name, value), kind in zip(given.items(), (Topology, IntraNode, Average), strict=True):
            if value not in get_args(kind):
                known = ", ".join(map(repr, get_args(kind)))
                raise BinsgdmError(f"attach: {name}={value!r}: unknown: give one of {known}; see help(binsgdm.attach)")
        for name, value in (("intra_node_dtype", dtype), ("average", average)):
            if self.topology == "flat" and value not in ("fp32", "updates"):
                raise BinsgdmError(f"attach: {name}={value!r}: has no effect with topology='flat'; drop one of them")
        if (dtype, average) == ("one_bit", "gradients"):
            raise BinsgdmError(
                "attach: average='gradients': needs intra_node_dtype='fp32' or 'bf16'; one bit is drawn from an update"
            )


SCHEMES = (
    Scheme(),
    Scheme(intra_node_dtype="bf16"),
    Scheme(intra_node_dtype="one_bit"),
    Scheme(average="gradients"),
    Scheme(average="gradients", intra_node_dtype="bf16"),
    Scheme(topology="flat"),
)
"""All that there are."""


class _Part(NamedTuple):
    """A parameter as a segment of a bucket; m and b are flat views of its state."""

    segment: Segment
    slot: Slot
    m: torch.Tensor
    b: torch.Tensor

    def is_outdated(self) -> bool:
        """Tell whether somebody has put another tensor into the state."""
        state = self.slot.state
        return bool(self.m.data_ptr() != state["m"].data_ptr() or self.b.data_ptr() != state["b"].data_ptr())


class _Cut(NamedTuple):
    """What a slice of a bucket has of a parameter: its first element and its end in the flat order."""

    part: _Part
    lo: int
    hi: int

    @classmethod
    def of(cls, part: _Part, first: int, end: int) -> "_Cut":
        """Cut out what lies in [first, end)."""
        start = part.segment.start
        return cls(part, max(start, first), min(start + part.segment.numel, end))

    def of_segment(self, values: torch.Tensor) -> torch.Tensor:
        """Return these elements of a flat tensor of the parameter."""
        return values[self.lo - self.part.segment.start : self.hi - self.part.segment.start]


class Worker:
    """What one rank does with its parameters; who carries the messages is up to the caller."""

    def __init__(
        self, slots: Sequence[Slot], *, context: RankContext, scheme: Scheme, bucket_elements: int, kernels: Kernels
    ) -> None:
        if any(hasattr(slot.parameter, "to_local") for slot in slots):
            raise BinsgdmError("BinSGDM: sharded parameters (DTensor): join them with binsgdm.attach_fsdp")
        self._slots = slots
        self._place = context
        self._scheme = scheme
        self._kernels = kernels
        numels = [slot.parameter.numel() for slot in slots]
        self.buckets = layout.build(numels, bucket_elements=bucket_elements, ranks=context.world_size)
        self._parts = self._cut()
        self.device = slots[0].parameter.device
        self._refused = False
        self._has_gradient = [0] * len(slots)
        self._finite: list[torch.Tensor] = []
        self._u = self._packed = torch.empty(0)

    def _cut(self) -> dict[int, list[_Part]]:
        """Return the parameters of each bucket, with views of the state that they have now."""
        return {bucket.index: [_part(s, self._slots[s.index]) for s in bucket.segments] for bucket in self.buckets}

    def begin(self, step: int) -> tuple[Bucket, ...]:
        """Start a step: forget what the last one saw, draw from a new place.

        Returns:
            The buckets that travel: those with a parameter that is trained. All ranks must train the same ones.
        """
        self._place = replace(self._place, step=step)
        self._refused = False
        self._has_gradient = [0] * len(self._slots)
        self._finite = []
        if any(part.is_outdated() for parts in self._parts.values() for part in parts):
            self._parts = self._cut()
        return tuple(bucket for bucket in self.buckets if any(map(self._is_trained, bucket.segments)))

    def gradients_to_come(self, bucket: Bucket) -> int:
        """Return how many gradients of a bucket backward will bring, if it reaches all that it could."""
        return sum(self._slots[segment.index].parameter.requires_grad for segment in bucket.segments)

    def refuse(self) -> None:
        """Let this step not count, since gradients are known not to be finite; from here on the averages stay."""
        self._refused = True

    def flags(self) -> torch.Tensor:
        """Return what this rank saw in this step, for all ranks to take the largest of.

        Returns:
            uint8 (1 + parameters): a gradient that is not finite, then which parameters had a gradient.
        """
        flags = torch.tensor([int(self._refused), *self._has_gradient], dtype=torch.uint8, device=self.device)
        if self._finite:
            flags[0] |= torch.stack(self._finite).all().logical_not()
        return flags

    def signs(self, bucket: Bucket) -> Protocol:
        """Update the momenta of a bucket; return what comes to the packed signs that all ranks agree on.

        A parameter without a gradient on this rank keeps its momenta and sends its last update again, and so does an
        element whose gradient is not finite. Where gradients are averaged in the node, it counts as a gradient of 0.
        """
        scheme, bf16 = self._scheme, self._scheme.intra_node_dtype == "bf16"
        where = bucket, self._place, self._kernels
        if scheme.average == "gradients":
            quantize = partial(self._packed_updates_of_slice, bucket)
            return exchange.hierarchical_gradients(self._all_gradients(bucket), *where, quantize=quantize, bf16=bf16)
        if scheme.topology == "flat":
            packed = self._packed_updates(bucket, Stream.LOCAL)
            return exchange.flat(packed, *where) if self._place.world_size > 1 else _agreed(packed)
        if scheme.intra_node_dtype == "one_bit":
            return exchange.hierarchical_one_bit(self._packed_updates(bucket, Stream.INSIDE), *where)
        return exchange.hierarchical(self._updates(bucket), *where, bf16=bf16)

    def apply(self, bucket: Bucket, signs: torch.Tensor, has_gradient: Sequence[int]) -> None:
        """Move the parameters of a bucket that had a gradient on some rank."""
        moving = [part for part in self._parts[bucket.index] if has_gradient[part.segment.index]]
        for group, parts in _by_group(moving):
            flat = [flattened(part.slot.parameter) for part in parts]
            self._kernels.foreach_unpack_apply_(
                flat,
                [_bytes_of(signs, part.segment) for part in parts],
                lr=float(group["lr"]),
                weight_decay=float(group["weight_decay"]),
                maximize=bool(group["maximize"]),
            )
            # Kernels write past autograd, which has to know.
            torch.autograd.graph.increment_version([part.slot.parameter for part in parts])
            for part, values in zip(parts, flat, strict=True):
                if not part.slot.parameter.is_contiguous():
                    part.slot.parameter.copy_(values.view_as(part.slot.parameter))

    def _whole(self, bucket: Bucket) -> torch.Tensor:
        """Return fp32 memory for a bucket, 0 in the padding."""
        if not self._u.numel():  # kept from step to step, as fresh memory is slow (docs/adr/0005-cpu-kernels.md)
            self._u = zeros(max(bucket.numel for bucket in self.buckets), self.device)
        u = self._u[: bucket.numel]
        for first, end in bucket.gaps:
            u[first:end] = 0
        return u

    def _bytes(self, start: int, num_bytes: int) -> torch.Tensor:
        """Return memory for packed signs from an element of the flat order on, 0 in the padding."""
        if not self._packed.numel():  # kept, too
            size = sum(bucket.num_bytes for bucket in self.buckets)
            self._packed = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return self._packed[start // BITS_PER_BYTE :][:num_bytes]

    def _all_gradients(self, bucket: Bucket) -> torch.Tensor:
        """Return the gradients of a whole bucket, 0 in the padding and where there is none."""
        gradients = self._whole(bucket)
        for part in self._parts[bucket.index]:
            gradient = _gradient(part)
            self._has_gradient[part.segment.index] = int(gradient is not None)
            values = _elements_of(gradients, part.segment)
            if gradient is None:
                values.zero_()
            else:
                values.copy_(flattened(gradient))
        return gradients

    def _packed_updates_of_slice(self, bucket: Bucket, mean: torch.Tensor) -> torch.Tensor:
        """Update the momenta of this rank's slice of a bucket; return its packed signs, 0 in the padding."""
        first = exchange.slice_start(bucket, self._place)
        end = first + mean.numel()
        packed = self._bytes(first, mean.numel() // BITS_PER_BYTE)
        for group, parts in _by_group(self._parts[bucket.index]):
            cuts = [cut for part in parts if (cut := _Cut.of(part, first, end)).lo < cut.hi]
            finite = self._kernels.foreach_update_quantize_pack_(
                [mean[cut.lo - first : cut.hi - first] for cut in cuts],
                [cut.of_segment(cut.part.m) for cut in cuts],
                [cut.of_segment(cut.part.b) for cut in cuts],
                beta=float(group["beta"]),
                key=self._place.key(Stream.LOCAL),
                starts=[cut.lo for cut in cuts],
                outs=[packed[(cut.lo - first) // BITS_PER_BYTE :][: packed_numel(cut.hi - cut.lo)] for cut in cuts],
            )
            self._finite.append(finite)
        return packed

    def _updates(self, bucket: Bucket) -> torch.Tensor:
        """Return u of a whole bucket, 0 in the padding."""
        u = self._whole(bucket)
        with_gradient, without = self._split(bucket)
        for part in without:
            _elements_of(u, part.segment).copy_(ratio(part.m, part.b))
        for group, parts in _by_group(with_gradient):
            lists = _gradients(parts), [part.m for part in parts], [part.b for part in parts]
            outs = [_elements_of(u, part.segment) for part in parts]
            self._finite.append(self._kernels.foreach_update_(*lists, beta=float(group["beta"]), outs_u=outs))
        return u

    def _packed_updates(self, bucket: Bucket, stream: Stream) -> torch.Tensor:
        """Return the packed signs of u of a whole bucket, 0 in the padding."""
        packed = self._bytes(bucket.start, bucket.num_bytes)
        key = self._place.key(stream)
        with_gradient, without = self._split(bucket)
        for part in without:
            out = _bytes_of(packed, part.segment)
            self._kernels.quantize_pack(ratio(part.m, part.b), key=key, start=part.segment.start, out=out)
        for group, parts in _by_group(with_gradient):
            finite = self._kernels.foreach_update_quantize_pack_(
                _gradients(parts),
                [part.m for part in parts],
                [part.b for part in parts],
                beta=float(group["beta"]),
                key=key,
                starts=[part.segment.start for part in parts],
                outs=[_bytes_of(packed, part.segment) for part in parts],
            )
            self._finite.append(finite)
        return packed

    def _split(self, bucket: Bucket) -> tuple[list[_Part], list[_Part]]:
        """Note which parameters have a gradient; return those whose averages change and those whose averages stay."""
        changing: list[_Part] = []
        staying: list[_Part] = []
        for part in self._parts[bucket.index]:
            has_gradient = _gradient(part) is not None
            self._has_gradient[part.segment.index] = int(has_gradient)
            (changing if has_gradient and not self._refused else staying).append(part)
        return changing, staying

    def _is_trained(self, segment: Segment) -> bool:
        """Tell whether a parameter may have a gradient in this step; what a frozen one still holds does not count."""
        return self._slots[segment.index].parameter.requires_grad


def _agreed(signs: torch.Tensor) -> Protocol:
    """Return what a rank alone says, without a message."""
    return signs
    yield


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in logical order: a view where they lie so in memory, else a copy."""
    return tensor.resolve_neg().contiguous().view(-1)


def _part(segment: Segment, slot: Slot) -> _Part:
    return _Part(segment, slot, slot.state["m"].view(-1), slot.state["b"].view(-1))


def _gradient(part: _Part) -> torch.Tensor | None:
    return part.slot.parameter.grad if part.slot.parameter.requires_grad else None


def _gradients(parts: Sequence[_Part]) -> list[torch.Tensor]:
    return [flattened(part.slot.parameter.grad) for part in parts if part.slot.parameter.grad is not None]


def _by_group(parts: Sequence[_Part]) -> list[tuple[dict[str, Any], list[_Part]]]:
    """Return the parts of each group of parameters, with its settings."""
    found: dict[int, tuple[dict[str, Any], list[_Part]]] = {}
    for part in parts:
        found.setdefault(id(part.slot.group), (part.slot.group, []))[1].append(part)
    return list(found.values())


def _elements_of(u: torch.Tensor, segment: Segment) -> torch.Tensor:
    """Return the elements of a bucket's updates that belong to one parameter."""
    return u[segment.offset : segment.offset + segment.numel]


def _bytes_of(packed: torch.Tensor, segment: Segment) -> torch.Tensor:
    """Return the bytes of a bucket's packed signs that hold one parameter."""
    first = segment.offset // BITS_PER_BYTE
    return packed[first : first + packed_numel(segment.numel)]
