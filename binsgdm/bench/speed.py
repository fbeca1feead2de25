"""Time fixed pieces of work now and then, which shows how fast a shared machine is while something else is measured."""

import time
from collections.abc import Callable

import torch

from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.bench.timing import SHARED_S, trial_of

EVERY_S = 0.5
"""Least time between two probes: they take some 5 % of a measurement."""
MATRIX, STREAMED = 256, 2**21
"""Rows of a square matrix that fits into a core's own cache; elements of a vector that does not."""


class SpeedProbe:
    """Times a multiplication of matrices and a pass over memory, on all ranks at once.

    Work that computes and work that streams memory slow down by different factors, so there is one piece of each.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._trials = {name: trial_of(work, ranks.device, SHARED_S) for name, work in _works(ranks.device).items()}
        self._samples: dict[str, list[float]] = {name: [] for name in self._trials}
        self._last_s = -EVERY_S

    def sample(self) -> None:
        """Take a sample unless the last one is recent; all ranks call it at the same places."""
        # The ranks agree on the time that has passed: each by its own clock, some would wait for the others for ever.
        if self._ranks.slowest([time.perf_counter() - self._last_s])[0] < EVERY_S:
            return
        for name, trial in self._trials.items():
            self._ranks.barrier()
            self._samples[name] += self._ranks.slowest(trial())
        self._last_s = time.perf_counter()

    def add_to(self, record: Record) -> None:
        """Add what was timed."""
        for name, values in self._samples.items():
            record.add("speed", name, values)


def _works(device: torch.device) -> dict[str, Callable[[], object]]:
    left, right, product = (torch.ones(MATRIX, MATRIX, device=device) for _ in range(3))
    sums, terms = torch.zeros(STREAMED, device=device), torch.ones(STREAMED, device=device)
    return {
        "multiply": lambda: torch.mm(left, right, out=product),
        "stream": lambda: sums.mul_(0.5).add_(terms, alpha=0.5),
    }
