"""Signs and a scale: signSGD with majority vote, EF-signSGD, 1-bit SGD and TernGrad.

The sign of zero is +1, of either zero; that of NaN is -1. Where a scale travels too, a value that is not finite makes
all that share its scale NaN after decompression; a majority vote has no scale, so a byte in front of the bits says it.

Shape letters: N elements, M tensors, C columns.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from binsgdm.comm import AllGather, AllToAll, Protocol, RankContext
from binsgdm.comm.flat_buckets import BITS_PER_BYTE
from binsgdm.compressors import levels
from binsgdm.compressors.base import (
    GradientBucket,
    ProtocolSystem,
    Shapes,
    check_choice,
    check_values,
    is_number,
    matrix_shape,
    numel_of,
    numels_of,
)
from binsgdm.compressors.compressor import CheckedCompressor, CompressorWithMomentum, PayloadSpec, pad
from binsgdm.compressors.error_feedback import ErrorFeedback, check_momentum, local_momentum
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import host_loops
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import all_finite, packed_numel
from binsgdm.kernels.host_tensors import constant
from binsgdm.kernels.keys import Key, RandomStream
from binsgdm.kernels.random import draws

_TERNARY = (-1.0, 0.0, 1.0)


class MajorityVote(ErrorFeedback, ProtocolSystem):
    """signSGD with majority vote: the sign that most ranks have, element by element, the same on every rank.

    Each rank sends the packed signs of the k-th chunk to rank k, which counts and sends the winners to all: 2 (n-1) / n
    bits per element leave each of n ranks. A tie, possible where n is even, is broken by a fair coin that the chunk's
    owner draws, so that its mean is the paper's sign(0) = 0. The result is +1 or -1, whatever the gradient's scale. In
    front of each chunk is a byte that is 1 if any value of the sender's bucket is not finite; then the result is NaN on
    all ranks, which a sign could not show.

    Args:
        momentum: of what each rank votes, as `CompressorWithMomentum`.

    Source: Bernstein, Wang, Azizzadenesheli and Anandkumar, "signSGD: compressed optimisation for non-convex problems",
    ICML 2018, its majority vote; Bernstein, Zhao, Azizzadenesheli and Anandkumar, "signSGD with majority vote is
    communication efficient and fault tolerant", ICLR 2019; momentum: Signum, of both. Differs: every rank is the
    parameter server of one chunk; the sign of a zero gradient is +1; ties as above.
    """

    name = "sign_sgd"
    title = "SignSGD"
    source = "Bernstein et al., ICML 2018"
    wire_format = "1 bit per element to the element's owner, the winning bit to all"
    aggregation = "all_to_all + all_gather"

    def __init__(self, *, momentum: float = 0.0, rank: int = 0, world_size: int = 1) -> None:
        check_momentum(self.name, momentum)
        self.momentum = local_momentum(momentum, rank=rank, world_size=world_size)

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return the winning signs as +1 and -1; see `binsgdm.compressors.base.Averager`."""
        check_values(self.name, bucket.values, bucket.shapes)
        outgoing, world_size = self.with_momentum(bucket), context.world_size
        values = outgoing.values
        chunk = -(-values.numel() // (world_size * BITS_PER_BYTE)) * BITS_PER_BYTE
        # The same byte in front of every chunk, since each owner has to know it.
        is_broken = all_finite(values).logical_not().to(torch.uint8).expand(world_size, 1)
        signs = pack_signs(pad(values, chunk * world_size) >= 0).view(world_size, -1)
        received = yield AllToAll(group="world", sent=torch.cat([is_broken, signs], dim=1))
        # Votes of +1 less votes of -1: small integers, exact in fp32.
        balance = torch.zeros(chunk, device=values.device)
        for row in received[:, 1:]:
            balance += unpack_signs(row, chunk)
        # Drawn for every element, also where there is no tie, so that no draw depends on another element's votes.
        key = context.key(RandomStream.MERGE)
        coin = draws(key, start=context.rank * chunk, numel=chunk, device=values.device) >= 2**31
        winners = pack_signs(torch.where(balance == 0, coin, balance > 0))
        gathered = yield AllGather(group="world", sent=torch.cat([received[:, 0].amax().view(1), winners]))
        voted = unpack_signs(gathered[:, 1:].reshape(-1), values.numel())
        voted.masked_fill_(gathered[:, 0].bool().any(), torch.nan)
        self.keep(values, outgoing, voted)
        return voted


@dataclass(frozen=True, kw_only=True)
class ScaledSign(CompressorWithMomentum):
    """EF-signSGD's compressor: the sign times the mean magnitude.

    It is a contraction, not unbiased: ||v - C(v)||^2 = (1 - delta) ||v||^2 for what shares a scale, with
    delta = ||v||_1^2 / (n ||v||_2^2) >= 1 / n. Use it under error feedback (`binsgdm.compressors.error_feedback`).

    Attributes:
        scale_per: what shares a scale, "tensor" or "bucket".

    Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes signSGD and other gradient compression
    schemes", ICML 2019, its compressor of the sign and the mean magnitude. Differs: the sign of zero is +1.
    """

    name = "ef_sign_sgd"
    title = "EF-SignSGD"
    source = "Karimireddy et al., ICML 2019"
    wire_format = "1 bit per element and an fp32 scale per tensor"
    has_feedback = True
    is_unbiased = False

    scale_per: Literal["tensor", "bucket"] = "tensor"
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_choice("ef_sign_sgd: scale_per", self.scale_per, ("tensor", "bucket"))
        super().__post_init__()

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return (M,) or (1,) fp32, then (ceil(N / 8),) uint8."""
        return (torch.float32, len(self._sizes(shapes))), (torch.uint8, packed_numel(numel_of(shapes)))

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Keep signs and mean magnitudes."""
        parts = torch.split(values, self._sizes(shapes))
        sums = [part.to(torch.float64).abs_().sum() / max(1, part.numel()) for part in parts]
        scales = levels.as_scales(torch.stack(sums))
        return scales, pack_signs(values >= 0)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return sign times scale."""
        scales, signs = tensors
        return _scaled(unpack_signs(signs, numel_of(shapes)), scales, self._sizes(shapes))

    def _sizes(self, shapes: Shapes) -> list[int]:
        return numels_of(shapes) if self.scale_per == "tensor" else [numel_of(shapes)]


@dataclass(frozen=True, kw_only=True)
class OneBitSGD(CompressorWithMomentum):
    """1-bit SGD's compressor: one bit an element, and two means for each column of a matrix.

    A tensor is the matrix (shape[0], all others), so that a column has shape[0] elements; a vector is one column. What
    is negative becomes the mean of the column's negative values, the rest that of its others. It is a contraction:
    ||v - C(v)||^2 = ||v||^2 - sum of count * mean^2 over the two halves of all columns. Use it under error feedback
    (`binsgdm.compressors.error_feedback`), as the paper does. A matrix with few rows has many means: 64 bits a column.

    Source: Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to data-parallel
    distributed training of speech DNNs", Interspeech 2014 (threshold zero, values per column). Differs:
    ranks' gradients are quantized once and averaged, where the paper quantizes the sum a second time.
    """

    name = "one_bit_sgd"
    title = "1-bit SGD"
    source = "Seide et al., Interspeech 2014"
    wire_format = "1 bit per element and two fp32 means per column"
    has_feedback = True
    is_unbiased = False
    cut = "columns"  # the two means of a column stay those of the whole column

    momentum: float = 0.0

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return (2 C,) fp32, of each tensor the means of negative values, then the others; (ceil(N / 8),) uint8."""
        columns = sum(_matrix_shape(shape)[1] for shape in shapes)
        return (torch.float32, 2 * columns), (torch.uint8, packed_numel(numel_of(shapes)))

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Keep signs and the means of columns."""
        matrices = zip(torch.split(values, numels_of(shapes)), shapes, strict=True)
        means = torch.cat([_column_means(part.view(_matrix_shape(shape))).view(-1) for part, shape in matrices])
        return means, pack_signs(values >= 0)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return the mean that each bit selects."""
        means = torch.split(tensors[0], [2 * _matrix_shape(shape)[1] for shape in shapes])
        pairs = [pair.view(2, 1, -1) for pair in means]
        if host_loops.is_used_on(tensors[1].device):
            values = unpack_signs(tensors[1], numel_of(shapes))
            for part, (below, above), shape in zip(torch.split(values, numels_of(shapes)), pairs, shapes, strict=True):
                matrix = part.view(_matrix_shape(shape))
                torch.where(matrix > 0, above, below, out=matrix)
            return values
        spread = [pair.expand(2, *_matrix_shape(shape)) for pair, shape in zip(pairs, shapes, strict=True)]
        below, above = torch.cat([pair.reshape(2, -1) for pair in spread], dim=1)
        return torch.where(unpack_signs(tensors[1], numel_of(shapes)) > 0, above, below)


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns; none of either for a tensor without elements."""
    return matrix_shape(shape) if prod(shape) else (0, 0)


def _column_means(matrix: Tensor) -> Tensor:
    """Return the means, (2, C), of a matrix's negative values and of the others, 0 for none; NaN if not finite."""
    is_positive = matrix >= 0
    counts = torch.stack([(~is_positive).sum(dim=0), is_positive.sum(dim=0)])
    wide = matrix.to(torch.float64)
    # Sums without a mask: clamping leaves the values of one sign and makes the others 0.
    sums = torch.stack([wide.clamp(max=0).sum(dim=0), wide.clamp(min=0).sum(dim=0)])
    means = sums / counts.clamp(min=1)
    return levels.as_scales(means.masked_fill(~means.isfinite().all(dim=0), torch.nan))


@dataclass(frozen=True, kw_only=True)
class TernGrad(CheckedCompressor):
    """TernGrad: -1, 0 or +1 times the largest magnitude of the tensor, at random, after clipping.

    Unbiased for the clipped values, hence for all with clip_sigmas=None. The variance of a value g is |g| (s - |g|), s
    the scale. Five elements share a byte: 1.6 bits per element.

    Attributes:
        clip_sigmas: values are clipped to this many standard deviations of their tensor, above 0; None: not at all.

    Source: Wen, Xu, Yan, Wu, Wang, Chen and Li, "TernGrad: ternary gradients to reduce communication in distributed
    deep learning", NeurIPS 2017, layer-wise ternarizing and gradient clipping with c = 2.5. Differs: the standard
    deviation is taken about zero, since about its mean that of a scalar or of equal values is 0 and would clip them
    away; each rank has its own scale, as payloads are gathered and not summed (no scaler sharing); 1.6 bits per element
    where the paper counts log2(3) = 1.585.
    """

    name = "terngrad"
    title = "TernGrad"
    source = "Wen et al., NeurIPS 2017"
    wire_format = "1.6 bits per element and an fp32 scale per tensor"
    is_unbiased = False

    clip_sigmas: float | None = 2.5

    def __post_init__(self) -> None:
        sigmas = self.clip_sigmas
        if sigmas is not None and not is_number(sigmas, above=0):
            raise BinsgdmError(
                f"terngrad: clip_sigmas: {shown(sigmas)}: must be a number above 0, or None for no clipping; give 2.5"
            )

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return (M,) fp32, then (ceil(N / 5),) uint8."""
        return (torch.float32, len(shapes)), (torch.uint8, -(-numel_of(shapes) // levels.TRITS_PER_BYTE))

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:
        """Round to -s, 0 or s."""
        sizes = numels_of(shapes)
        scales = torch.stack([self._scale(part) for part in torch.split(values, sizes)])
        codes = levels.round_to_levels(values, _spread(scales, sizes), _TERNARY, key)
        return scales, levels.pack_trits(codes)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return -s, 0 or s."""
        codes = levels.unpack_trits(tensors[1], numel_of(shapes))
        values = levels.levels_of(codes, _TERNARY, len(_TERNARY) + 1)
        return _scaled(values, tensors[0], numels_of(shapes))

    def _scale(self, part: Tensor) -> Tensor:
        """Return the largest magnitude after clipping: fractions of it are limited to [-1, 1], which clips."""
        if part.numel() == 0:
            return part.new_zeros(())
        largest = part.abs().amax().to(torch.float64)
        if self.clip_sigmas is not None:
            sigma = part.to(torch.float64).square_().mean().sqrt()
            # A smaller scale is the clipping: fractions above 1 are limited to 1.
            largest = torch.minimum(largest, self.clip_sigmas * sigma)
        return levels.as_scales(largest)


def _scaled(values: Tensor, scales: Tensor, sizes: list[int]) -> Tensor:
    """Return the values of each tensor times its scale; on a CPU in place, without a scale for every element."""
    if not host_loops.is_used_on(values.device):
        return values * _spread(scales, sizes)
    for part, scale in zip(torch.split(values, sizes), scales, strict=True):
        part.mul_(scale)
    return values


def _spread(scales: Tensor, sizes: list[int]) -> Tensor:
    """Return the scale of every element from those of the tensors."""
    if host_loops.is_used_on(scales.device):  # no number of a scale for each element
        values = scales.new_empty(sum(sizes))
        for part, scale in zip(torch.split(values, sizes), scales, strict=True):
            part.copy_(scale)
        return values
    counts = constant(tuple(sizes), torch.int64, scales.device)
    return torch.repeat_interleave(scales, counts, output_size=sum(sizes))
