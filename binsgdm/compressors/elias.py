"""Elias's recursive (omega) code for blocks of small signed levels that are mostly zero.

For each level that is not zero, in order, a block's bits are: omega of the distance from the previous such level of the
block (from one before its first element), a bit that is 1 for a positive level, and omega of the level's magnitude.
Blocks follow each other without padding, most significant bit first.

Source: Elias, "Universal codeword sets and representations of the integers", IEEE Transactions on Information Theory
21(2), 1975; the layout is Code_s of QSGD, Alistarh et al., NeurIPS 2017. Differs: the scale
travels apart, and the bits of each block are stated (32 bits a block more), so that blocks are decoded at once.

Shape letters: B blocks, S elements of a block, K levels that are not zero, T bits, P = ceil(T / 8) bytes.
"""

import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels.bits import pack_signs, packed_numel

# Up to this size one level takes at most 32 + 1 + 13 = 46 bits (distance, sign, magnitude), which a window of 49 holds.
MAX_BLOCK_SIZE = 2**20
MAX_LEVEL = 127

_MAX_GROUPS = 4  # groups of an omega code: 21, 5, 3 and 2 bits at MAX_BLOCK_SIZE
_WINDOW_BITS = 56
_WINDOW_BYTES = _WINDOW_BITS // 8
_MAX_WIDTH = MAX_BLOCK_SIZE.bit_length()
_ELEMENTS_AT_ONCE = 2**20


