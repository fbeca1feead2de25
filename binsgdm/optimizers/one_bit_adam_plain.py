"""What a rank of 1-bit Adam computes in plain torch: the update of both stages, and the 1-bit average of momenta.

The average has error feedback on both sides. Every rank cuts its vector into one chunk a rank, sends each as one scale
and one bit an element to the rank that owns it, and keeps what that lost (the worker residual). The owner averages what
it got, sends the average on in the same form to all ranks, and keeps what that lost (the server residual). A chunk's
scale travels in front of its bits, so that there are two collectives and no more.

Shape letters: N elements with padding, a multiple of 8 x world size; W chunks of N / W elements, one a rank.

Source: Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang and He, "1-bit Adam: communication efficient large-scale
training with Adam's convergence speed", ICML 2021, the compression stage.
Differs: the scale is the mean absolute value of the elements, of each chunk: ||v - C(v)||^2 = (1 - delta) ||v||^2 with
delta = ||v||_1^2 / (n ||v||_2^2) >= 1 / n, so that C contracts whatever v is. The paper keeps the magnitude, and
DeepSpeed takes ||v||_2 / sqrt(n) of the whole vector, which does not contract where ||v||_1 < sqrt(n) ||v||_2 / 2; it
sends the scales in collectives of their own (four in all), one vector a parameter where parameters are fp32, and counts
padding in the scale. Elements that all ranks know to be 0 can be left out here (`valid`); DeepSpeed needs a mask made
by hand. The hierarchical variant is this project's own.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from binsgdm.comm import AllGather, AllReduceSum, AllToAll, GroupName, Message, Protocol, RankContext
from binsgdm.comm.flat_buckets import BITS_PER_BYTE
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import divided
from binsgdm.kernels.profiler_stages import staged
from binsgdm.optimizers.base import copy_each

Topology = Literal["flat", "hierarchical"]
AVERAGES = ("exp_avg", "exp_avg_sq")
# The variance is stable when the ratio of its norms, 1 / (1 - beta2) steps apart, is within 0.96 and 1 / 0.96.
# Source: 1-bit Adam, ICML 2021.
STABLE_RATIO = 0.96
SCALE_BYTES = 4  # one fp32 in front of the bits of a chunk
# Of the common scale of all momenta. A smaller one would let a tensor that wakes up later drown its whole chunk.
SMALLEST_SCALE = 1e-4
# Elements of parameters that one operation takes at once: 128 MiB of two temporary values of each on a GPU, and what
# stays in the caches of a CPU.
_RUN_NUMEL = {"cpu": 2**14, "cuda": 2**24}
LARGEST_GRADIENT = 2.0**63  # its square is 2^126; fp32 ends below 2^128, and a variance sums a few squares


class FlatSlice(NamedTuple):
    """A parameter, its group and state, and its place in the flat vector of all parameters as they were given."""

    parameter: torch.Tensor
    group: dict[str, Any]
    state: dict[str, Any]
    start: int
    end: int
    number: int


def padded_numel(numel: int, world_size: int) -> int:
    """Return the elements with padding: whole bytes for every rank, at least one.

    Example:
        >>> padded_numel(33, 4), padded_numel(0, 4)
        (64, 32)
    """
    unit = BITS_PER_BYTE * world_size
    return max(1, -(-numel // unit)) * unit


# The 1-bit average.


@dataclass(frozen=True, kw_only=True)
class MomentumResiduals:
    """What a rank's compressions lost so far, fp32; changed in place by every exchange.

    Attributes:
        worker: of what this rank sent: (N,) if flat, (N / ranks per node,) if hierarchical.
        server: of the average of the chunk that it owns: (N / world size,).
    """

    worker: torch.Tensor
    server: torch.Tensor

    @classmethod
    def zeros(
        cls, numel: int, context: RankContext, topology: Topology, device: torch.device | str = "cpu"
    ) -> "MomentumResiduals":
        """Return those of a rank before its first exchange of `numel` elements, padding included."""
        worker_numel = numel if topology == "flat" else numel // context.ranks_per_node
        return cls(
            worker=torch.zeros(worker_numel, device=device),
            server=torch.zeros(numel // context.world_size, device=device),
        )


def encode(chunks: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return each chunk as a scale and its signs.

    Args:
        chunks: fp32, n a multiple of 8. The sign of 0 is +1. A value that is not finite makes its chunk's scale so, and
            with it the whole chunk, once decoded, on every rank alike.
        valid: which elements count for the scale; the others must be 0.

    Returns:
        uint8: an fp32 scale, the mean absolute value of the valid elements (0 if there is none), then packed signs.

    Shape:
        chunks, valid: (W, n); returned: (W, 4 + n / 8).
    """
    counts = valid.sum(dim=1).clamp_(min=1)
    # fp64: an fp32 sum of millions of magnitudes loses the small ones, and every element of the chunk gets this scale.
    norms = torch.linalg.vector_norm(chunks, ord=1, dim=1, dtype=torch.float64)
    scales = (norms / counts).to(torch.float32).view(-1, 1)
    signs = pack_signs((chunks >= 0).view(-1)).view(chunks.shape[0], -1)
    return torch.cat([scales.view(torch.uint8), signs], dim=1)


