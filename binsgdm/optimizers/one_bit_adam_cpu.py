"""1-bit Adam's step on a CPU, by compiled passes: what `one_bit_adam_plain.PlainPasses` does, to the bit.

A pass reads what it needs of gradients, averages and parameters where they lie, and leaves no temporary of the model's
size. Only what travels in fp32 is copied into a flat vector, as are gradients that are not fp32 or are changed first;
its memory is kept from step to step: fresh memory costs more than the work on it.

`binsgdm.kernels.cpu_adam` is imported where it is used: it needs numba, which who trains on a GPU may not have.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from binsgdm import kernels
from binsgdm.comm import AllGather, AllReduceSum, AllToAll, GroupName, Message, Protocol, RankContext
from binsgdm.kernels.profiler_stages import stage
from binsgdm.optimizers.base import copy_each
from binsgdm.optimizers.one_bit_adam_plain import (
    AVERAGES,
    LARGEST_GRADIENT,
    FlatSlice,
    MomentumResiduals,
    Topology,
    are_small,
    mean_in_node,
    padded_numel,
    unscale,
    variance_correction,
)

Array = NDArray[Any]


class CpuPasses:
    """The passes of one optimizer, with what they keep from step to step; as `PlainPasses`."""

    def __init__(self, slices: Sequence[FlatSlice], world_size: int) -> None:
        from binsgdm.kernels import cpu_adam

        self.slices, self.world_size = slices, world_size
        self.are_small: bool | torch.Tensor = True
        numels = tuple(segment.end - segment.start for segment in slices)
        self._cut = cpu_adam.plan(numels, padded_numel(sum(numels), world_size), world_size)
        self._starts = np.array([segment.start for segment in slices], np.int64)
        self._flat: torch.Tensor | None = None
        self._where = np.empty(0, np.int64)  # each gradient, 0 for none
        self._valid: tuple[torch.Tensor, Array] | None = None
        self._variances: list[torch.Tensor] = []  # which `_valid` was made of
        self._versions: list[int] = []
        self._known_server, self._is_zero = torch.empty(0), True

    def read_gradients(
        self, gradients: Sequence[torch.Tensor | None], scale: torch.Tensor | None, *, is_sent: bool
    ) -> None:
        """Look at all gradients; as `PlainPasses`, but each is read in its place, where that is possible."""
        from binsgdm.kernels import cpu_adam

        present = [gradient for gradient in gradients if gradient is not None]
        are_fp32 = set(map(attrgetter("dtype"), present)) <= {torch.float32}
        are_plain = are_fp32 and all(map(torch.Tensor.is_contiguous, present))
        is_changed = scale is not None or any(segment.group["maximize"] for segment in self.slices)
        self._where = cpu_adam.addresses(gradients)
        # They are read where they lie, by every pass.
        if are_plain and not is_sent and not is_changed:
            self.are_small = cpu_adam.are_small(self._cut, self._where, LARGEST_GRADIENT)
            return
        flat = self._flat_vector()
        places = self._places_in(flat)
        for segment, gradient in zip(self.slices, gradients, strict=True):
            if gradient is not None and not (gradient.dtype == torch.float32 and gradient.is_contiguous()):
                flat[segment.start : segment.end].view(gradient.shape).copy_(gradient)
                self._where[segment.number] = places[segment.number]  # checked where it lies
        self.are_small = cpu_adam.gather_gradients(self._cut, self._where, flat, LARGEST_GRADIENT)
        self._where = places
        if is_changed:
            unscale(flat, self.slices, scale)
        # Of what counts, which is the gradient without its scale.
        if scale is not None:
            self.are_small = are_small(flat)

    def dense_step(self, moving: Sequence[FlatSlice], context: RankContext) -> Protocol:
        """Average the gradients of all ranks, and take a dense step."""
        from binsgdm.kernels import cpu_adam

        if context.world_size > 1:
            total = yield AllReduceSum(group="world", sent=self._flat_vector(), may_overwrite=True)
            self._where = self._places_in(total)
        tables = _Tables(self.slices, moving, self._where, self.world_size, is_dense=True)
        with stage("update"):
            for dtype, places in tables.by_dtype():
                cpu_adam.dense_step(self._cut, places, tables.factors, dtype)
            tables.finish()
        self._valid = None  # the passes write past the counts of versions
        return torch.empty(0, device="cpu")

    def compressed_step(
        self, moving: Sequence[FlatSlice], residuals: MomentumResiduals, context: RankContext, topology: Topology
    ) -> Protocol:
        """Average the momenta with one bit an element, and move the parameters."""
        from binsgdm.kernels import cpu_adam

        tables = _Tables(self.slices, moving, self._where, self.world_size, is_dense=False)
        bits, counts = self._valid_bits(moving, tables)
        if topology == "flat":
            with stage("encode"):
                arguments = tables.places, tables.factors, residuals.worker, bits, counts
                sent = cpu_adam.encode_momenta(self._cut, *arguments)
            # A rank alone would encode the same values once more, which changes no bit.
            if context.world_size == 1 and self._owes_nothing(residuals.server):
                rows = sent
            else:
                rows = yield from _averaged(sent, residuals, bits, counts, "world", context.rank)
        else:
            momenta = self._flat_vector()
            cpu_adam.local_momenta(self._cut, tables.places, tables.factors, momenta)
            mean = yield from mean_in_node(momenta, context)
            bits = bits.view(context.ranks_per_node, -1)[context.local_rank]
            counts = counts.reshape(context.ranks_per_node, -1)[context.local_rank]
            with stage("encode"):
                sent = cpu_adam.encode_values(mean, residuals.worker, bits, counts)
            del mean
            averaged = yield from _averaged(sent, residuals, bits, counts, "inter_node", context.node)
            rows = yield AllGather(group="intra_node", sent=averaged)
            rows = rows.reshape(context.world_size, -1)
        with stage("update"):
            for dtype, places in tables.by_dtype():
                cpu_adam.apply_average(self._cut, places, tables.factors, rows, dtype)
            tables.finish()
        return rows

    def _owes_nothing(self, server: torch.Tensor) -> bool:
        """Tell whether a lone rank's server residual is 0: then it stays so.

        Elements of one magnitude have it as their mean, so that encoding them once more gives the same row and loses
        nothing.
        """
        if self._known_server is not server:
            self._known_server, self._is_zero = server, not server.any()
        return self._is_zero

    def _flat_vector(self) -> torch.Tensor:
        if self._flat is None:
            self._flat = kernels.zeros(self._cut.chunk * self.world_size)
        return self._flat

    def _places_in(self, flat: torch.Tensor) -> Array:
        """Return where parameters begin in a flat vector."""
        return flat.data_ptr() + flat.element_size() * self._starts

    def _valid_bits(self, moving: Sequence[FlatSlice], tables: "_Tables") -> tuple[torch.Tensor, Array]:
        """Return which elements have a variance; looked at anew where a variance or the choice of tensors changed."""
        from binsgdm.kernels import cpu_adam

        variances = [segment.state["exp_avg_sq"] for segment in moving]
        versions = [variance._version for variance in variances]
        is_known = versions == self._versions and len(variances) == len(self._variances)
        if self._valid is None or not is_known or not all(map(is_, variances, self._variances)):
            # A pass over all variances, which the compression stage never changes.
            self._valid = cpu_adam.pack_valid(self._cut, tables.places)
            self._variances, self._versions = variances, versions
        return self._valid


class _Tables:
    """Addresses and factors of all tensors in one step.

    Args:
        slices: of all parameters.
        moving: of those that have a gradient on some rank.
        gradients: addresses of all gradients, 0 where this rank has none.
        world_size: ranks that take part.
        is_dense: whether this is a step of the dense stage.
    """

    def __init__(
        self,
        slices: Sequence[FlatSlice],
        moving: Sequence[FlatSlice],
        gradients: Array,
        world_size: int,
        *,
        is_dense: bool,
    ) -> None:
        from binsgdm.kernels import cpu_adam

        self._moving, self._is_dense = moving, is_dense
        # Memory of another order is stepped in a copy.
        self._wrapped = [segment.parameter.contiguous() for segment in moving]
        self._numbers = np.array([segment.number for segment in moving], np.int64)
        # Where other ranks alone have a gradient, it is 0 here.
        self._zeros = {
            segment.number: kernels.zeros(segment.end - segment.start)
            for segment in moving
            if not gradients[segment.number]
        }
        states = [segment.state for segment in moving]
        columns: list[Sequence[torch.Tensor]] = [[state[name] for state in states] for name in AVERAGES]
        addresses = [*map(cpu_adam.addresses, (*columns, self._wrapped)), gradients[self._numbers]]
        self.places = np.zeros((len(slices), cpu_adam.PLACES), np.int64)
        self.places[self._numbers] = np.stack(addresses, axis=1)
        for number, zeros in self._zeros.items():
            self.places[number, -1] = zeros.data_ptr()
        self.factors = np.ones((len(slices), cpu_adam.FACTORS), np.float32)
        # Nearly all parameters of a group have the same.
        by_settings: dict[object, list[int]] = {}
        for segment, state in zip(moving, states, strict=True):
            key = id(segment.group), state["step"], state["variance_step"], state["momentum_scale"]
            by_settings.setdefault(key, []).append(segment.number)
        for numbers in by_settings.values():
            self.factors[numbers] = _factors(slices[numbers[0]], world_size, is_dense=is_dense)

    def by_dtype(self) -> Iterator[tuple[torch.dtype, Array]]:
        """Yield the addresses of the tensors of each dtype of parameters, 0 for the others."""
        # A compiled loop is for one dtype of parameters.
        dtypes = [x.dtype for x in self._wrapped]
        for dtype in dict.fromkeys(dtypes):
            places = np.zeros_like(self.places)
            some = self._numbers[[each == dtype for each in dtypes]]
            places[some] = self.places[some]
            yield dtype, places

    def finish(self) -> None:
        """Count the step, and copy back what was stepped in a copy."""
        for segment in self._moving:
            segment.state["step"] += 1
            segment.state["variance_step"] += self._is_dense
        parameters = [segment.parameter for segment in self._moving]
        copies = [(x, wrapped) for x, wrapped in zip(parameters, self._wrapped, strict=True) if x is not wrapped]
        if copies:
            copy_each([x for x, _ in copies], [wrapped for _, wrapped in copies])
        # The passes write to memory that autograd watches.
        torch.autograd.graph.increment_version(parameters)


def _factors(segment: FlatSlice, world_size: int, *, is_dense: bool) -> tuple[float, ...]:
    """Return what `cpu_adam.FACTORS` names, for the step to come."""
    group, state = segment.group, segment.state
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    return (
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        world_size,
        state["momentum_scale"] if group["scales_momenta"] else 1.0,
        variance_correction(beta2, state["variance_step"] + is_dense),
        group["eps"],
        1 - lr * group["weight_decay"],
        -lr / (1 - beta1 ** (state["step"] + 1)),
    )


def _averaged(  # noqa: PLR0913, PLR0917
    sent: torch.Tensor,
    residuals: MomentumResiduals,
    bits: torch.Tensor,
    counts: Array,
    group: GroupName,
    position: int,
) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return the encoded average of encoded momenta, one row a chunk, and renew the server's residual."""
    from binsgdm.kernels import cpu_adam

    received = yield AllToAll(group=group, sent=sent)
    own_bits, own_count = bits.view(len(sent), -1)[position], counts[position : position + 1]
    with stage("encode"):
        row = cpu_adam.encode_mean(received, residuals.server, own_bits, own_count)
    rows = yield AllGather(group=group, sent=row.view(-1))
    return rows