def omega(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the omega codes of numbers in [1, 2^32).

    Returns:
        The codes, each the last bits of an int64 with its first bit the most significant, and how many bits each has.

    Shape:
        numbers: (K,) int64; returned: (K,), (K,) int64.

    Source: Elias 1975, the code omega: 0 for 1; otherwise the number in binary before that 0, before it the number's
    bits less one, and so on down to 1.

    Example:
        >>> omega(torch.tensor([1, 2, 9]))
        (tensor([  0,   4, 114]), tensor([1, 3, 7]))
    """
    # Built from the end: first the closing 0, then group after group in front of it.
    words, lengths = torch.zeros_like(numbers), torch.ones_like(numbers)
    for _ in range(_MAX_GROUPS):
        # The bit length: frexp gives the exponent of a mantissa in [1/2, 1), exact for integers below 2^53.
        width = torch.frexp(numbers.to(torch.float64)).exponent.to(torch.int64)
        is_group = numbers > 1
        words = torch.where(is_group, words | numbers << lengths, words)
        lengths = torch.where(is_group, lengths + width, lengths)
        numbers = torch.where(is_group, width - 1, numbers)
    return words, lengths


def encode(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Encode signed levels of magnitude up to 127.

    Returns:
        The bits of every block, and the packed bits of all.

    Shape:
        levels: (B, S) integers, S up to 2^20; returned: (B,) int32, (P,) uint8.
    """
    block, index = levels.nonzero(as_tuple=True)
    kept = levels[block, index].to(torch.int64)
    gap_words, gap_lengths = omega(_gaps(block, index))
    level_words, level_lengths = omega(kept.abs())
    words = (gap_words << 1 | (kept > 0)) << level_lengths | level_words
    lengths = gap_lengths + 1 + level_lengths
    block_bits = torch.zeros(levels.shape[0], dtype=torch.int64, device=levels.device)
    return block_bits.index_add_(0, block, lengths).to(torch.int32), pack_signs(_bits(words, lengths))


def _gaps(block: Tensor, index: Tensor) -> Tensor:
    """Return the distance of each level that is not zero from the one before it in its block, from -1 for the first.

    Shape:
        block: (K,), the number of the level's block, ascending; index: (K,), its index in the block; returned: (K,).
    """
    # Distances start anew in each block, so that blocks decode independently.
    previous = torch.full_like(index, -1)
    previous[1:] = torch.where(block[1:] == block[:-1], index[:-1], -1)
    return index - previous


def _bits(words: Tensor, lengths: Tensor) -> Tensor:
    """Return the last `lengths` bits of the words, one after the other, as a uint8 each."""
    ends = lengths.cumsum(0)
    # For every output bit, how many bits of its word are to its right.
    left = torch.repeat_interleave(ends, lengths) - 1
    left -= torch.arange(left.numel(), device=left.device)
    return (torch.repeat_interleave(words, lengths) >> left & 1).to(torch.uint8)


def decode(block_bits: Tensor, packed: Tensor, *, block_size: int, max_level: int) -> Tensor:
    """Undo `encode`.

    Args:
        block_bits: as `encode` gave.
        packed: as `encode` gave.
        block_size: elements of a block, S.
        max_level: the largest magnitude there can be.

    Shape:
        block_bits: (B,) int32; packed: (P,) uint8; returned: (B, S) int16.
    """
    bits = block_bits.to(torch.int64)
    ends = [0, *bits.cumsum(0).tolist()]
    if bool((bits < 0).any()) or packed_numel(ends[-1]) != packed.numel():
        raise BinsgdmError(
            f"elias: blocks of {ends[-1]} bits in {packed.numel()} bytes: must fill them; pass the output of encode"
        )
    levels = torch.zeros(bits.numel(), block_size, dtype=torch.int16, device=packed.device)
    blocks_at_once = max(1, _ELEMENTS_AT_ONCE // block_size)
    for first in range(0, bits.numel(), blocks_at_once):
        some = bits[first : first + blocks_at_once]
        start, end = ends[first], ends[first + some.numel()]
        # Bounded memory: decoding makes several int64 values for every bit.
        piece = packed[start // 8 : packed_numel(end)]
        _decode_into(levels[first : first + some.numel()], some, piece, start % 8, max_level)
    return levels


def _decode_into(levels: Tensor, bits: Tensor, packed: Tensor, skip: int, max_level: int) -> None:
    """Decode blocks whose first bit is number `skip` of the bytes."""
    ends = skip + bits.cumsum(0)
    # A symbol (distance, sign, magnitude) starts where the one before it ends: decoding in order would take a step for
    # each. So decode at every bit position at once, and then follow the chain of starts by doubling, in log2 steps.
    gap, signed, following = _symbols(packed)
    path = _paths(ends - bits, ends, following, levels.shape[1])
    is_symbol = path < ends[:, None]
    # An index is the sum of the distances so far, from one before the first element of the block.
    index = torch.where(is_symbol, gap[path], 0).cumsum(1) - 1
    level = torch.where(is_symbol, signed[path], 0)
    arrived = path.gather(1, is_symbol.sum(dim=1, keepdim=True).clamp(max=path.shape[1] - 1))[:, 0]
    is_right = (arrived == ends).all() & (index < levels.shape[1]).all() & (level.abs() <= max_level).all()
    if not bool(is_right):
        raise BinsgdmError(
            f"elias: bits that do not decode to {levels.shape[1]} levels up to {max_level} a block: must be what "
            "encode gave; compress with the same settings and version"
        )
    block, number = is_symbol.nonzero(as_tuple=True)
    levels[block, index[block, number]] = level[block, number].to(levels.dtype)


def _symbols(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decode at every bit as if a symbol began there: its distance, its signed level, where the next would begin.

    Two more entries stand for the end and for what is beyond it, where a symbol leads that is cut off; both lead to
    themselves.

    Shape:
        packed: (P,); returned: three of (8 P + 2,) int64.
    """
    window = _windows(packed)
    gap, used = _read_omega(window, torch.zeros_like(window))
    positive = _bit(window, used)
    level, used = _read_omega(window, used + 1)
    end = window.numel() - 1
    # Broken bits may lead anywhere: clamped, every jump stays inside the tables, and the caller finds the error
    # afterwards.
    following = (torch.arange(window.numel(), device=packed.device) + used).clamp_(max=end + 1)
    following[end] = end
    beyond = following.new_full((1,), end + 1)
    nothing = torch.zeros_like(beyond)
    signed = level * (2 * positive - 1)
    return torch.cat([gap, nothing]), torch.cat([signed, nothing]), torch.cat([following, beyond])


def _windows(packed: Tensor) -> Tensor:
    """Return a 56-bit window from every bit on; at least its first 49 bits are right, the rest may be zeros.

    Shape:
        packed: (P,); returned: (8 P + 1,) int64.
    """
    padded = torch.nn.functional.pad(packed, (0, _WINDOW_BYTES)).to(torch.int64)
    words = torch.zeros(packed.numel() + 1, dtype=torch.int64, device=packed.device)
    # The seven bytes from every byte on as one number; shifts by 0 to 7 then give the window of every bit.
    for number in range(_WINDOW_BYTES):
        words = words << 8 | padded[number : number + words.numel()]
    skips = torch.arange(8, device=packed.device)
    windows: Tensor = ((words[:, None] << skips) & 2**_WINDOW_BITS - 1).view(-1)
    return windows[: 8 * packed.numel() + 1]


def _read_omega(window: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Return the omega-coded number after the first `used` bits of each window, and the bits used with it.

    Where no code begins the number means nothing, and the bits used are still in [1, 56].
    """
    number, is_open = torch.ones_like(window), torch.ones_like(window, dtype=torch.bool)
    for _ in range(_MAX_GROUPS):
        is_open &= _bit(window, used) == 1
        # A group's value is the width of the next group, less 1. Clamped, since between symbols the bits mean nothing.
        width = number.clamp(max=_MAX_WIDTH - 1) + 1
        group = window >> (_WINDOW_BITS - used - width).clamp(min=0) & (1 << width) - 1
        number = torch.where(is_open, group, number)
        used = torch.where(is_open, used + width, used).clamp(max=_WINDOW_BITS - 1)
    return number, used + 1


def _bit(window: Tensor, position: Tensor) -> Tensor:
    return window >> (_WINDOW_BITS - 1 - position).clamp(min=0) & 1


def _paths(starts: Tensor, ends: Tensor, following: Tensor, block_size: int) -> Tensor:
    """Return the positions at which the symbols of each block begin, twice as many in every round.

    Shape:
        starts, ends: (B,); following: (8 P + 1,); returned: (B, at most S + 1), each row up to its end at least.
    """
    path, jump = starts[:, None], following
    while path.shape[1] <= block_size and bool((path[:, -1] < ends).any()):
        # With 2^k starts known and `jump` = 2^k symbols ahead, one lookup gives the next 2^k starts.
        path = torch.cat([path, jump[path]], dim=1)[:, : block_size + 1]
        jump = jump[jump]
    return path