@staged("decode")
def decode(rows: torch.Tensor) -> torch.Tensor:
    """Return what `encode` made: every element plus or minus its chunk's scale, (W, n) fp32."""
    # Cloned, since a number of four bytes must not begin anywhere.
    scales = rows[:, :SCALE_BYTES].reshape(-1).clone().view(torch.float32).view(-1, 1)
    packed = rows[:, SCALE_BYTES:].reshape(-1)
    return unpack_signs(packed, packed.numel() * BITS_PER_BYTE).view(rows.shape[0], -1) * scales


def one_bit_momentum(
    values: torch.Tensor,
    residuals: MomentumResiduals,
    context: RankContext,
    valid: torch.Tensor,
    topology: Topology = "flat",
) -> Protocol:
    """Average over all ranks with one bit an element each way; mean of (values + worker) + server is preserved.

    Hierarchical: in the node in fp32, between nodes with one bit an element; then the bits are gathered in the node.
    Each local rank has one slice of the node's mean and exchanges it with the same local rank of the other nodes, so
    that the residuals of a node exist once, spread over its ranks.

    Args:
        values: this rank's, fp32; not changed.
        residuals: of this rank and topology; changed in place.
        context: this rank.
        valid: bool, elements that take part, the same on all ranks. The others come back as 0, weigh on no scale and
            keep their residuals.
        topology: of the exchange.

    Returns:
        The average that every rank applies, the same to the bit on all; plus or minus its scale in each chunk.

    Shape:
        values, valid, returned: (N,).
    """
    if topology == "flat":
        rows = yield from _averaged(values, residuals, "world", context.rank, valid)
    else:
        mean = yield from mean_in_node(values, context)
        valid_in_slice = valid.view(context.ranks_per_node, -1)[context.local_rank]
        averaged = yield from _averaged(mean, residuals, "inter_node", context.node, valid_in_slice)
        rows = yield AllGather(group="intra_node", sent=averaged)
    return decode(rows.reshape(context.world_size, -1)).view(-1).masked_fill_(~valid, 0.0)


def mean_in_node(values: torch.Tensor, context: RankContext) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return this local rank's slice of the mean over its node, fp32."""
    received = yield AllToAll(group="intra_node", sent=values.view(context.ranks_per_node, -1))
    mean = received[0].clone()
    for row in received[1:]:
        mean += row
    return divided(mean, context.ranks_per_node, out=mean)


