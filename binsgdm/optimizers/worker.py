"""One rank's part of a step, bucket by bucket: update the momenta, exchange signs, apply them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from operator import is_, itemgetter
from typing import Any, NamedTuple

import torch

from binsgdm import comm as exchange
from binsgdm.comm import Protocol, RankContext, flat_buckets, without_messages
from binsgdm.comm.flat_buckets import BITS_PER_BYTE, FlatBucket
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import Kernels, TensorColumn, zeros
from binsgdm.kernels.functional import packed_numel, ratio
from binsgdm.kernels.host_tensors import upload
from binsgdm.kernels.keys import RandomStream
from binsgdm.kernels.profiler_stages import staged
from binsgdm.optimizers.base import Flag, ParamState, copy_each
from binsgdm.optimizers.residuals import RoundingResiduals, quantizations
from binsgdm.optimizers.saved_state import check_average
from binsgdm.optimizers.settings import Scheme, gain_of, is_shaped, momenta_of, take_momentum

SKIPPED, REFUSED = 1, 2
"""First flags of a step that moves no rank: a gradient is not finite, or a rank cannot take it."""


class Worker:
    """What one rank does with its parameters; who carries the messages is up to the caller.

    Args:
        param_states: parameters with their state, in the order in which they were given.
        context: of this rank in the coming step.
        scheme: of the exchange.
        bucket_elements: of one message.
        kernels: which implementation.
        layout: in words, which elements this rank rounds where; residuals of another layout are drawn anew.

    Attributes:
        residuals: if rounding keeps what it loses.
        finite: of this step, each a bool scalar on the device that must hold: some gradients were finite.
    """

    def __init__(  # noqa: PLR0913
        self,
        param_states: Sequence[ParamState],
        *,
        context: RankContext,
        scheme: Scheme,
        bucket_elements: int,
        kernels: Kernels,
        layout: str = "",
    ) -> None:
        if any(hasattr(param_state.parameter, "to_local") for param_state in param_states):
            raise BinsgdmError("BinSGDM: sharded parameters (DTensor): join them with binsgdm.attach_fsdp")
        self._param_states = param_states
        self.parameters = [param_state.parameter for param_state in param_states]
        self._context = context
        self._scheme = scheme
        self._num_updates = context.num_nodes if scheme.average == "gradients" else context.world_size
        self._kernels = kernels
        self.device = self.parameters[0].device
        numels = [parameter.numel() for parameter in self.parameters]
        self.buckets = flat_buckets.build(numels, bucket_elements=bucket_elements, ranks=context.world_size)
        roundings = quantizations(self.buckets, context, scheme)
        self._rounding = roundings[0]  # that of m / b
        self.residuals: RoundingResiduals | None = None
        if is_shaped(param_states[0].group):
            self.residuals = RoundingResiduals(param_states, roundings, self.buckets, context, layout)
        self._lay_out()
        self._u = self._packed = torch.empty(0)

    def _lay_out(self) -> None:
        """Take views of the state that the parameters have now."""
        self._pieces = [_pieces_of(bucket, self._param_states) for bucket in self.buckets]
        self._states = [
            self._param_states[segment.index].state for bucket in self.buckets for segment in bucket.segments
        ]
        self._addresses = self._addresses_now()
        # Two, since a parameter may have a gradient on another rank only: those that are updated, those that move.
        self._moved: list[_Batches] = []
        self._updated: list[_Batches] = []
        for bucket, pieces in zip(self.buckets, self._pieces, strict=True):
            whole, rounded = (bucket.start, bucket.numel), self._rounding.stretch(bucket)
            updated = rounded if self._scheme.average == "gradients" else whole
            self._moved.append(_batches(pieces, *whole))
            self._updated.append(_batches(pieces, *updated, self._residual(bucket) if updated == rounded else None))

    def _addresses_now(self) -> list[int]:
        # Of every parameter, in every step.
        averages = [*map(itemgetter("m"), self._states), *map(itemgetter("b"), self._states)]
        return list(map(torch.Tensor.data_ptr, averages))

    def begin_step(self, step: int) -> tuple[FlatBucket, ...]:
        """Start a step: forget the flags of the last one; the step's number makes its draws new.

        Returns:
            The buckets that travel: those with a parameter that is trained. All ranks must train the same ones.
        """
        take_momentum(param_state.group for param_state in self._param_states)
        self._context = replace(self._context, step=step)
        self._is_skipped = self._is_refused = False
        self._has_gradient = [0] * len(self._param_states)
        self.finite: list[torch.Tensor] = []
        self._taken: dict[int, torch.Tensor] = {}
        self._numbers: dict[tuple[int, str], float] = {}
        # What a frozen parameter still holds does not count.
        return tuple(
            bucket
            for bucket in self.buckets
            if any(self.parameters[segment.index].requires_grad for segment in bucket.segments)
        )

    def refresh(self) -> None:
        """Go on with the tensors that somebody has put into the state, which the flat views here do not see.

        Raises:
            BinsgdmError: they cannot be; the step goes on with those before.
        """
        if self._addresses_now() != self._addresses:
            for number, param_state in enumerate(self._param_states):
                for name in ("m", "b"):
                    average = param_state.state.get(name)
                    check_average(f"BinSGDM: parameter {number}", name, average, param_state.parameter.shape)
            self._lay_out()
        if self.residuals is not None:
            self.residuals.refresh()

    def refuse(self) -> None:
        """Take part in this step, which will not count, without any gradient, as one of them cannot be exchanged."""
        self._is_skipped = self._is_refused = True

    def num_expected_gradients(self, bucket: FlatBucket) -> int:
        """Return how many gradients of a bucket backward will bring, if it reaches all that it could."""
        return sum(self.parameters[segment.index].requires_grad for segment in bucket.segments)

    def skip_step_if(self, flag: Flag) -> None:
        """Let this step not count if the flag says so; if the host knows, the averages stay from here on."""
        if isinstance(flag, torch.Tensor):
            self.finite.append(flag.logical_not())
        else:
            self._is_skipped |= flag

    def take_gradient(self, index: int, gradient: torch.Tensor) -> None:
        """Use this as the gradient of a parameter in this step, whatever `parameter.grad` is when its bucket leaves.

        DDP puts a view of its bucket there, which it fills later. It stays in memory until it is dropped.
        """
        self._taken[index] = gradient

    def drop_replaced_gradients(self, bucket: FlatBucket) -> list[torch.Tensor]:
        """Return the taken gradients of a bucket that `parameter.grad` holds no more, for the caller to free."""
        held = [(s.index, taken) for s in bucket.segments if (taken := self._taken.get(s.index)) is not None]
        replaced = [index for index, taken in held if self.parameters[index].grad is not taken]
        return [self._taken.pop(index) for index in replaced]

    def drop_gradients(self) -> None:
        """Let go of the taken gradients: `zero_grad` is to free them."""
        self._taken = {}

    def finite_check_flags(self, *, is_refused: bool = False, appended: bytes = b"") -> torch.Tensor:
        """Return this rank's flags of this step; the finite check takes their maximum over all ranks.

        Returns:
            uint8 (1 + parameters + appended): `SKIPPED` where a gradient is not finite, or `REFUSED`; then which
            parameters had a gradient.
        """
        is_on_cpu = self.device.type == "cpu"  # whose flags the host reads without waiting
        is_skipped = self._is_skipped or (is_on_cpu and not all(map(bool, self.finite)))
        stop = REFUSED if is_refused else SKIPPED * is_skipped
        flags = upload([stop, *self._has_gradient, *appended], torch.uint8, self.device)
        if self.finite and not is_on_cpu and not stop:
            # Computed on the device: the host reads nothing before the all-reduce, and then all flags at once.
            flags[0] |= torch.stack(self.finite).all().logical_not()
        return flags

    def signs(self, bucket: FlatBucket) -> Protocol:
        """Update the momenta of a bucket; return the protocol that gives the packed signs that all ranks agree on.

        A parameter without a gradient on this rank keeps its momenta and sends its last update again, and so does an
        element whose gradient is not finite. Where gradients are averaged in the node, it counts as a gradient of 0.
        """
        scheme, bf16 = self._scheme, self._scheme.intra_node_dtype == "bf16"
        where, residuals = (bucket, self._context, self._kernels), self._residuals_of(bucket)
        if scheme.topology == "flat":
            packed = self._compute_packed_updates(bucket)
            is_alone = self._context.world_size == 1
            return without_messages(packed) if is_alone else exchange.flat(packed, *where, residuals)
        if scheme.intra_node_dtype == "one_bit":
            return exchange.hierarchical_one_bit(self._compute_packed_updates(bucket), *where, residuals)
        if scheme.average == "gradients":
            values, of_slice = self._copy_gradients(bucket), self._compute_packed_slice
        else:
            values, of_slice = self._compute_updates(bucket), self._round_slice
        return exchange.hierarchical(values, *where, quantize=partial(of_slice, bucket), residuals=residuals, bf16=bf16)

    @staged("apply")
    def apply(self, bucket: FlatBucket, signs: torch.Tensor, has_gradient: Sequence[int]) -> None:
        """Move the parameters of a bucket that had a gradient on some rank."""
        chosen = tuple(bool(has_gradient[segment.index]) for segment in bucket.segments)
        for batch in self._moved[bucket.index](chosen):
            values = all_in_order(batch.parameters)
            self._kernels.unpack_apply_(
                values,
                batch.views_in(signs, are_kept=self._context.world_size == 1),
                lr=self._number(batch.group, "lr"),
                weight_decay=self._number(batch.group, "weight_decay"),
                maximize=bool(batch.group["maximize"]),
            )
            # Kernels write past autograd, which has to know.
            torch.autograd.graph.increment_version(batch.parameters)
            if not all(map(is_, values, batch.parameters)):
                for parameter, moved in zip(batch.parameters, values, strict=True):
                    if moved is not parameter:
                        parameter.copy_(moved)

    def _number(self, group: Mapping[str, Any], name: str) -> float:
        """Return a setting as a number, read once a step: for one on a GPU the host waits."""
        key = (id(group), name)
        if key not in self._numbers:
            self._numbers[key] = float(group[name])
        return self._numbers[key]

    def _bucket_buffer(self, bucket: FlatBucket) -> torch.Tensor:
        """Return fp32 memory for a bucket, 0 in the padding."""
        if not self._u.numel():  # kept from step to step, as fresh memory is slow (decision 5)
            self._u = zeros(max(bucket.numel for bucket in self.buckets), self.device)
        u = self._u[: bucket.numel]
        # The last exchange wrote to all of this memory, and padding is exchanged as well: it must be the same on all
        # ranks.
        if gaps := [u[first:end] for first, end in bucket.gaps]:
            torch._foreach_zero_(gaps)
        return u

    def _packed_buffer(self, start: int, num_bytes: int) -> torch.Tensor:
        """Return memory for packed signs from an element of the flat order on, 0 in the padding."""
        if not self._packed.numel():  # kept, too
            size = sum(bucket.num_bytes for bucket in self.buckets)
            self._packed = torch.zeros(size, dtype=torch.uint8, device=self.device)
        return self._packed[start // BITS_PER_BYTE :][:num_bytes]

    @staged("copy_gradients")
    def _copy_gradients(self, bucket: FlatBucket) -> torch.Tensor:
        """Return the gradients of a whole bucket, 0 in the padding and where there is none."""
        values = self._bucket_buffer(bucket)
        pieces = [values[segment.offset :][: segment.numel] for segment in bucket.segments]
        pairs = list(zip(pieces, self._gradients(bucket), strict=True))
        filled = [(elements.view(gradient.shape), gradient) for elements, gradient in pairs if gradient is not None]
        copy_each([elements for elements, _ in filled], [gradient for _, gradient in filled])
        # A parameter without a gradient on this rank counts as 0 in the mean of the node, as in DDP.
        if missing := [elements for elements, gradient in pairs if gradient is None]:
            torch._foreach_zero_(missing)
        return values

    @staged("update")
    def _compute_packed_slice(self, bucket: FlatBucket, mean: torch.Tensor) -> torch.Tensor:
        """Update the momenta of this rank's slice of a bucket; return its packed signs, 0 in the padding."""
        # A slice may begin in the middle of a parameter: only its part of m and b is updated here, the other ranks of
        # the node update theirs.
        first, _ = self._rounding.stretch(bucket)
        packed = self._packed_buffer(first, mean.numel() // BITS_PER_BYTE)
        for batch in self._updated[bucket.index]((True,) * len(bucket.segments)):
            self._update_and_round(batch, batch.views_in(mean), packed)
        return packed

    @staged("round")
    def _round_slice(self, bucket: FlatBucket, mean: torch.Tensor) -> torch.Tensor:
        """Return the packed signs of this rank's slice of the mean of the node's updates."""
        signs = torch.empty(mean.numel() // BITS_PER_BYTE, dtype=torch.uint8, device=mean.device)
        first, _ = self._rounding.stretch(bucket)
        for gain, start, end in self._gains(bucket, first, first + mean.numel()):
            lo, hi = start - first, end - first
            self._round(bucket, mean[lo:hi], start, gain, signs[lo // BITS_PER_BYTE : hi // BITS_PER_BYTE])
        return signs

    def _gain_of(self, group: Mapping[str, Any]) -> float:
        return gain_of(group, self._context.step, self._num_updates)

    def _gains(self, bucket: FlatBucket, first: int, end: int) -> list[tuple[float, int, int]]:
        """Return the gains of a stretch, each with first element and end in the flat order."""
        pieces = self._pieces[bucket.index]
        gains = [self._gain_of(piece.group) for piece in pieces]
        if len(set(gains)) == 1:
            return [(gains[0], first, end)]
        # Parameters with other decays: each up to the next, so that padding has a gain as well.
        ends = [piece.start for piece in pieces[1:]] + [bucket.start + bucket.numel]
        bounds = [
            (gain, max(piece.start, first), min(last, end))
            for gain, piece, last in zip(gains, pieces, ends, strict=True)
        ]
        return [(gain, lo, hi) for gain, lo, hi in bounds if lo < hi]

    @staged("update")
    def _compute_updates(self, bucket: FlatBucket) -> torch.Tensor:
        """Return u of a whole bucket, 0 in the padding."""
        u = self._bucket_buffer(bucket)
        gradients = self._gradients(bucket)
        for piece in self._staying(bucket, gradients):
            # The averages stay, and the last update is sent again: the exchange needs a vote of every rank for every
            # element.
            u[piece.start - bucket.start : piece.end - bucket.start] = ratio(piece.m, piece.b)
        for batch, some in self._changing(bucket, gradients):
            arguments = some, batch.ms, batch.bs
            self.finite.append(self._kernels.update_(*arguments, **momenta_of(batch.group), out_u=batch.views_in(u)))
        return u

    @staged("update")
    def _compute_packed_updates(self, bucket: FlatBucket) -> torch.Tensor:
        """Return the packed signs of u of a whole bucket, 0 in the padding."""
        # Signs lie where they are sent from: no copy is made.
        packed = self._packed_buffer(bucket.start, bucket.num_bytes)
        gradients = self._gradients(bucket)
        for piece in self._staying(bucket, gradients):
            first = (piece.start - bucket.start) // BITS_PER_BYTE
            out = packed[first : first + packed_numel(piece.end - piece.start)]
            self._round(bucket, ratio(piece.m, piece.b), piece.start, self._gain_of(piece.group), out)
        for batch, some in self._changing(bucket, gradients):
            self._update_and_round(batch, some, packed)
        return packed

    def _update_and_round(self, batch: "Batch", gradients: Sequence[torch.Tensor], packed: torch.Tensor) -> None:
        """Update the momenta of a batch; write its packed signs."""
        outs, gain = batch.views_in(packed), self._gain_of(batch.group)
        arguments = gradients, batch.ms, batch.bs
        if self.residuals is not None:
            finite = self._kernels.update_shape_pack_(
                *arguments, batch.residuals, **momenta_of(batch.group), gain=gain, out=outs
            )
        else:
            key = self._context.key(self._rounding.stream)
            finite = self._kernels.update_quantize_pack_(
                *arguments, **momenta_of(batch.group), key=key, start=batch.starts, out=outs, gain=gain
            )
        self.finite.append(finite)

    def _round(self, bucket: FlatBucket, u: torch.Tensor, start: int, gain: float, out: torch.Tensor) -> None:
        """Write the packed signs of updates, which begin at an element of the flat order."""
        if (residual := self._residual(bucket)) is not None:
            first = start - self._rounding.stretch(bucket)[0]
            self._kernels.shape_pack_(u, residual[first : first + u.numel()], gain=gain, out=out)
        else:
            key = self._context.key(self._rounding.stream)
            self._kernels.quantize_pack(u, key=key, start=start, out=out, gain=gain)

    def _residuals_of(self, bucket: FlatBucket) -> dict[RandomStream, torch.Tensor]:
        return {} if self.residuals is None else self.residuals.of(bucket)

    def _residual(self, bucket: FlatBucket) -> torch.Tensor | None:
        """Return that of the m / b of a bucket that this rank rounds, if rounding keeps what it loses."""
        return self._residuals_of(bucket).get(self._rounding.stream)

    def _gradients(self, bucket: FlatBucket) -> list[torch.Tensor | None]:
        """Return the gradient of each parameter of a bucket, and note which has one."""
        numbers = [segment.index for segment in bucket.segments]
        if self._is_refused:
            return [None] * len(numbers)
        parameters = [self.parameters[number] for number in numbers]
        gradients = [parameter.grad if parameter.requires_grad else None for parameter in parameters]
        if self._taken:
            taken = [self._taken.get(number) for number in numbers]
            gradients = [
                gradient if earlier is None or not parameter.requires_grad else earlier
                for gradient, earlier, parameter in zip(gradients, taken, parameters, strict=True)
            ]
        for number, gradient in zip(numbers, gradients, strict=True):
            self._has_gradient[number] = int(gradient is not None)
        return gradients

    def _staying(self, bucket: FlatBucket, gradients: Sequence[torch.Tensor | None]) -> "list[_Piece]":
        """Return the parameters whose averages stay."""
        # In a step that will not count, all of them: the gradients are known not to be finite.
        pairs = zip(self._pieces[bucket.index], gradients, strict=True)
        return [piece for piece, gradient in pairs if gradient is None or self._is_skipped]

    def _changing(
        self, bucket: FlatBucket, gradients: Sequence[torch.Tensor | None]
    ) -> "list[tuple[Batch, TensorColumn]]":
        """Return the parameters whose averages change, with their gradients."""
        chosen = tuple(gradient is not None and not self._is_skipped for gradient in gradients)
        return [
            (batch, all_in_order([g for n in batch.numbers if (g := gradients[n]) is not None]))
            for batch in self._updated[bucket.index](chosen)
        ]


class _Piece(NamedTuple):
    """What a stretch of a bucket has of a parameter: first element and end in the flat order, m and b of these, flat.

    Attributes:
        number: of the parameter in the bucket.
    """

    number: int
    parameter: torch.Tensor
    group: dict[str, Any]
    start: int
    end: int
    m: torch.Tensor
    b: torch.Tensor


def _pieces_of(bucket: FlatBucket, param_states: Sequence[ParamState]) -> list[_Piece]:
    """Return the parameters of a bucket, whole."""
    pieces = []
    for number, segment in enumerate(bucket.segments):
        param_state, end = param_states[segment.index], segment.start + segment.numel
        m, b = param_state.state["m"].view(-1), param_state.state["b"].view(-1)
        pieces.append(_Piece(number, param_state.parameter, param_state.group, segment.start, end, m, b))
    return pieces


class Batch:
    """Parameters with the same settings, or what a stretch of a bucket has of them, as the lists that kernels take.

    Kept from step to step: a model has hundreds of small tensors, and on a GPU a step may take less time than the host
    needs for a few calls for each of them.

    The pieces are in the flat order, none empty; a residual is that of the stretch, if rounding keeps what it loses.
    """

    def __init__(self, pieces: Sequence[_Piece], first: int, numel: int, residual: torch.Tensor | None) -> None:
        self.group = pieces[0].group
        self.numbers = [piece.number for piece in pieces]
        self.parameters = [piece.parameter for piece in pieces]
        self.ms, self.bs = TensorColumn(piece.m for piece in pieces), TensorColumn(piece.b for piece in pieces)
        self.starts = [piece.start for piece in pieces]
        bounds = [(piece.start - first, piece.end - piece.start) for piece in pieces]
        in_bytes = [(offset // BITS_PER_BYTE, packed_numel(size)) for offset, size in bounds]
        self._elements, self._bytes = _gaps_and_sizes(bounds, numel), _gaps_and_sizes(in_bytes, numel // BITS_PER_BYTE)
        self.residuals = TensorColumn(() if residual is None else torch.split(residual, self._elements)[1::2])
        self._known: dict[torch.dtype, tuple[int, TensorColumn]] = {}

    def views_in(self, whole: torch.Tensor, *, are_kept: bool = True) -> TensorColumn:
        """Return views of the pieces in values (fp32) or packed signs (uint8) of the whole stretch.

        They are kept where these lie at the same place in every step.
        """
        # TensorColumn hold their memory, so where one begins no other begins as long as they are here.
        known = self._known.get(whole.dtype)
        if known is not None and known[0] == whole.data_ptr():
            return known[1]
        sizes = self._bytes if whole.dtype == torch.uint8 else self._elements
        views = TensorColumn(torch.split(whole, sizes)[1::2])
        if are_kept:
            self._known[whole.dtype] = whole.data_ptr(), views
        return views


_Batches = Callable[[tuple[bool, ...]], list[Batch]]


def _batches(pieces: Sequence[_Piece], first: int, numel: int, residual: torch.Tensor | None = None) -> _Batches:
    """Return what gives a stretch of a bucket by settings, of some of the parameters; none is without a piece."""

    def cut(piece: _Piece) -> _Piece:
        lo, hi = max(piece.start, first), min(piece.end, first + numel)
        m, b = (average[max(lo - piece.start, 0) : max(hi - piece.start, 0)] for average in (piece.m, piece.b))
        return piece._replace(start=lo, end=hi, m=m, b=b)

    inside = [cut(piece) for piece in pieces]

    @lru_cache(maxsize=1)  # in most steps they are those of the step before
    def batches(chosen: tuple[bool, ...]) -> list[Batch]:
        by_group: dict[int, list[_Piece]] = {}
        for piece, is_chosen in zip(inside, chosen, strict=True):
            if is_chosen and piece.start < piece.end:
                by_group.setdefault(id(piece.group), []).append(piece)
        return [Batch(some, first, numel, residual) for some in by_group.values()]

    return batches


def _gaps_and_sizes(bounds: Sequence[tuple[int, int]], total: int) -> list[int]:
    """Return in turns the sizes of a gap and of a piece, and last that of what is behind them."""
    sizes, end = [], 0
    for offset, size in bounds:
        sizes += [offset - end, size]
        end = offset + size
    return [*sizes, total - end]


def all_in_order(tensors: Sequence[torch.Tensor]) -> TensorColumn:
    """Return tensors whose elements lie in memory in their logical order, as kernels take them; others are copied."""
    column = TensorColumn(tensors)
    if column.is_contiguous and not any(map(torch.Tensor.is_neg, column)):
        return column
    # Draws are numbered by the logical order, in which replicas agree whatever memory format each has. So one in
    # channels_last is copied in each step: 8 bytes an element of memory traffic for an fp32 gradient, 16 for a
    # parameter.
    return TensorColumn(tensor.resolve_neg().contiguous() for tensor in column)
