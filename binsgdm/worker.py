"""One rank's part of a step, bucket by bucket: update the momenta, exchange signs, apply them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from binsgdm import exchange, layout
from binsgdm.bits import packed_numel
from binsgdm.exchange import Conversation, Place
from binsgdm.functional import ratio
from binsgdm.kernels import Kernels
from binsgdm.layout import BITS_PER_BYTE, Bucket, Segment
from binsgdm.random import Stream

Scheme = Literal["hierarchical", "hierarchical_bf16", "hierarchical_one_bit", "flat"]
Carry = Callable[[Conversation], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A parameter, the group that it is in, and its optimizer state."""

    parameter: torch.Tensor
    group: dict[str, Any]
    state: dict[str, torch.Tensor]


class Worker:
    """What one rank does with its parameters; who carries the messages is given as `carry`."""

    def __init__(
        self, slots: Sequence[Slot], *, place: Place, scheme: Scheme, bucket_elements: int, kernels: Kernels
    ) -> None:
        self._slots = slots
        self._place = place
        self._scheme = scheme
        self._kernels = kernels
        numels = [slot.parameter.numel() for slot in slots]
        self.buckets = layout.build(numels, bucket_elements=bucket_elements, ranks=place.world_size)
        self.flags = torch.zeros(1 + len(slots), dtype=torch.uint8, device=slots[0].parameter.device)
        """What this rank saw in this step: a gradient that is not finite, then which parameters had one."""

    def begin(self, step: int) -> None:
        """Start a step: forget the flags of the last one, draw from a new place."""
        self._place = replace(self._place, step=step)
        self.flags.zero_()

    def survey(self, step: int) -> None:
        """Start a step and look at every bucket."""
        self.begin(step)
        for bucket in self.buckets:
            self.look(bucket)

    def look(self, bucket: Bucket) -> None:
        """Note which gradients of a bucket are there and whether all are finite, before anything is changed."""
        for segment in bucket.segments:
            gradient = self._slots[segment.index].parameter.grad
            if gradient is not None:
                self.flags[1 + segment.index] = 1
                if not self._kernels.is_finite(flattened(gradient)):
                    self.flags[0] = 1

    def signs(self, bucket: Bucket, carry: Carry) -> torch.Tensor:
        """Update the momenta of a bucket and return the packed signs that all ranks agreed on.

        A parameter without a gradient on this rank, or in a bucket with one that is not finite, keeps its momenta and
        sends its last update again.
        """
        if self._scheme in ("hierarchical", "hierarchical_bf16"):
            u = self._updates(bucket)
            bf16 = self._scheme == "hierarchical_bf16"
            return carry(exchange.hierarchical(u, bucket, self._place, self._kernels, bf16=bf16))
        inside = self._scheme == "hierarchical_one_bit"
        packed = self._packed_updates(bucket, Stream.INSIDE if inside else Stream.LOCAL)
        talk = exchange.hierarchical_one_bit if inside else exchange.flat
        return carry(talk(packed, bucket, self._place, self._kernels))

    def alone(self, bucket: Bucket) -> torch.Tensor:
        """Update the momenta of a bucket and return its packed signs, of this rank alone."""
        return self._packed_updates(bucket, Stream.LOCAL)

    def apply(self, bucket: Bucket, signs: torch.Tensor, has_gradient: Sequence[int]) -> None:
        """Move the parameters of a bucket that had a gradient on some rank."""
        for segment in bucket.segments:
            if has_gradient[segment.index]:
                slot = self._slots[segment.index]
                values = flattened(slot.parameter)
                self._kernels.unpack_apply_(
                    values,
                    _bytes_of(signs, segment),
                    lr=float(slot.group["lr"]),
                    weight_decay=float(slot.group["weight_decay"]),
                    maximize=bool(slot.group["maximize"]),
                )
                if values.data_ptr() != slot.parameter.data_ptr():
                    slot.parameter.copy_(values.view_as(slot.parameter))

    def _updates(self, bucket: Bucket) -> torch.Tensor:
        """Return u of a whole bucket, 0 in the padding."""
        u = torch.zeros(bucket.numel, dtype=torch.float32, device=self.flags.device)
        for segment in bucket.segments:
            slot = self._slots[segment.index]
            m, b = slot.state["m"].view(-1), slot.state["b"].view(-1)
            out = u[segment.offset : segment.offset + segment.numel]
            gradient = self._usable_gradient(segment)
            if gradient is None:
                out.copy_(ratio(m, b))
            else:
                self._kernels.update_(gradient, m, b, beta=float(slot.group["beta"]), out_u=out)
        return u

    def _packed_updates(self, bucket: Bucket, stream: Stream) -> torch.Tensor:
        """Return the packed signs of u of a whole bucket, 0 in the padding."""
        packed = torch.zeros(bucket.num_bytes, dtype=torch.uint8, device=self.flags.device)
        for segment in bucket.segments:
            slot = self._slots[segment.index]
            m, b = slot.state["m"].view(-1), slot.state["b"].view(-1)
            key, start, out = self._place.key(stream), segment.start, _bytes_of(packed, segment)
            gradient = self._usable_gradient(segment)
            if gradient is None:
                self._kernels.quantize_pack(ratio(m, b), key=key, start=start, out=out)
            else:
                beta = float(slot.group["beta"])
                self._kernels.update_quantize_pack_(gradient, m, b, beta=beta, key=key, start=start, out=out)
        return packed

    def _usable_gradient(self, segment: Segment) -> torch.Tensor | None:
        """Return the flat gradient, or None if there is none or this step's gradients are not finite."""
        gradient = self._slots[segment.index].parameter.grad
        return None if gradient is None or self.flags[0] else flattened(gradient)


def flattened(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in logical order: a view where memory allows, else a copy."""
    return tensor.detach().reshape(-1)


def _bytes_of(packed: torch.Tensor, segment: Segment) -> torch.Tensor:
    """Return the bytes of a bucket's packed signs that hold one parameter."""
    first = segment.offset // BITS_PER_BYTE
    return packed[first : first + packed_numel(segment.numel)]