def _averaged(
    values: torch.Tensor, residuals: MomentumResiduals, group: GroupName, position: int, valid: torch.Tensor
) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return the encoded average, one row a chunk, and renew both residuals."""
    size = values.numel() // residuals.server.numel()
    owned = valid.view(size, -1)[position]
    # Worker side: rank k gets chunk k of all ranks, so each rank averages a part of the vector, as in a reduce-scatter.
    received = yield AllToAll(group=group, sent=encode_and_keep(values, residuals.worker, valid, size))
    decoded = decode(received)
    mean = divided(decoded.sum(dim=0), decoded.shape[0]).masked_fill_(~owned, 0.0)
    # Server side: the mean is quantized again for the way back. What this loses belongs to the chunk, so its owner
    # keeps it.
    row = encode_and_keep(mean, residuals.server, owned, 1)
    rows = yield AllGather(group=group, sent=row.view(-1))
    return rows


@staged("encode")
def encode_and_keep(values: torch.Tensor, residual: torch.Tensor, valid: torch.Tensor, chunks: int) -> torch.Tensor:
    """Return the sum of values and residual, encoded in `chunks` chunks; put what encoding loses into the residual."""
    # Error feedback: what an exchange loses is added to the next one, so over many steps nothing is lost.
    compensated = (values + residual).masked_fill_(~valid, 0.0)
    rows = encode(compensated.view(chunks, -1), valid.view(chunks, -1))
    torch.where(valid, compensated - decode(rows).view(-1), residual, out=residual)
    return rows


# The updates. `moving` are the parameters that have a gradient on some rank.


class PlainPasses:
    """A step's computation in plain torch, on any device; `one_bit_adam_cpu.CpuPasses` does the same on a CPU.

    Args:
        slices: of all parameters.
        world_size: ranks that take part.

    Attributes:
        gradient: what was read last, flat.
        are_small: whether all of it is finite and not too large, on its device.
    """

    def __init__(self, slices: Sequence[FlatSlice], world_size: int) -> None:
        self.slices, self.world_size = slices, world_size
        self.are_small: bool | torch.Tensor = True
        self.gradient = torch.empty(0)

    def read_gradients(
        self,
        gradients: Sequence[torch.Tensor | None],
        scale: torch.Tensor | None,
        *,
        is_sent: bool,  # noqa: ARG002 - they are copied anyway
    ) -> None:
        """Look at all gradients, of which None counts as 0, and take them for this step.

        Args:
            gradients: of all parameters.
            scale: that of a GradScaler, by which they are to be divided.
            is_sent: whether they themselves are sent.
        """
        flat = torch.zeros(padded_numel(self.slices[-1].end, self.world_size), device=self.slices[0].parameter.device)
        pairs = [
            (segment, gradient)
            for segment, gradient in zip(self.slices, gradients, strict=True)
            if gradient is not None
        ]
        places = [flat[segment.start : segment.end].view(gradient.shape) for segment, gradient in pairs]
        copy_each(places, [gradient for _, gradient in pairs])
        self.gradient = flat
        unscale(self.gradient, self.slices, scale)
        self.are_small = are_small(self.gradient)

    def dense_step(self, moving: Sequence[FlatSlice], context: RankContext) -> Protocol:
        """Average the gradients of all ranks, and take a dense step."""
        total, self.gradient = self.gradient, torch.empty(0)
        if context.world_size > 1:
            total = yield AllReduceSum(group="world", sent=total, may_overwrite=True)
        mean = divided(total, context.world_size)
        dense_update(moving, mean)
        return mean

    def compressed_step(
        self, moving: Sequence[FlatSlice], residuals: MomentumResiduals, context: RankContext, topology: Topology
    ) -> Protocol:
        """Average the momenta with one bit an element, and move the parameters."""
        gradient, self.gradient = self.gradient, torch.empty(0)
        momenta, valid = local_momenta(moving, gradient)
        average = yield from one_bit_momentum(momenta, residuals, context, valid, topology)
        apply_average(moving, average)
        return average


def unscale(flat: torch.Tensor, slices: Sequence[FlatSlice], scale: torch.Tensor | None) -> None:
    """Divide flat gradients by a GradScaler's scale, and turn those of groups that go up."""
    if scale is not None:
        flat /= scale.to(flat.device)
    for segment in slices:
        if segment.group["maximize"]:
            flat[segment.start : segment.end].neg_()


def are_small(gradient: torch.Tensor) -> torch.Tensor:
    """Return whether all of a gradient is finite and not too large, where it lies."""
    return gradient.abs().amax() < LARGEST_GRADIENT  # which NaN fails as well


