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

from binsgdm.compressors.levels import MAX_BLOCK_SIZE
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.bits import pack_signs
from binsgdm.kernels.functional import packed_numel

# Up to this block size one level takes at most 32 + 1 + 13 = 46 bits (distance, sign, magnitude), which a window of 49
# holds.
_MAX_WIDTH = MAX_BLOCK_SIZE.bit_length()
_MAX_GROUPS = 4  # groups of an omega code: 21, 5, 3 and 2 bits at MAX_BLOCK_SIZE
_WINDOW_BITS = 56
_WINDOW_BYTES = _WINDOW_BITS // 8
_ELEMENTS_AT_ONCE = 2**20


def omega(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the omega codes of numbers in [1, 2^32), (K,) int64.

    Returns:
        The codes, each the last bits of an int64 with its first bit the most significant, and how many bits each has.

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
    """Encode signed levels of magnitude up to 127, (B, S) integers, S up to 2^20.

    Returns:
        How many bits every block has, (B,) int32, and the packed bits of all, (P,) uint8.
    """
    block, index = levels.nonzero(as_tuple=True)
    kept = levels[block, index].to(torch.int64)
    # The distance of each level from the one before it, which starts anew in each block, so that blocks decode
    # independently.
    previous = torch.full_like(index, -1)
    previous[1:] = torch.where(block[1:] == block[:-1], index[:-1], -1)
    gap_words, gap_lengths = omega(index - previous)
    level_words, level_lengths = omega(kept.abs())
    words = (gap_words << 1 | (kept > 0)) << level_lengths | level_words
    lengths = gap_lengths + 1 + level_lengths
    block_bits = torch.zeros(levels.shape[0], dtype=torch.int64, device=levels.device)
    # The last `lengths` bits of the words, one after the other: for every bit, how many of its word are to its right.
    left = torch.repeat_interleave(lengths.cumsum(0), lengths) - 1
    left -= torch.arange(left.numel(), device=left.device)
    bits = (torch.repeat_interleave(words, lengths) >> left & 1).to(torch.uint8)
    return block_bits.index_add_(0, block, lengths).to(torch.int32), pack_signs(bits)


def decode(block_bits: Tensor, packed: Tensor, *, block_size: int, max_level: int) -> Tensor:
    """Undo `encode`: return (B, S) int16, S = `block_size`; no magnitude above `max_level` is taken."""
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
    themselves: all three are (8 P + 2,) int64.
    """
    padded = torch.nn.functional.pad(packed, (0, _WINDOW_BYTES)).to(torch.int64)
    words = torch.zeros(packed.numel() + 1, dtype=torch.int64, device=packed.device)
    # The seven bytes from every byte on as one number; shifts by 0 to 7 then give a window from every bit on, of whose
    # 56 bits at least the first 49 are right, the rest may be zeros.
    for number in range(_WINDOW_BYTES):
        words = words << 8 | padded[number : number + words.numel()]
    skips = torch.arange(8, device=packed.device)
    window = ((words[:, None] << skips) & 2**_WINDOW_BITS - 1).view(-1)[: 8 * packed.numel() + 1]
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
    """Return the positions at which the symbols of each block begin, (B, at most S + 1), twice as many a round."""
    path, jump = starts[:, None], following
    while path.shape[1] <= block_size and bool((path[:, -1] < ends).any()):
        # With 2^k starts known and `jump` = 2^k symbols ahead, one lookup gives the next 2^k starts.
        path = torch.cat([path, jump[path]], dim=1)[:, : block_size + 1]
        jump = jump[jump]
    return path
