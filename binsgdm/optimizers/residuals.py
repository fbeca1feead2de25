"""What rounding has lost so far on this rank: flat tensors, with views in the state of every parameter.

There checkpoints of every kind find them.
"""

import warnings
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from binsgdm.comm import RankContext, piece_start, slice_start
from binsgdm.comm.flat_buckets import FlatBucket
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import zeros
from binsgdm.kernels.keys import MAX_SHAPED_VECTORS, SCALE, RandomStream
from binsgdm.kernels.random import dither
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

    def stretch(self, bucket: FlatBucket) -> tuple[int, int]:
        """Return first element in the flat order and number of those that this rank rounds of a bucket."""
        return self.starts[bucket.index], self.numels[bucket.index]

    @property
    def limit(self) -> int:
        """What no residual of it exceeds."""
        return self.num_rows or SCALE

    def draw(self, index: int, context: RankContext, out: torch.Tensor) -> None:
        """Write the residual of a bucket's elements before the first step."""
        # Step 0, which no step of training has: its draws are used nowhere else.
        key = replace(context, step=0).key(self.stream)
        for lo in range(0, out.numel(), _DRAWN_NUMEL):  # or it would be there twice, beside what draws take
            piece, start = out[lo : lo + _DRAWN_NUMEL], self.starts[index] + lo
            piece.copy_(dither(key, start=start, numel=piece.numel(), limit=self.limit, device=out.device))