def local_momenta(moving: Sequence[FlatSlice], gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the momenta of this rank with its gradient, and which elements have a variance; both flat."""
    momenta, valid = torch.zeros_like(gradient), torch.zeros_like(gradient, dtype=torch.bool)
    for some in _together(moving):
        beta1 = some[0].group["betas"][0]
        local = torch._foreach_mul(_averages(some, "exp_avg"), beta1)
        torch._foreach_add_(local, torch._foreach_mul(_parts(some, gradient), 1 - beta1))
        if some[0].group["scales_momenta"]:
            torch._foreach_div_(local, _scales(some))
        torch._foreach_copy_(_parts(some, momenta), local)
    for segment in moving:
        torch.gt(segment.state["exp_avg_sq"].view(-1), 0, out=valid[segment.start : segment.end])
    # An element without a variance cannot be moved (lr / sqrt(0)); all ranks have the same v, so all leave the same
    # ones out.
    return momenta.masked_fill_(valid.logical_not(), 0.0), valid


@staged("update")
def apply_average(moving: Sequence[FlatSlice], average: torch.Tensor) -> None:
    """Take the average of all ranks as the momenta, and move the parameters."""
    for some in _together(moving):
        # The average replaces the momentum of every rank: ranks stay equal, and what the bits lost is in the residuals.
        torch._foreach_copy_(_averages(some, "exp_avg"), _parts(some, average))
        if some[0].group["scales_momenta"]:
            torch._foreach_mul_(_averages(some, "exp_avg"), _scales(some))
        _adam_step(some)


@staged("update")
def dense_update(moving: Sequence[FlatSlice], mean: torch.Tensor) -> None:
    """Update both averages with the mean gradient, and move the parameters."""
    for some in _together(moving):
        beta1, beta2 = some[0].group["betas"]
        m, v, g = _averages(some, "exp_avg"), _averages(some, "exp_avg_sq"), _parts(some, mean)
        # Product by product: with a factor, torch's sums fuse it on some CPUs, which rounds once less.
        torch._foreach_mul_(m, beta1)
        torch._foreach_add_(m, torch._foreach_mul(g, 1 - beta1))
        torch._foreach_mul_(v, beta2)
        torch._foreach_add_(v, torch._foreach_mul(torch._foreach_mul(g, 1 - beta2), g))
        for segment in some:
            segment.state["variance_step"] += 1
        _adam_step(some)


def _adam_step(some: Sequence[FlatSlice]) -> None:
    """Count a step, and take Adam's from the averages, in fp32, rounded to the parameter's dtype once."""
    group, parameters = some[0].group, [segment.parameter for segment in some]
    lr, beta1 = float(group["lr"]), group["betas"][0]
    for segment in some:
        segment.state["step"] += 1
    step_sizes = [-lr / (1 - beta1 ** segment.state["step"]) for segment in some]
    corrections = [_correction(segment) for segment in some]
    roots = torch._foreach_div([segment.state["exp_avg_sq"] for segment in some], corrections)
    if roots[0].is_cpu:
        for root in roots:  # those of torch are not always rounded as IEEE 754 asks
            np.sqrt(root.numpy(), out=root.numpy())
    else:
        torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, group["eps"])
    # A step in 16 bit would round after each operation in place of once.
    wide = [parameter.to(torch.float32) for parameter in parameters]
    decayed = torch._foreach_mul(wide, 1 - lr * group["weight_decay"])
    torch._foreach_addcdiv_(decayed, [segment.state["exp_avg"] for segment in some], roots, step_sizes)
    copy_each(parameters, decayed)


def _together(moving: Sequence[FlatSlice]) -> Iterator[list[FlatSlice]]:
    """Yield runs of parameters with the same settings, for which one operation is launched, not one for each.

    Temporary values of a run take memory, on a GPU; on a CPU they are to stay in its caches.
    """
    limit = _RUN_NUMEL["cpu" if moving and moving[0].parameter.is_cpu else "cuda"]
    run: list[FlatSlice] = []
    for segment in moving:
        if run and (segment.end - run[0].start > limit or segment.group is not run[0].group):
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def _scales(some: Sequence[FlatSlice]) -> list[float]:
    return [segment.state["momentum_scale"] for segment in some]


def _averages(some: Sequence[FlatSlice], name: str) -> list[torch.Tensor]:
    return [segment.state[name].view(-1) for segment in some]


def _parts(some: Sequence[FlatSlice], flat: torch.Tensor) -> list[torch.Tensor]:
    return [flat[segment.start : segment.end] for segment in some]


def variance_correction(beta2: float, variance_step: int) -> float:
    """Return 1 - beta2^t; t counts the steps that v has seen, and a v that has seen none is 0 anyway."""
    return float(1 - beta2 ** max(1, int(variance_step)))


def _correction(segment: FlatSlice) -> float:
    return variance_correction(segment.group["betas"][1], segment.state["variance_step"])


# The end of the dense stage.


def variance_norm(slices: Sequence[FlatSlice]) -> torch.Tensor:
    """Return the 1-norm of all variances, corrected for their bias, fp64 (1,)."""
    norms = [segment.state["exp_avg_sq"].sum(dtype=torch.float64) / _correction(segment) for segment in slices]
    return torch.stack(norms).sum().view(1)


def is_stable(norm: float, before: float) -> bool:
    """Tell whether the variance changed little enough to be frozen; `before` is 0 where there is none yet."""
    return before > 0 and STABLE_RATIO <= norm / before <= 1 / STABLE_RATIO


def frozen_means(slices: Sequence[FlatSlice]) -> torch.Tensor:
    """Return what `freeze` takes of each tensor: the mean of v and that of m^2, fp64.

    Shape:
        returned: (2, parameters).
    """
    means = [
        torch.stack([v.sum(dtype=torch.float64), m.to(torch.float64).square().sum()]) / max(1, v.numel())
        for v, m in ((segment.state["exp_avg_sq"], segment.state["exp_avg"]) for segment in slices)
    ]
    return torch.stack(means, dim=1)


def freeze(slices: Sequence[FlatSlice], means: torch.Tensor) -> None:
    """Raise variances to their floor, and keep the scale of each tensor's momentum, from the means of one rank."""
    squares = means[1].tolist()
    # A tensor without a gradient in the dense stage goes with the others, so that its first one weighs on no scale.
    common = sum(squares) / max(1, sum(square > 0 for square in squares)) or 1.0
    for segment, variance, square in zip(slices, means[0].tolist(), squares, strict=True):
        segment.state["momentum_scale"] = math.sqrt(max(square or common, SMALLEST_SCALE**2 * common))
        if floor := variance * segment.group["variance_floor"]:
            v = segment.state["exp_avg_sq"]
            v.copy_(torch.where(v > 0, v.clamp(min=floor), v))
