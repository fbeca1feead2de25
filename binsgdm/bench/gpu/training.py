"""Time steps of training over all cards under several strategies."""

from binsgdm.bench import training
from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.bench.record import Bench

STRATEGIES = ("all_reduce", "binsgdm", "binsgdm:overlap", "one_bit_adam", "qsgd:bits=4")
MODEL, QUICK_MODEL = ("transformer_25m", 64), ("mlp_200k", 2)  # model and samples a rank


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add the steps of every strategy."""
    if bench.ranks.world_size < 2:
        raise NotMeasurableError("one card exchanges nothing with another: needs two")
    model, batch = QUICK_MODEL if quick else MODEL
    training.measure(
        bench.within(seconds / len(STRATEGIES)),
        models=[model],
        batch=batch,
        strategies=[training.strategy(text) for text in STRATEGIES],
    )
