"""1-bit Adam's step on a CPU, by compiled passes: what `one_bit_adam_update` does in plain torch, to the bit.

A pass reads what it needs of gradients, averages and parameters where they lie, and leaves no temporary of the model's
size. Only what travels in fp32 is copied into a flat vector, as are gradients that are not fp32 or are changed first;
its memory is kept from step to step: fresh memory costs more than the work on it.

The passes are imported where they are used: they need numba, which who trains on a GPU may not have.
"""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from binsgdm import kernels
from binsgdm.comm import AllGather, AllReduceSum, AllToAll, Protocol, RankContext
from binsgdm.kernels.functional import divided
from binsgdm.kernels.profiler_stages import stage
from binsgdm.optimizers.base import copy_each
from binsgdm.optimizers.one_bit_adam_update import (
    LARGEST_GRADIENT,
    FlatSlice,
    gradient_of,
    variance_correction,
)
from binsgdm.optimizers.one_bit_momentum import MomentumResiduals, Topology, padded_numel

if TYPE_CHECKING:
    from binsgdm.kernels.cpu_adam import Plan

Array = NDArray[Any]


class CpuPasses:
    """The passes of one optimizer, with what they keep from step to step.

    Attributes:
        are_small: whether all gradients that were looked at last are finite and not too large.
    """

    def __init__(self) -> None:
        self.are_small = True
        self._flat: torch.Tensor | None = None
        self._where = np.empty(0, np.int64)  # each parameter's gradient, 0 for none
        self._valid: tuple[torch.Tensor, Array] | None = None
        self._versions: list[int] = []
        self._variances: list[torch.Tensor] = []

    def read_gradients(
        self, flat_slices: Sequence[FlatSlice], world_size: int, *, are_copied: bool
    ) -> torch.Tensor | None:
        """Look at all gradients, which the step of this call then takes.

        Returns:
            All of them as one flat fp32 vector, if they are to be copied or lie otherwise; None where steps read each
            in its place.
        """
        from binsgdm.kernels import cpu_adam

        cut = _cut(flat_slices, world_size)
        given = [gradient_of(one.param_state) for one in flat_slices]
        plain = [one if one is None or (one.dtype == torch.float32 and one.is_contiguous()) else None for one in given]
        where = cpu_adam.addresses(plain)
        if not are_copied and all(map(is_, given, plain)):
            self._where, self.are_small = where, cpu_adam.are_small(cut, where, LARGEST_GRADIENT)
            return None
        flat = self._flat_vector(cut.chunk * world_size)
        for number, (one, gradient) in enumerate(zip(flat_slices, given, strict=True)):
            if gradient is not None and plain[number] is None:
                place = flat[one.start : one.end]
                place.view(gradient.shape).copy_(gradient)
                where[number] = place.data_ptr()  # checked where it lies
        self._where = _places_in(flat, flat_slices)
        self.are_small = cpu_adam.gather_gradients(cut, where, flat, LARGEST_GRADIENT)
        return flat

    def dense_step(
        self,
        flat_slices: Sequence[FlatSlice],
        moving: Sequence[FlatSlice],
        gradient: torch.Tensor | None,
        context: RankContext,
    ) -> Protocol:
        """Average the gradients of all ranks, which are flat where there are several, and take a dense step."""
        from binsgdm.kernels import cpu_adam

        total = gradient
        if total is not None and context.world_size > 1:
            total = yield AllReduceSum(group="world", sent=total, may_overwrite=True)
            self._where = _places_in(total, flat_slices)
        tables = _Tables(flat_slices, moving, self._where, ranks=context.world_size, is_dense=True)
        with stage("update"):
            for dtype, places in tables.by_dtype():
                cpu_adam.dense_step(tables.cut, places, tables.factors, dtype)
            tables.finish()
        self._valid = None  # the passes write past the counts of versions
        return torch.empty(0, device="cpu") if total is None else total

    def compressed_step(
        self,
        flat_slices: Sequence[FlatSlice],
        moving: Sequence[FlatSlice],
        residuals: MomentumResiduals,
        context: RankContext,
        topology: Topology,
    ) -> Protocol:
        """Average the momenta with one bit an element, and move the parameters."""
        from binsgdm.kernels import cpu_adam

        tables = _Tables(flat_slices, moving, self._where, ranks=context.world_size, is_dense=False)
        bits, counts = self._valid_bits(tables)
        if topology == "hierarchical":
            momenta = self._flat_vector(tables.cut.chunk * context.world_size)
            cpu_adam.local_momenta(tables.cut, tables.places, tables.factors, momenta)
            rows = yield from _averaged_in_nodes(momenta, residuals, context, bits, counts)
        else:
            with stage("encode"):
                sent = cpu_adam.encode_momenta(
                    tables.cut, tables.places, tables.factors, residuals.worker, bits, counts
                )
            received = yield AllToAll(group="world", sent=sent)
            own, own_bits = slice(context.rank, context.rank + 1), bits.view(context.world_size, -1)[context.rank]
            with stage("encode"):
                row = cpu_adam.encode_mean(received, residuals.server, own_bits, counts[own])
            rows = yield AllGather(group="world", sent=row.view(-1))
        with stage("update"):
            for dtype, places in tables.by_dtype():
                cpu_adam.apply_average(tables.cut, places, tables.factors, rows, dtype)
            tables.finish()
        return rows

    def _flat_vector(self, numel: int) -> torch.Tensor:
        if self._flat is None or self._flat.numel() != numel:
            self._flat = kernels.zeros(numel)
        return self._flat

    def _valid_bits(self, tables: "_Tables") -> tuple[torch.Tensor, Array]:
        """Return which elements have a variance; looked at anew where a variance or the choice of tensors changed."""
        from binsgdm.kernels import cpu_adam

        variances = [one.param_state.state["exp_avg_sq"] for one in tables.moving]
        versions = [tables.cut.chunk, *[one.number for one in tables.moving], *[one._version for one in variances]]
        is_known = versions == self._versions and all(map(is_, variances, self._variances))
        if self._valid is None or not is_known:
            self._valid = cpu_adam.pack_valid(tables.cut, tables.places)
            self._versions, self._variances = versions, variances
        return self._valid