def quantizations(buckets: Sequence[FlatBucket], context: RankContext, scheme: Scheme) -> list[Quantization]:
    """Return those of an exchange, first that of m / b; merging a single vector changes nothing and is none."""
    local, world, nodes = context.ranks_per_node, context.world_size, context.num_nodes
    is_flat = scheme.topology == "flat"
    # By the number of parts that a bucket is cut into: where this rank's begins.
    starts = {
        world: [piece_start(bucket, context, is_flat=is_flat) for bucket in buckets],
        local: [slice_start(bucket, context) for bucket in buckets],
        1: [bucket.start for bucket in buckets],
    }
    rows: list[tuple[RandomStream, int | None, int]] = [(RandomStream.LOCAL, None, local)]
    if is_flat:
        rows = [(RandomStream.LOCAL, None, 1)]
    elif scheme.intra_node_dtype == "one_bit":
        rows = [(RandomStream.INTRA_NODE, None, 1), (RandomStream.LOCAL, local, local)]
    rows.append((RandomStream.MERGE, world if is_flat else nodes, world))
    return [
        Quantization(
            stream=stream,
            num_rows=num_rows,
            starts=tuple(starts[parts]),
            numels=tuple(bucket.numel // parts for bucket in buckets),
        )
        for stream, num_rows, parts in rows
        if num_rows != 1
    ]


class View(NamedTuple):
    """What one residual has of one parameter, in a flat tensor; `name` is that in the parameter's state."""

    number: int
    name: str
    values: torch.Tensor


class ResidualViews:
    """A rank's residuals in the states of its parameters, empty where it rounds nothing of one.

    Args:
        states: of all parameters, in order.
        views: of every residual and every parameter.
        names: of all residuals that a state may have.
    """

    def __init__(self, states: Sequence[dict[str, Any]], views: Sequence[View], names: Collection[str]) -> None:
        self._states, self._views, self._names = states, views, names

    def check(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Refuse states with residuals that cannot be of these views."""
        for view in self._views:
            residual = states[view.number].get(view.name)
            if residual is not None and residual is not view.values:
                self.check_fits(view, residual)

    @abstractmethod
    def check_fits(self, view: View, residual: Any) -> None:
        """Refuse what cannot be the residual of a view."""

    @property
    def are_in_place(self) -> bool:
        """Tell whether nobody has put others into the states."""
        return all(self._states[number].get(name) is values for number, name, values in self._views)

    def take_over(self) -> None:
        """Go on with the residuals that the states have."""
        for number, name, values in self._views:
            residual = self._states[number].get(name)
            if residual is not None and residual is not values:
                values.copy_(residual)
        self.put()

    def put(self) -> None:
        """Let the states have the views, and no others."""
        drop(self._states, self._names)
        for number, name, values in self._views:
            self._states[number][name] = values


def drop(states: Sequence[dict[str, Any]], names: Collection[str]) -> None:
    """Let the states have no residuals of these names."""
    for state in states:
        for name in names:
            state.pop(name, None)


class RoundingResiduals(ResidualViews):
    """Those of all quantizations of this rank; they go on where the state has some that fit, and else are drawn.

    Raises:
        BinsgdmError: the state has residuals of this layout that cannot be, or too many vectors are merged.
    """

    def __init__(
        self,
        param_states: Sequence[ParamState],
        quantizations: Sequence[Quantization],
        buckets: Sequence[FlatBucket],
        context: RankContext,
        layout: str,
    ) -> None:
        self.layout, self._quantizations = layout, quantizations
        self._limits = {quantization.name: quantization.limit for quantization in quantizations}
        for quantization in self._quantizations:
            if quantization.num_rows is not None and quantization.num_rows > MAX_SHAPED_VECTORS:
                raise BinsgdmError(
                    f"BinSGDM: rounding='shaped': merges {quantization.num_rows} vectors of signs: must be at most "
                    f"{MAX_SHAPED_VECTORS}; give rounding='random'"
                )
        device = param_states[0].parameter.device
        self._pieces = {
            quantization.stream: torch.split(_zeros(sum(quantization.numels), device), list(quantization.numels))
            for quantization in self._quantizations
        }
        self._of_bucket = [{stream: of[index] for stream, of in self._pieces.items()} for index in range(len(buckets))]
        # Where this rank rounds nothing of a parameter: all ranks save tensors of the same names.
        none = torch.empty(0, dtype=torch.int16, device=device)
        views = [
            View(number, quantization.name, values)
            for quantization in self._quantizations
            for number, values in (
                dict.fromkeys(range(len(param_states)), none) | self._parts(quantization, buckets)
            ).items()
        ]
        super().__init__([param_state.state for param_state in param_states], views, NAMES.values())
        self._begin(param_states[0].group.get("residual_layout", ""), context)

    def of(self, bucket: FlatBucket) -> dict[RandomStream, torch.Tensor]:
        """Return those of a bucket's elements that this rank rounds; kernels change them in place."""
        return self._of_bucket[bucket.index]

    def check_fits(self, view: View, residual: Any) -> None:
        """Refuse a residual of another dtype or shape, or one that rounding never leaves."""
        check_residual(view.number, view.name, residual, limit=self._limits[view.name], numel=view.values.numel())

    def refresh(self) -> None:
        """Go on with the residuals that somebody has put into the state."""
        if not self.are_in_place:
            self.check(self._states)
            self.take_over()

    def _parts(self, quantization: Quantization, buckets: Sequence[FlatBucket]) -> dict[int, torch.Tensor]:
        """Return by its number what this rank rounds of every parameter."""
        parts = {}
        for bucket, start, piece in zip(buckets, quantization.starts, self._pieces[quantization.stream], strict=True):
            for segment in bucket.segments:
                first, end = segment.start - start, segment.start + segment.numel - start
                parts[segment.index] = piece[max(first, 0) : max(end, 0)]
        return parts

    def _begin(self, saved_layout: str, context: RankContext) -> None:
        has_any = any(view.name in self._states[view.number] for view in self._views)
        if fits := has_any and saved_layout == self.layout:
            self.check(self._states)
        for quantization in self._quantizations:
            # Those that fit go on; what was never saved, as from another scheme, begins with draws.
            if not fits or any(quantization.name not in state for state in self._states):
                for index, piece in enumerate(self._pieces[quantization.stream]):
                    quantization.draw(index, context, piece)
        if not fits and context.step > 1:
            reason = (
                f"those of the state belong to {saved_layout!r}, here is"
                if has_any and saved_layout
                else "the state has none for"
            )
            warnings.warn(
                f"BinSGDM: residuals are drawn anew: {reason} {self.layout!r}; the run goes on, but not bit for bit",
                stacklevel=frames_to_the_user(),
            )
        self.take_over() if fits else self.put()


def check_residual(number: int, name: str, residual: Any, *, limit: int = SCALE, numel: int | None = None) -> None:
    """Refuse what no rounding leaves in the state of a parameter, of so many elements if they are known."""
    where = f"BinSGDM: parameter {number}: {name}"
    check_flat(where, residual, torch.int16, numel, _REPAIR)
    if residual.numel():
        least, greatest = torch.stack(residual.aminmax()).tolist()
        if least < -limit or greatest > limit:
            raise BinsgdmError(f"{where} from {least} to {greatest}: must be from {-limit} to {limit}; {_REPAIR}")


def check_flat(where: str, residual: Any, dtype: torch.dtype, numel: int | None, repair: str) -> None:
    """Refuse a residual that is no tensor of this dtype, of one dimension and as many elements, if they are known."""
    if not isinstance(residual, torch.Tensor):
        raise BinsgdmError(f"{where}: {shown(residual)}: must be a tensor; {repair}")
    shape = tuple(residual.shape)
    if residual.dtype != dtype or len(shape) != 1 or shape[0] != (shape[0] if numel is None else numel):
        wanted = "one dimension" if numel is None else f"shape {(numel,)}"
        raise BinsgdmError(f"{where} of {residual.dtype} and shape {shape}: must be {dtype} of {wanted}; {repair}")


def _zeros(numel: int, device: torch.device) -> torch.Tensor:
    """Return int16 zeros, on a CPU from memory with huge pages where the system offers them, as m and b."""
    return zeros(max(1, -(-numel // 2)), device).view(torch.int16)[:numel]