def is_used_on(device: torch.device) -> bool:
    """Tell whether compiled passes work there."""
    return device.type == "cpu" and kernels.select(device=device).name == "cpu"


@cache
def compile_for(dtypes: frozenset[torch.dtype]) -> None:
    """Compile all passes for parameters of some dtypes, or load them if that was done; once in a process."""
    from binsgdm.kernels.first_use import compile_in_turn  # which needs numba

    compile_in_turn(partial(_rehearse, dtypes))


def _rehearse(dtypes: Iterable[torch.dtype]) -> None:
    """Call every pass on a few elements, in whole groups of the loops and in their ends."""
    from binsgdm.kernels import cpu_adam

    numel = 40
    cut = cpu_adam.plan((numel,), numel, 1)
    gradient, m, v, residual = torch.zeros(4, numel, device="cpu")
    where, factors = cpu_adam.addresses([m]), np.ones((1, cpu_adam.FACTORS), np.float32)
    cpu_adam.gather_gradients(cut, where, gradient, LARGEST_GRADIENT)
    cpu_adam.are_small(cut, where, LARGEST_GRADIENT)
    for dtype in dtypes:
        x = torch.zeros(numel, dtype=dtype, device="cpu")
        places = np.stack([cpu_adam.addresses([tensor]) for tensor in (m, v, x, gradient)], axis=1)
        cpu_adam.dense_step(cut, places, factors, dtype)
        bits, counts = cpu_adam.pack_valid(cut, places)
        rows = cpu_adam.encode_momenta(cut, places, factors, residual, bits, counts)
        cpu_adam.encode_mean(rows, residual, bits, counts)
        cpu_adam.local_momenta(cut, places, factors, gradient)
        cpu_adam.encode_values(gradient, residual, bits, counts)
        cpu_adam.apply_average(cut, places, factors, rows, dtype)