def is_used_on(device: torch.device) -> bool:
    """Tell whether compiled passes work there."""
    return device.type == "cpu" and kernels.select(device=device).name == "cpu"


@cache
def compile_for(dtypes: frozenset[torch.dtype]) -> None:
    """Compile all passes for parameters of some dtypes, or load them if that was done; once in a process."""
    kernels.compile_in_turn(partial(_rehearse_all, dtypes))


def _rehearse_all(dtypes: Iterable[torch.dtype]) -> None:
    for dtype in dtypes:
        _rehearse(dtype)


def _rehearse(dtype: torch.dtype) -> None:
    """Call every pass on a few elements, in whole groups of the loops and in their ends."""
    from binsgdm.kernels import cpu_adam

    numel = 40
    cut = cpu_adam.plan((numel,), numel, 1)
    gradient, m, v, residual = torch.zeros(4, numel, device="cpu")
    x = torch.zeros(numel, dtype=dtype, device="cpu")
    places = np.stack([cpu_adam.addresses([one]) for one in (m, v, x, gradient)], axis=1)
    factors = np.ones((1, cpu_adam.FACTORS), np.float32)
    cpu_adam.gather_gradients(cut, cpu_adam.addresses([m]), gradient, LARGEST_GRADIENT)
    cpu_adam.are_small(cut, cpu_adam.addresses([m]), LARGEST_GRADIENT)
    cpu_adam.dense_step(cut, places, factors, dtype)
    bits, counts = cpu_adam.pack_valid(cut, places)
    rows = cpu_adam.encode_momenta(cut, places, factors, residual, bits, counts)
    cpu_adam.encode_mean(rows, residual, bits, counts)
    cpu_adam.local_momenta(cut, places, factors, gradient)
    cpu_adam.encode_values(gradient, residual, bits, counts)
    cpu_adam.apply_average(cut, places, factors, rows, dtype)


def _places_in(flat: torch.Tensor, flat_slices: Sequence[FlatSlice]) -> Array:
    """Return where parameters begin in a flat vector."""
    return flat.data_ptr() + flat.element_size() * np.array([one.start for one in flat_slices], np.int64)


def _averaged_in_nodes(
    momenta: torch.Tensor,
    residuals: MomentumResiduals,
    context: RankContext,
    bits: torch.Tensor,
    counts: Array,
) -> Protocol:
    """Do the exchange of `hierarchical_one_bit_momentum`; return the rows of all chunks."""
    from binsgdm.kernels import cpu_adam

    received = yield AllToAll(group="intra_node", sent=momenta.view(context.ranks_per_node, -1))
    mean = received[0].clone()
    for row in received[1:]:
        mean += row
    divided(mean, context.ranks_per_node, out=mean)
    own_bits = bits.view(context.ranks_per_node, -1)[context.local_rank]
    own_counts = counts.reshape(context.ranks_per_node, -1)[context.local_rank]
    with stage("encode"):
        sent = cpu_adam.encode_values(mean, residuals.worker, own_bits, own_counts)
    del mean
    between = yield AllToAll(group="inter_node", sent=sent)
    chunk_bits = own_bits.view(context.num_nodes, -1)[context.node]
    chunk_count = own_counts[context.node : context.node + 1]
    with stage("encode"):
        own = cpu_adam.encode_mean(between, residuals.server, chunk_bits, chunk_count)
    rows = yield AllGather(group="inter_node", sent=own.view(-1))
    whole = yield AllGather(group="intra_node", sent=rows)
    return whole.reshape(context.world_size, -1)


