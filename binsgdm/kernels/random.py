"""Random thresholds that depend on nothing but (seed, step, rank, stream, element).

The generator is Philox4x32-10, the one of cuRAND, PyTorch on CUDA and Triton: a keyed bijection of 128-bit counters,
so that distinct arguments are distinct counters and no state is kept. The layout, the limits and the tests are in
docs/explanation/algorithm.md.

Shape letters: N elements, C counters of four words each.
"""

import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels import host_loops, triton_support
from binsgdm.kernels.keys import GROUP_NUMEL, LOW_WORD, MAX_NUMEL, MULTIPLIERS, ROUNDS, WEYL, Key

_LANES = GROUP_NUMEL // 4
# Elements that are drawn at once: on a CPU, words that fit into caches take a third of the time of more. A GPU works on
# 2^22 for longer than the host takes to launch it, and needs 32 MiB for each of their words.
_DITHER_NUMEL = {"cpu": 1 << 16, "cuda": 1 << 22}


def philox(counter: tuple[Tensor | int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Encrypt 128-bit counters with Philox4x32-10.

    Args:
        counter: Four 32-bit words, least significant first, as int64 tensors (C) or numbers; at least one a tensor.
        seed: The 64-bit key.

    Returns:
        Four int64 tensors (C) with values in [0, 2**32).

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.4.
    """
    like = next(word for word in counter if isinstance(word, Tensor))
    # A rank computes any element's draw from the key and the element's number. So one process can redo the draws of all
    # ranks, the draws do not depend on buckets, threads or devices, and a checkpoint needs no generator state.
    c0, c1, c2, c3 = (torch.zeros_like(like) + word for word in counter)
    k0, k1 = seed & LOW_WORD, seed >> 32
    for _ in range(ROUNDS):
        # An int64 product wraps, but its 64 bits are those of the unsigned one.
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> 32 & LOW_WORD) ^ c1 ^ k0, p1 & LOW_WORD, (p0 >> 32 & LOW_WORD) ^ c3 ^ k1, p0 & LOW_WORD
        # The key of the next round: a Weyl sequence, whose steps are those of the paper.
        k0, k1 = k0 + WEYL[0] & LOW_WORD, k1 + WEYL[1] & LOW_WORD
    return c0, c1, c2, c3


def draws(key: Key, *, start: int, numel: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the 32-bit draws of the elements [start, start + numel).

    Returns:
        int64 (N), values in [0, 2**32). An element outside [0, 2**34) is refused.
    """
    if (written := _written(torch.int64, key, start, numel, torch.device(device))) is not None:
        return written
    first, last = start // GROUP_NUMEL, -(-(start + numel) // GROUP_NUMEL)
    counters = torch.arange(first * _LANES, last * _LANES, dtype=torch.int64, device=device)
    # The element is in the counter's first word, and step, rank and stream fill the other three: 2^32 of each.
    words = torch.stack(philox((counters, key.step, key.rank, key.stream), key.seed))
    skip = start - first * GROUP_NUMEL
    # From word-major (4 words x counters) to element order: group, word, lane.
    return words.view(4, -1, _LANES).transpose(0, 1).reshape(-1)[skip : skip + numel]


def thresholds(key: Key, *, start: int, numel: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the uniform thresholds t of the elements [start, start + numel).

    A sign is +1 where t < u. With t = k * 2**-22 - 1, k uniform in [0, 2**23): u = 1 is always +1, u = -1 never,
    u = 0 half the time, and any other u has an expected sign in [u, u + 2**-22).

    Returns:
        fp32 (N), multiples of 2**-22 in [-1, 1).
    """
    if (written := _written(torch.float32, key, start, numel, torch.device(device))) is not None:
        return written
    # 23 bits fit an fp32 mantissa: the threshold below is exact, so every device compares the same number.
    mantissas = draws(key, start=start, numel=numel, device=device) >> 9
    return mantissas.to(torch.float32) * 2.0**-22 - 1.0


def uniforms(key: Key, *, start: int, numel: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the middles of 2^23 equal parts of [0, 1), which the draws choose.

    Returns:
        fp32 (N), each k * 2**-23 + 2**-24 rounded once.
    """
    if any(loops.is_used_on(torch.device(device)) for loops in (triton_support, host_loops)):
        # A threshold is k * 2**-22 - 1, and its half is exact: 4 bytes an element to write, where a draw takes 8.
        return thresholds(key, start=start, numel=numel, device=device).mul_(0.5).add_(0.5 + 2.0**-24)
    parts = draws(key, start=start, numel=numel, device=device) >> 9
    return parts.to(torch.float32).mul_(2.0**-23).add_(2.0**-24)


def dither(key: Key, *, start: int, numel: int, limit: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the residuals that shaped rounding starts from, uniform in [-limit, limit).

    Without them all elements of the same u would round alike, and move further together than by draws. A residual of
    `limit` is left out, since a step from it is the step from -limit with the other sign: the rest are a circle on
    which every step turns, so that they stay uniform. The limit, which none exceeds, is `keys.SCALE`, or K for a
    merge of K signs, and at most 32767.

    Returns:
        int16 (N): ((draw >> 9) 2 limit >> 23) - limit.
    """
    _check_range(start, numel)
    made = torch.empty(numel, dtype=torch.int16, device=device)
    # Piece by piece: draws take 8 bytes an element and some more on the way, many times what is kept.
    size = _DITHER_NUMEL.get(torch.device(device).type, _DITHER_NUMEL["cpu"])
    for lo in range(0, numel, size):
        piece = made[lo : lo + size]
        drawn = draws(key, start=start + lo, numel=piece.numel(), device=device)
        piece.copy_(drawn.bitwise_right_shift_(9).mul_(2 * limit).bitwise_right_shift_(23).sub_(limit))
    return made


def _check_range(start: int, numel: int) -> None:
    if start < 0 or start + numel > MAX_NUMEL:
        raise BinsgdmError(f"draws: elements {start} to {start + numel}: must be in [0, 2**34]")


def _written(dtype: torch.dtype, key: Key, start: int, numel: int, device: torch.device) -> Tensor | None:
    """Return int64 draws or fp32 thresholds, in one pass over memory; None where plain torch makes the same bits."""
    _check_range(start, numel)
    if triton_support.is_used_on(device):
        from binsgdm.kernels import triton_signs

        out = torch.empty(numel, dtype=dtype, device=device)
        triton_signs.write_draws(out, key.words(), start=start)
        return out
    if host_loops.is_used_on(device):
        name = "write_draws" if dtype == torch.int64 else "write_thresholds"
        return host_loops.filled(name, numel, start, key.unsigned_words(), dtype=dtype)
    return None
