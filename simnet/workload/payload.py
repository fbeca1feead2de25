"""Bytes of the payload of one bucket, for every system that compresses gradients: what `binsgdm.compressors` sends."""

import math

from simnet.errors import SimnetError
from simnet.strategies import (
    Atomo,
    EFSignSGD,
    LowRank,
    OneBitSGD,
    Quantizing,
    Sparsifying,
    TernGrad,
)
from simnet.workload.buckets import Bucket

BITS_PER_BYTE = 8
SCALE_BYTES = INDEX_BYTES = VALUE_BYTES = 4
TRITS_PER_BYTE = 5

Shapes = tuple[tuple[int, ...], ...]


def quantized_bytes(strategy: Quantizing, bucket: Bucket) -> float:
    """Return the bytes of codes and norms, and with "elias" of the lengths of blocks."""
    num_blocks = math.ceil(bucket.num_elements / strategy.block_size)
    if strategy.coded_bits is not None:
        return (SCALE_BYTES + 4) * num_blocks + _bytes(bucket.num_elements * strategy.coded_bits)
    return SCALE_BYTES * num_blocks + _bytes(bucket.num_elements * strategy.bits)


def ef_sign_bytes(strategy: EFSignSGD, bucket: Bucket) -> float:
    """Return the bytes of signs and scales."""
    num_scales = len(_shapes(bucket, "ef_sign_sgd")) if strategy.scale_per == "tensor" else 1
    return _bytes(bucket.num_elements) + SCALE_BYTES * num_scales


def one_bit_sgd_bytes(_strategy: OneBitSGD, bucket: Bucket) -> float:
    """Return the bytes of signs and two means a column."""
    columns = sum(_columns(shape) for shape in _shapes(bucket, "one_bit_sgd"))
    return _bytes(bucket.num_elements) + 2 * SCALE_BYTES * columns


def terngrad_bytes(_strategy: TernGrad, bucket: Bucket) -> float:
    """Return the bytes of five elements each and a scale a tensor."""
    return math.ceil(bucket.num_elements / TRITS_PER_BYTE) + SCALE_BYTES * len(_shapes(bucket, "terngrad"))


def kept_bytes(strategy: Sparsifying, bucket: Bucket, *, with_indices: bool) -> float:
    """Return the bytes of the values that are kept."""
    each = VALUE_BYTES + (INDEX_BYTES if with_indices else 0)
    return each * strategy.num_kept(bucket.num_elements)


def factor_bytes(strategy: LowRank, bucket: Bucket) -> tuple[float, float, float]:
    """Return the bytes of the left factors (n, r), of the right ones (m, r), and of what is not factored."""
    factored, whole = _parted(bucket, strategy.matrix_rank, str(strategy.__struct_config__.tag))
    left = sum(rows for rows, _ in factored) * strategy.matrix_rank
    right = sum(columns for _, columns in factored) * strategy.matrix_rank
    return VALUE_BYTES * left, VALUE_BYTES * right, VALUE_BYTES * whole


def atomo_bytes(strategy: Atomo, bucket: Bucket) -> float:
    """Return the mean bytes of the triplets, with how many there are of each matrix, and of what is not factored."""
    factored, whole = _parted(bucket, strategy.budget, "atomo")
    triplets = sum(min(strategy.budget, *sides) * sum(sides) for sides in factored)
    return VALUE_BYTES * (triplets + whole + len(factored))


def _parted(bucket: Bucket, matrix_rank: float, name: str) -> tuple[list[tuple[int, int]], int]:
    """Return rows and columns of the matrices that factors make smaller, and the elements of all other tensors."""
    shapes = _shapes(bucket, name)
    sides = [_matrix(shape) for shape in shapes]
    factored = [(rows, columns) for rows, columns in sides if matrix_rank * (rows + columns) < rows * columns]
    whole = sum(math.prod(shape) for shape in shapes) - sum(rows * columns for rows, columns in factored)
    return factored, whole


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0] if shape else 1, math.prod(shape[1:])


def _columns(shape: tuple[int, ...]) -> int:
    return math.prod(shape[1:]) if math.prod(shape) else 0


def _shapes(bucket: Bucket, name: str) -> Shapes:
    """Return the shapes of a bucket's tensors.

    Raises:
        SimnetError: they are not known.
    """
    if bucket.shapes is None:
        raise SimnetError(
            f"strategy.kind: {name!r}: its payload depends on the shapes of the tensors: give workload.gradients, or a "
            "shape with each of workload.tensors"
        )
    return bucket.shapes


def _bytes(bits: float) -> float:
    return math.ceil(bits / BITS_PER_BYTE)
