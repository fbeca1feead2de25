"""Sparsifiers: a few values of a bucket travel, with their indices.

All keep K of the N values of a whole bucket, so a tensor of small gradients may get none (error feedback brings them
later). Infinite and NaN values count as the largest magnitudes, so Top-k and MSTop-k deliver them, up to K. Random-k
may not draw them, so it makes all K values NaN.

Shape letters: N values of a bucket, K of them kept.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import torch
from torch import Tensor

from binsgdm.comm import AllGather, Protocol, RankContext
from binsgdm.compressors.base import Payload, Shapes, check_choice, check_whole, is_number, numel_of
from binsgdm.compressors.compressor import (
    CompressorSystem,
    CompressorWithMomentum,
    PayloadSpec,
    all_reduce_payloads,
    as_bytes,
    from_bytes,
)
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import host_loops
from binsgdm.kernels.functional import all_finite, divided
from binsgdm.kernels.keys import Key
from binsgdm.kernels.random import draws

INDEX_DTYPE = torch.int32
MAX_NUMEL = 2**31 - 1  # values of a bucket that an int32 can index
# The bits of an fp32 without its sign: read as an integer they order magnitudes, with infinity and NaN at the top.
MAGNITUDE_BITS = 31
_SAMPLE_NUMEL = 1 << 14  # of values that tell where the largest begin
_FEW_TIMES = 8  # as many as are kept


def gather_sparse_payloads(
    _compressor: CompressorSystem, payload: Payload, shapes: Shapes, context: RankContext, _: Tensor | None = None
) -> Protocol:
    """Gather every rank's values and indices, add each value at its index, and average, in the order of ranks.

    It takes time for the values sent only; `gather_payloads` would decode a whole bucket for each rank.
    """
    received = yield AllGather(group="world", sent=as_bytes(payload))
    total = torch.zeros(numel_of(shapes), device=received.device)
    for row in received:
        kept, indices = from_bytes(row, payload).tensors
        total.index_add_(0, indices.to(torch.int64), kept)
    return divided(total, context.world_size, out=total)


@dataclass(frozen=True, kw_only=True)
class _Sparsifier(CompressorWithMomentum):
    """How many values are kept: exactly one of the two is given.

    Attributes:
        ratio: of the values of each bucket, in (0, 1]; rounded to the nearest k, at least 1.
        k: values of each bucket, >= 1; all of a bucket that has fewer.
        momentum: as `CompressorWithMomentum`.
        masks_momentum: whether an element's momentum begins anew once it was sent.
        clip_norm: as `binsgdm.compressors.error_feedback.LocalMomentum`, above 0; None for no clipping.
        warmup_steps: steps over which the ratio falls to `ratio` by equal factors: ratio^(t / (warmup_steps + 1)) in
            step t.

    Source of momentum, masks_momentum, clip_norm and warmup_steps: Lin et al., "Deep gradient compression", ICLR 2018.
    Differs: the ratio falls from step to step, where theirs falls from epoch to epoch; as
    `binsgdm.compressors.error_feedback`.
    """

    ratio: float | None = None
    k: int | None = None
    momentum: float = 0.0
    masks_momentum: bool = True
    clip_norm: float | None = None
    warmup_steps: int = 0

    is_unbiased = False
    has_feedback = True
    usual_options = MappingProxyType({"ratio": 0.01})

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.k is None):
            raise BinsgdmError(
                f"{self.name}: ratio {shown(self.ratio)} and k {shown(self.k)}: exactly one must be given; "
                "drop the other"
            )
        if self.ratio is not None and not is_number(self.ratio, above=0, most=1):
            raise BinsgdmError(f"{self.name}: ratio: {shown(self.ratio)}: must be above 0 and at most 1, such as 0.01")
        if self.k is not None:
            check_whole(f"{self.name}: k", self.k, low=1)
        super().__post_init__()
        check_choice(f"{self.name}: masks_momentum", self.masks_momentum, (True, False))
        if self.clip_norm is not None and not is_number(self.clip_norm, above=0):
            raise BinsgdmError(f"{self.name}: clip_norm: {shown(self.clip_norm)}: must be above 0 and finite, or None")
        check_whole(f"{self.name}: warmup_steps", self.warmup_steps, low=0)
        if self.warmup_steps and self.ratio is None:
            raise BinsgdmError(
                f"{self.name}: warmup_steps: {shown(self.warmup_steps)}: needs ratio; give it instead of k"
            )

    def at_step(self, step: int) -> "_Sparsifier":
        """Return itself with the ratio of a step of the warm-up; itself after it."""
        if self.ratio is None or not self.warmup_steps or step > self.warmup_steps:
            return self
        return replace(self, ratio=self.ratio ** (step / (self.warmup_steps + 1)), warmup_steps=0)

    def num_sent(self, shapes: Shapes) -> int:
        """Return k for a bucket of tensors of these shapes."""
        numel = numel_of(shapes)
        if numel > MAX_NUMEL:
            raise BinsgdmError(
                f"{self.name}: a bucket of {numel} elements: must have at most {MAX_NUMEL}; lower bucket_cap_mb, and "
                "give DDP find_unused_parameters=True, without which its first bucket has all parameters"
            )
        wanted = self.k if self.k is not None else max(1, round((self.ratio or 0.0) * numel))
        return min(wanted, numel)


@dataclass(frozen=True, kw_only=True)
class _Indexed(_Sparsifier):
    """A sparsifier whose payload has the values and their indices: 8 K bytes."""

    wire_format = "k values in fp32 and their int32 indices"
    aggregate = staticmethod(gather_sparse_payloads)

    @abstractmethod
    def _indices(self, values: Tensor, num_kept: int, key: Key) -> Tensor:
        """Return which values are kept, int64 (K), each once."""

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return fp32 (K), int32 (K), the indices in ascending order."""
        num_kept = self.num_sent(shapes)
        return (torch.float32, num_kept), (INDEX_DTYPE, num_kept)

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:
        """Keep K of the values."""
        # Ascending, whatever order the selection found: the payload does not depend on the device, and memory is read
        # in order.
        indices = self._indices(values, self.num_sent(shapes), key).sort().values
        return values[indices], indices.to(INDEX_DTYPE)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return the kept values at their indices, and zeros."""
        kept, indices = tensors
        return _scattered(kept, indices.to(torch.int64), shapes)


@dataclass(frozen=True, kw_only=True)
class TopK(_Indexed):
    """Keep the K values of largest magnitude; for equal magnitudes, those that torch.topk takes.

    Biased: ||v - C(v)||^2 <= (1 - K / N) ||v||^2, and no other choice of K values has less error.

    Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017 (its ratio: 0.01;
    error feedback, `ErrorFeedback`, is part of it). Differs: exactly K values by selection, where the paper takes those
    above a threshold estimated on a sample; K is counted over a bucket, neither over a matrix nor
    over the model (the paper's "local" and "global" threshold).
    """

    name = "top_k"
    title = "Top-k"
    source = "Aji and Heafield, EMNLP 2017"

    def _indices(self, values: Tensor, num_kept: int, key: Key) -> Tensor:  # noqa: ARG002
        indices = _largest(values, num_kept) if host_loops.is_used_on(values.device) else None
        return torch.topk(values.abs(), num_kept, sorted=False).indices if indices is None else indices


def _largest(values: Tensor, num_kept: int) -> Tensor | None:
    """Return which values are largest in magnitude; None where others are as large as the smallest of them, or NaN.

    One pass finds the few that are above what a sample says; the rest is done among these.
    """
    sample = values[:: max(1, values.numel() // _SAMPLE_NUMEL)].abs()
    # Twice as many as wanted, and so many more that chance does not leave too few.
    rank = min(sample.numel(), math.ceil(2 * num_kept * sample.numel() / values.numel()) + 32)
    guess = sample.kthvalue(sample.numel() - rank + 1).values.view(torch.int32).item()
    most = min(values.numel(), 4 * num_kept + 128 * values.numel() // sample.numel())
    candidates = host_loops.indices_above(values, int(guess) - 1, most)
    if candidates is None or candidates.numel() < num_kept:
        return None
    magnitudes = values[candidates].abs()
    smallest = magnitudes.kthvalue(magnitudes.numel() - num_kept + 1).values
    kept = candidates[magnitudes >= smallest]
    return kept if kept.numel() == num_kept and not smallest.isnan() else None


@dataclass(frozen=True, kw_only=True)
class MSTopK(_Indexed):
    """Keep K values of largest magnitude without sorting: bisect for the threshold by counting.

    After `num_samplings` counts a lower threshold keeps at least K and an upper one at most K. All above the upper are
    kept, and the rest are a run, from a random start, of those between the two. With 31 samplings the thresholds are
    neighbours, and C(v) is a Top-k. With fewer, every kept value has at least 1 - 2**(8 - num_samplings) times the K-th
    largest magnitude (for magnitudes that are normal fp32 numbers). Always exactly K.

    Attributes:
        num_samplings: counts over all values, in [1, 31].

    Source: Shi et al., "Towards scalable distributed training of deep learning on public cloud clusters", MLSys 2021,
    its MSTopK (bisection by a number of samplings). Differs: bisects the bit pattern of |v| between 0 and its maximum,
    where the paper bisects its value between the mean and the maximum. So nothing overflows, K may be more than there
    are values above the mean, NaN is ordered, and 31 halvings are exact. HiTopKComm, by which the paper averages in the
    node first, is the hierarchical topology, the default on nodes of several ranks.
    """

    num_samplings: int = MAGNITUDE_BITS

    name = "ms_top_k"
    averages_in_node = True
    title = "MSTop-k"
    source = "Shi et al., MLSys 2021"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(f"{self.name}: num_samplings", self.num_samplings, low=1, high=MAGNITUDE_BITS)

    def _indices(self, values: Tensor, num_kept: int, key: Key) -> Tensor:
        if host_loops.is_used_on(values.device):
            parts = _between(values, num_kept, self.num_samplings)
            if parts is not None:
                return self._chosen(*parts, num_kept, key)
        magnitudes = values.abs().view(torch.int32)
        lower, upper = _thresholds(magnitudes, num_kept, self.num_samplings)
        above = (magnitudes > upper).nonzero().view(-1)
        between = ((magnitudes > lower) & (magnitudes <= upper)).nonzero().view(-1)
        return self._chosen(above, between, num_kept, key)

    def _chosen(self, above: Tensor, between: Tensor, num_kept: int, key: Key) -> Tensor:
        num_missing = num_kept - above.numel()
        # Values between the thresholds are near each other; a run from a random start favours no position of the model.
        start = int(draws(key, start=0, numel=1).item()) % (between.numel() - num_missing + 1)
        return torch.cat([above, between[start : start + num_missing]])


def _between(values: Tensor, num_kept: int, num_samplings: int) -> tuple[Tensor, Tensor] | None:
    """Return which values are above both of `_thresholds`, and above the first alone; None if these are many.

    Only values between the thresholds so far are counted, as soon as they are few.
    """
    lower, upper = -1, 2**MAGNITUDE_BITS - 1
    few: Tensor | None = None  # magnitudes above what was the lower threshold
    for _ in range(num_samplings):
        middle = (lower + upper) // 2
        count = host_loops.count_above(values, middle) if few is None else int((few > middle).sum())
        if count > num_kept:
            lower = middle
            if few is None and count <= _FEW_TIMES * num_kept:
                indices = host_loops.indices_above(values, lower, count)
                few = None if indices is None else values[indices].abs().view(torch.int32)
        else:
            upper = middle
    candidates = host_loops.indices_above(values, lower, min(values.numel(), _FEW_TIMES * num_kept))
    if candidates is None:
        return None
    is_above = values[candidates].abs().view(torch.int32) > upper
    return candidates[is_above], candidates[~is_above]


def _thresholds(magnitudes: Tensor, num_kept: int, num_samplings: int) -> tuple[Tensor, Tensor]:
    """Return bit patterns: at least `num_kept` magnitudes are above the first, at most as many above the second.

    They stay on the device: nothing waits for a count. Both fit an int32, as which torch compares them.
    """
    lower = torch.full((), -1, dtype=torch.int64, device=magnitudes.device)
    upper = torch.full_like(lower, 2**MAGNITUDE_BITS - 1)
    for _ in range(num_samplings):
        # Bit patterns of floats are ordered as their values, so halving the pattern bisects exponent and mantissa
        # alike.
        middle = (lower + upper) // 2
        is_too_low = (magnitudes > middle).sum() > num_kept
        lower, upper = torch.where(is_too_low, middle, lower), torch.where(is_too_low, upper, middle)
    return lower, upper


@dataclass(frozen=True, kw_only=True)
class RandomK(_Sparsifier):
    """Keep K values drawn uniformly without replacement, alike on all ranks, so that payloads can be added up.

    As they are: biased, E ||v - C(v)||^2 = (1 - K / N) ||v||^2, for error feedback. Or times N / K: unbiased, with
    E ||v - C(v)||^2 = (N / K - 1) ||v||^2, without error feedback, with which it would diverge; a value above the
    largest fp32 times K / N overflows. Only values travel: 4 K bytes.

    Attributes:
        unbiased: times N / K.

    Source: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018, its rand_k; unbiased=True: Wangni,
    Wang, Liu and Zhang, "Gradient sparsification for communication-efficient distributed optimization", NeurIPS 2018,
    with the uniform probabilities K / N. Differs: indices common to all ranks (as the Random K that Vogels et al. 2019
    compare with); with unbiased=True exactly K values instead of K on average.
    """

    unbiased: bool = False

    name = "random_k"
    title = "Random-k"
    source = "Stich et al., NeurIPS 2018; unbiased=True: Wangni et al., NeurIPS 2018, without error feedback"
    wire_format = "k values in fp32, at indices common to all ranks"
    aggregation = "all_reduce"
    uses_common_key = True
    aggregate = staticmethod(all_reduce_payloads)

    def __post_init__(self) -> None:
        check_choice("random_k: unbiased", self.unbiased, (True, False))
        super().__post_init__()
        if self.unbiased and (self.momentum or self.clip_norm is not None):
            raise BinsgdmError("random_k: momentum, clip_norm: have no effect with unbiased=True; drop one of them")

    @property
    def is_unbiased(self) -> bool:  # type: ignore[override]
        """Tell which of the two it is."""
        return self.unbiased

    def needs_feedback(self) -> bool:
        """Tell whether it is not unbiased."""
        return not self.unbiased

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return fp32 (K), in the order of the drawn indices."""
        return ((torch.float32, self.num_sent(shapes)),)

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:
        """Keep the K values that the key draws."""
        num_kept = self.num_sent(shapes)
        scale = values.numel() / max(1, num_kept) if self.unbiased else 1.0
        kept = values[drawn_indices(values.numel(), num_kept, key, values.device)] * scale
        return (kept.masked_fill_(all_finite(values).logical_not(), torch.nan),)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:
        """Return the kept values where the same key puts them, and zeros."""
        (kept,) = tensors
        return _scattered(kept, drawn_indices(numel_of(shapes), kept.numel(), key, kept.device), shapes)


def drawn_indices(numel: int, num_kept: int, key: Key, device: torch.device) -> Tensor:
    """Draw `num_kept` of `numel` indices uniformly without replacement: those of the smallest draws.

    Equal draws (a chance of 2**-32 a pair) go to the lower index, so that every device gives the same indices, which
    are int64 and ascend. `numel` is at most 2**31 - 1.
    """
    if host_loops.is_used_on(device) and (indices := _drawn_on_host(numel, num_kept, key)) is not None:
        return indices
    # The index in the low bits breaks ties. Keeping the smallest of all draws is a draw without replacement.
    tickets = draws(key, start=0, numel=numel, device=device).bitwise_left_shift_(MAGNITUDE_BITS)
    tickets.bitwise_or_(torch.arange(numel, device=device))
    return torch.topk(tickets, num_kept, largest=False, sorted=False).indices.sort().values


@lru_cache(maxsize=1)
def _drawn_on_host(numel: int, num_kept: int, key: Key) -> Tensor | None:
    # Kept: a step draws the same when it encodes and when it decodes.
    return host_loops.smallest_draws(key.unsigned_words(), numel, num_kept)


def _scattered(kept: Tensor, indices: Tensor, shapes: Shapes) -> Tensor:
    return torch.zeros(numel_of(shapes), device=kept.device).index_copy_(0, indices, kept)
