"""Where every parameter lies in the flat order of elements, and which of them travel together.

The flat order is that of the parameters from last to first, as their gradients become ready in backward. Each parameter
starts at a multiple of 32, so that its signs fill whole bytes and its draws whole groups (the kernels go 32 by 32). A
bucket is a run of whole parameters, padded so that every rank gets as many whole groups. Nothing here depends on what
any rank measures, so all ranks agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from binsgdm.kernels.keys import GROUP_NUMEL

BITS_PER_BYTE = 8


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One parameter in its bucket.

    Attributes:
        index: number of the parameter in the order in which the optimizer was given them.
        start: its first element in the flat order, a multiple of 32; draws are counted by it.
        offset: the same, from the start of its bucket.
        numel: its elements, without padding.
    """

    index: int
    start: int
    offset: int
    numel: int


@dataclass(frozen=True, kw_only=True)
class FlatBucket:
    """Parameters whose signs travel as one message of `numel` elements, padding included."""

    index: int
    start: int
    numel: int
    segments: tuple[Segment, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed signs."""
        return self.numel // BITS_PER_BYTE

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """First element and end of every stretch that holds no parameter, from the start of the bucket."""
        ends = [segment.offset + segment.numel for segment in self.segments]
        firsts = [segment.offset for segment in self.segments[1:]] + [self.numel]
        return [(end, first) for end, first in zip(ends, firsts, strict=True) if end < first]


def build(numels: Sequence[int], *, bucket_elements: int, ranks: int) -> tuple[FlatBucket, ...]:
    """Return the buckets of parameters of these sizes.

    Args:
        numels: elements of each parameter; those of size 0 are left out.
        bucket_elements: a bucket closes when it holds as many, so it may hold more.
        ranks: ranks among which a bucket is cut; its size becomes a multiple of 32 x `ranks`.
    """
    buckets: list[FlatBucket] = []
    segments: list[Segment] = []
    start = offset = 0
    # Backward reaches the last layers first, as in DDP's buckets: the first bucket can leave while backward still runs.
    for index in reversed(range(len(numels))):
        if not numels[index]:
            continue
        segments.append(Segment(index=index, start=start + offset, offset=offset, numel=numels[index]))
        # The padding makes each parameter start on a byte of its own (several threads write bytes at once) and on a
        # draw group of its own (a kernel computes 32 draws together).
        offset += _padded(numels[index], GROUP_NUMEL)
        if offset >= bucket_elements:
            buckets.append(_close(len(buckets), start, offset, segments, ranks))
            start, offset, segments = start + buckets[-1].numel, 0, []
    if segments:
        buckets.append(_close(len(buckets), start, offset, segments, ranks))
    return tuple(buckets)


def _close(index: int, start: int, numel: int, segments: list[Segment], ranks: int) -> FlatBucket:
    # Every rank owns an equal slice of whole groups, so an all-to-all of the bucket needs no sizes.
    return FlatBucket(index=index, start=start, numel=_padded(numel, GROUP_NUMEL * ranks), segments=tuple(segments))


def _padded(numel: int, unit: int) -> int:
    return -(-numel // unit) * unit
