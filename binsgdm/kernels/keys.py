"""What all implementations of the kernels share: the keys and counters of draws, and the numbers of shaped rounding.

It imports none of them, so that the compiled loops, and what decides whether they run, may both import it.
"""

from dataclasses import dataclass
from enum import IntEnum

from binsgdm.errors import BinsgdmError
from binsgdm.kernels.triton_support import Words

# Elements that share eight consecutive counters: word w of counter lane l belongs to element 8 w + l. A CPU computes
# the eight counters as one vector, and its four result words are the draws of four runs of eight neighbours.
GROUP_NUMEL = 32
# A 32-bit number of the counter, and four words from each: 4 x 2^32 elements.
MAX_NUMEL = 2**34

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
# What a rounded u of 1 counts: with a residual of at most as much, all sums of both fit into 17 bits, and a residual
# into 16.
SCALE = 32767
MAX_SHAPED_VECTORS = 32767  # whose merge has a residual of at most as much
LOW_WORD = 0xFFFFFFFF


class RandomStream(IntEnum):
    """The purpose of a draw; two streams never share a counter, so their draws are independent."""

    LOCAL = 0  # first quantization: the m / b of a rank, or of a node
    MERGE = 1  # second quantization: the mean of the signs of all nodes
    INTRA_NODE = 2  # quantization inside a node, with intra_node_dtype="one_bit": the m / b of a rank
    COMMON = 3  # draws that are the same on all ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """The key of the draws of one quantization; different keys give independent draws.

    Args:
        seed: 64 bits, the same on all ranks.
        step: Optimizer steps, below 2**32.
        rank: The rank that draws, below 2**32.
        stream: One of `RandomStream`, or any number below 2**32.

    Raises:
        BinsgdmError: If a value is negative or too large.
    """

    seed: int
    step: int = 0
    rank: int = 0
    stream: int = RandomStream.LOCAL

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("step", 32), ("rank", 32), ("stream", 32)):
            value = getattr(self, name)
            if not 0 <= value < 2**bits:
                raise BinsgdmError(f"Key: {name}: {value!r}: must be at least 0 and below 2**{bits}")

    def unsigned_words(self) -> Words:
        """Return what the CPU's loops take of a key: low and high word of the seed, step, rank, stream."""
        return self.seed & LOW_WORD, self.seed >> 32, self.step, self.rank, int(self.stream)

    def words(self) -> Words:
        """Return what a Triton program takes of a key: signed, since larger ones would be compiled for 64 bits."""
        low, high, step, rank, stream = ((word ^ 2**31) - 2**31 for word in self.unsigned_words())
        return low, high, step, rank, stream