class _Tables:
    """Addresses and factors of all tensors in one step."""

    def __init__(
        self,
        flat_slices: Sequence[FlatSlice],
        moving: Sequence[FlatSlice],
        gradients: Array,
        *,
        ranks: int,
        is_dense: bool,
    ) -> None:
        from binsgdm.kernels import cpu_adam

        self.cut = _cut(flat_slices, ranks)
        self.moving = moving
        self._is_dense = is_dense
        self._parameters = [one.param_state.parameter.detach() for one in moving]
        # Memory of another order is stepped in a copy.
        self._wrapped = [x if x.is_contiguous() else x.contiguous() for x in self._parameters]
        numbers = [one.number for one in moving]
        states = [one.param_state.state for one in moving]
        self.places = np.zeros((len(flat_slices), cpu_adam.PLACES), np.int64)
        columns = [[state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states], self._wrapped]
        for column, tensors in enumerate(columns):
            self.places[numbers, column] = cpu_adam.addresses(tensors)
        self.places[numbers, len(columns)] = gradients[numbers]
        # Where other ranks alone have a gradient, it is 0 here.
        self._zeros = {one.number: kernels.zeros(one.end - one.start) for one in moving if not gradients[one.number]}
        for number, zeros in self._zeros.items():
            self.places[number, len(columns)] = zeros.data_ptr()
        self._numbers = np.array(numbers, np.int64)
        self.factors = np.ones((len(flat_slices), cpu_adam.FACTORS), np.float32)
        if moving:
            self.factors[numbers] = self._factors_of_moving(ranks)

    def by_dtype(self) -> list[tuple[torch.dtype, Array]]:
        """Return the addresses of the tensors of each dtype of parameters, 0 for the others."""
        dtypes = [x.dtype for x in self._wrapped]
        found = []
        for dtype in dict.fromkeys(dtypes):
            places = np.zeros_like(self.places)
            some = self._numbers[[one == dtype for one in dtypes]]
            places[some] = self.places[some]
            found.append((dtype, places))
        return found

    def finish(self) -> None:
        """Count the step, and copy back what was stepped in a copy."""
        for one in self.moving:
            one.param_state.state["step"] += 1
            if self._is_dense:
                one.param_state.state["variance_step"] += 1
        copies = [(x, wrapped) for x, wrapped in zip(self._parameters, self._wrapped, strict=True) if x is not wrapped]
        if copies:
            copy_each([x for x, _ in copies], [wrapped for _, wrapped in copies])
        # The passes write to memory that autograd watches.
        torch.autograd.graph.increment_version([one.param_state.parameter for one in self.moving])

    def _factors_of_moving(self, ranks: int) -> list[tuple[float, ...]]:
        found: dict[tuple[object, ...], tuple[float, ...]] = {}
        rows = []
        for one in self.moving:
            group, state = one.param_state.group, one.param_state.state
            key = id(group), state["step"], state["variance_step"], state.get("momentum_scale")
            if key not in found:
                found[key] = self._factors(one, ranks)
            rows.append(found[key])
        return rows

    def _factors(self, one: FlatSlice, ranks: int) -> tuple[float, ...]:
        group, state = one.param_state.group, one.param_state.state
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        step, variance_step = state["step"] + 1, state["variance_step"] + self._is_dense
        scale = state["momentum_scale"] if group["scales_momenta"] else 1.0
        return (
            beta1,
            1 - beta1,
            beta2,
            1 - beta2,
            ranks,
            scale,
            variance_correction(beta2, variance_step),
            group["eps"],
            1 - lr * group["weight_decay"],
            -lr / (1 - beta1**step),
        )


def _cut(flat_slices: Sequence[FlatSlice], world_size: int) -> "Plan":
    from binsgdm.kernels import cpu_adam

    numels = tuple(one.end - one.start for one in flat_slices)
    return cpu_adam.plan(numels, padded_numel(sum(numels), world_size), world_size)
