"""Time steps of training over all cards under several strategies."""

from dataclasses import replace

from binsgdm.bench import training
from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu.parts import NotMeasurableError

STRATEGIES = ("all_reduce", "binsgdm", "binsgdm:overlap", "one_bit_adam", "qsgd:bits=4")
MODEL, QUICK_MODEL = ("transformer_25m", 64), ("mlp_200k", 2)  # model and samples a rank


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add the steps of every strategy.

    Raises:
        NotMeasurableError: one card.
    """
    if bench.ranks.world_size < 2:
        raise NotMeasurableError("one card exchanges nothing with another: needs two")
    model, batch = QUICK_MODEL if quick else MODEL
    rule = replace(bench.stop_rule, max_seconds=min(bench.stop_rule.max_seconds, seconds / len(STRATEGIES)))
    training.measure(
        replace(bench, stop_rule=rule),
        models=[model],
        batch=batch,
        strategies=[training.strategy(text) for text in STRATEGIES],
    )
