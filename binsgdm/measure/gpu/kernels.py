"""Time every kernel and every compressing system over sizes, beside the copy of the same run."""

from dataclasses import replace

from binsgdm.measure import choices
from binsgdm.measure import kernels as kernel_times
from binsgdm.measure import systems as system_times
from binsgdm.measure.bench import Bench


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add the series of `simnet measure kernels --system all`.

    Args:
        bench: where to, who takes part, and when to stop.
        quick: the smallest sizes only.
        seconds: for all.
    """
    min_numel, max_numel = (2**10, 2**10) if quick else (2**16, None)
    systems = [choices.choice(name, "system") for name in choices.names()][: 1 if quick else None]
    bench = replace(
        bench, stop_rule=replace(bench.stop_rule, max_seconds=min(bench.stop_rule.max_seconds, seconds / 500))
    )
    kernel_times.measure(bench.part(0.0, 0.7), min_numel=min_numel, max_numel=max_numel)
    system_times.measure(bench.part(0.7, 1.0), systems=systems, min_numel=min_numel, max_numel=max_numel)
