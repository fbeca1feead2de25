"""The longest piece of a bucket that is cut tensor by tensor, one piece for each position of a group.

As `binsgdm.compressors.topologies` cuts it: matrices along rows or columns where a system knows matrices, else
elements; all pieces of a tensor differ by at most one row, column or element, and the first is the longest.
"""

import math
from typing import Literal

from msgspec.structs import replace

from simnet.workload.buckets import Bucket

Cut = Literal["elements", "rows", "columns"]
"""Along what a matrix (first dimension, all others) is cut: "elements" where a system knows no matrices."""


def longest_piece(bucket: Bucket, count: int, cut: Cut) -> Bucket:
    """Return the longest of `count` pieces of a bucket; equal ones where the shapes of its tensors are not known."""
    if count == 1:
        return bucket
    if bucket.shapes is None:
        return replace(bucket, num_elements=bucket.num_elements / count)
    shapes = tuple(_longest(shape, count, cut) for shape in bucket.shapes)
    return replace(bucket, num_elements=float(sum(map(math.prod, shapes))), shapes=shapes)


def _longest(shape: tuple[int, ...], count: int, cut: Cut) -> tuple[int, ...]:
    rows = shape[0] if shape else 1
    columns = math.prod(shape[1:])
    if len(shape) > 1 and rows * columns:
        if cut == "rows" and rows >= count:
            return (-(-rows // count), *shape[1:])
        if cut == "columns" and columns >= count:
            return rows, -(-columns // count)
    return (-(-math.prod(shape) // count),)
