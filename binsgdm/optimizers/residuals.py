"""What shaped rounding has lost so far on this rank: a flat tensor for each quantization, with views in the state."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from binsgdm.comm import RankContext, piece_start, slice_start
from binsgdm.comm.flat_buckets import FlatBucket
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import zeros
from binsgdm.kernels.functional import MAX_SHAPED_VECTORS, SCALE
from binsgdm.kernels.random import RandomStream, dither
from binsgdm.optimizers.base import ParamState, frames_to_the_user
from binsgdm.optimizers.settings import Scheme

NAMES = {
    RandomStream.INTRA_NODE: "intra_node_residual",
    RandomStream.LOCAL: "local_residual",
    RandomStream.MERGE: "merge_residual",
}
"""Under which each residual lies in the state of a parameter, by the stream that its start is drawn from."""
_DRAWN_NUMEL = 1 << 20
_REPAIR = "load this rank's own state, undamaged, or take all residuals out of it to begin with new ones"


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A step of an exchange that rounds to signs, and which elements this rank rounds there.

    Attributes:
        stream: names it.
        num_rows: vectors of signs that it merges; None where it rounds m / b.
        starts: first element of each bucket's in the flat order.
        numels: how many of each bucket.
    """

    stream: RandomStream
    num_rows: int | None
    starts: tuple[int, ...]
    numels: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of its residual in the state of a parameter."""
        return NAMES[self.stream]

    @property
    def limit(self) -> int:
        """What no residual of it exceeds."""
        return self.num_rows or SCALE

    def draw(self, index: int, context: RankContext, out: torch.Tensor) -> None:
        """Write the residual of a bucket's elements before the first step."""
        key = replace(context, step=0).key(self.stream)
        for lo in range(0, out.numel(), _DRAWN_NUMEL):  # or it would be there twice, beside what draws take
            piece, start = out[lo : lo + _DRAWN_NUMEL], self.starts[index] + lo
            piece.copy_(dither(key, start=start, numel=piece.numel(), limit=self.limit, device=out.device))


