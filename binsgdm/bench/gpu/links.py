"""Time NCCL's collectives between the cards of a node, as `measure collectives` does."""

from binsgdm.bench import collectives
from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.bench.record import Bench

MAX_BYTES = 2**28  # the gradients of BERT-Base in bf16
QUICK_MIN_BYTES, QUICK_MAX_BYTES = 2**10, 2**14


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add every collective of all cards, over sizes."""
    if bench.ranks.world_size < 2:
        raise NotMeasurableError("one card sends nothing to another: needs two")
    least, most = (QUICK_MIN_BYTES, QUICK_MAX_BYTES) if quick else (collectives.MIN_BYTES, MAX_BYTES)
    sizes = range(least.bit_length(), most.bit_length() + 1, 2)
    share_s = seconds / len(sizes) / len(collectives.kinds(bench.ranks))
    collectives.measure(bench.within(share_s), min_bytes=least, max_bytes=most)