def quantizations(buckets: Sequence[FlatBucket], context: RankContext, scheme: Scheme) -> list[Quantization]:
    """Return those of an exchange; merging a single vector changes nothing and is none."""

    def of(stream: RandomStream, num_rows: int | None, starts: Sequence[int], parts: int) -> Quantization:
        numels = tuple(bucket.numel // parts for bucket in buckets)
        return Quantization(stream=stream, num_rows=num_rows, starts=tuple(starts), numels=numels)

    whole, slices = [bucket.start for bucket in buckets], [slice_start(bucket, context) for bucket in buckets]
    pieces = [piece_start(bucket, context, is_flat=scheme.topology == "flat") for bucket in buckets]
    local, world = context.ranks_per_node, context.world_size
    if scheme.topology == "flat":
        merged, found = world, [of(RandomStream.LOCAL, None, whole, 1)]
    elif scheme.intra_node_dtype == "one_bit":
        merged, found = context.num_nodes, [of(RandomStream.INTRA_NODE, None, whole, 1)]
        if local > 1:
            found.append(of(RandomStream.LOCAL, local, slices, local))
    else:
        merged, found = context.num_nodes, [of(RandomStream.LOCAL, None, slices, local)]
    if merged > 1:
        found.append(of(RandomStream.MERGE, merged, pieces, world))
    return found


class _View(NamedTuple):
    """The residual of one parameter at one quantization, in the flat tensor."""

    number: int
    name: str
    limit: int
    values: torch.Tensor


class RoundingResiduals:
    """Those of all quantizations of this rank; they go on where the state has some that fit, and else are drawn.

    Args:
        param_states: parameters with their state, which gets the views.
        buckets: in which they travel.
        context: of this rank in the coming step.
        scheme: of the exchange.
        layout: in words, which elements this rank rounds where.

    Raises:
        BinsgdmError: the state has residuals of this layout that cannot be, or too many vectors are merged.
    """

    def __init__(
        self,
        param_states: Sequence[ParamState],
        *,
        buckets: Sequence[FlatBucket],
        context: RankContext,
        scheme: Scheme,
        layout: str,
    ) -> None:
        self._states = [param_state.state for param_state in param_states]
        self._quantizations = quantizations(buckets, context, scheme)
        for one in self._quantizations:
            _check_count(one.num_rows)
        self.layout = layout
        device = param_states[0].parameter.device
        self._none = torch.empty(0, dtype=torch.int16, device=device)
        self._pieces = {
            one.stream: torch.split(_zeros(sum(one.numels), device), list(one.numels)) for one in self._quantizations
        }
        self._of_bucket = [{stream: of[index] for stream, of in self._pieces.items()} for index in range(len(buckets))]
        self._views = [view for one in self._quantizations for view in self._views_of(one, buckets)]
        self._begin(param_states[0].group.get("residual_layout", ""), context)

    def of(self, bucket: FlatBucket) -> dict[RandomStream, torch.Tensor]:
        """Return those of a bucket's elements that this rank rounds; kernels change them in place."""
        return self._of_bucket[bucket.index]

    def check(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Refuse residuals that cannot be of this layout.

        Raises:
            BinsgdmError: one of another dtype or shape, or one that rounding never leaves.
        """
        for view in self._views:
            given = states[view.number].get(view.name)
            if given is not None and given is not view.values:
                check_residual(view.number, view.name, given, limit=view.limit, numel=view.values.numel())

    def refresh(self) -> None:
        """Go on with the residuals that somebody has put into the state."""
        if any(self._states[number].get(name) is not values for number, name, _, values in self._views):
            self.check(self._states)
            self._take_over()

    def _views_of(self, one: Quantization, buckets: Sequence[FlatBucket]) -> list[_View]:
        """Return those of every parameter, empty where this rank rounds none of its elements."""
        pieces = self._pieces[one.stream]
        found = dict.fromkeys(range(len(self._states)), self._none)
        for bucket, start, piece in zip(buckets, one.starts, pieces, strict=True):
            for segment in bucket.segments:
                first, end = segment.start - start, segment.start + segment.numel - start
                found[segment.index] = piece[max(first, 0) : max(end, 0)]
        return [_View(number, one.name, one.limit, values) for number, values in found.items()]

    def _begin(self, saved_layout: str, context: RankContext) -> None:
        has_any = any(view.name in self._states[view.number] for view in self._views)
        if fits := has_any and saved_layout == self.layout:
            self.check(self._states)
        for one in self._quantizations:
            if not fits or any(one.name not in state for state in self._states):
                for index, piece in enumerate(self._pieces[one.stream]):
                    one.draw(index, context, piece)
        if not fits and context.step > 1:
            found = (
                f"those of the state belong to {saved_layout!r}, here is"
                if has_any and saved_layout
                else "the state has none for"
            )
            warnings.warn(
                f"BinSGDM: residuals are drawn anew: {found} {self.layout!r}; the run goes on, but not bit for bit",
                stacklevel=frames_to_the_user(),
            )
        self._take_over() if fits else self._put()

    def _take_over(self) -> None:
        for number, name, _, values in self._views:
            given = self._states[number].get(name, values)
            if given is not values:
                values.copy_(given)
        self._put()

    def _put(self) -> None:
        """Let the state have the views, and no residual of another scheme."""
        for state in self._states:
            for name in NAMES.values():
                state.pop(name, None)
        for number, name, _, values in self._views:
            self._states[number][name] = values


def check_residual(number: int, name: str, given: Any, *, limit: int = SCALE, numel: int | None = None) -> None:
    """Refuse what no rounding leaves.

    Args:
        number: of the parameter.
        name: in its state.
        given: to check.
        limit: which it must not exceed.
        numel: its elements, if they are known.

    Raises:
        BinsgdmError: it is no residual of int16 of one dimension and this size, or exceeds the limit.
    """
    if not isinstance(given, torch.Tensor):
        raise BinsgdmError(f"BinSGDM: parameter {number}: {name}: {shown(given)}: must be a tensor; {_REPAIR}")
    shape = tuple(given.shape)
    if given.dtype != torch.int16 or len(shape) != 1 or shape[0] != (shape[0] if numel is None else numel):
        wanted = "one dimension" if numel is None else f"shape {(numel,)}"
        raise BinsgdmError(
            f"BinSGDM: parameter {number}: {name} of {given.dtype} and shape {shape}: must be torch.int16 of {wanted}; "
            f"{_REPAIR}"
        )
    if given.numel():
        least, greatest = torch.stack(given.aminmax()).tolist()
        if least < -limit or greatest > limit:
            raise BinsgdmError(
                f"BinSGDM: parameter {number}: {name} from {least} to {greatest}: must be from {-limit} to {limit}; "
                f"{_REPAIR}"
            )


def _check_count(num_rows: int | None) -> None:
    if num_rows is not None and num_rows > MAX_SHAPED_VECTORS:
        raise BinsgdmError(
            f"BinSGDM: rounding='shaped': merges {num_rows} vectors of signs: must be at most {MAX_SHAPED_VECTORS}; "
            "give rounding='random'"
        )


def _zeros(numel: int, device: torch.device) -> torch.Tensor:
    """Return int16 zeros, on a CPU from memory with huge pages where the system offers them, as m and b."""
    return zeros(max(1, -(-numel // 2)), device).view(torch.int16)[:numel]
