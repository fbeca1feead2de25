"""How a step of one global batch is cut to fit a GPU: micro-batch, accumulation, activation checkpointing."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from simnet.core.errors import SimnetError
from simnet.engine import memory_fit
from simnet.engine.batch_settings import BatchSettings, settings_of, with_settings
from simnet.engine.scenario import Scenario
from simnet.strategies import AnyStrategy

CHECKPOINTED = (0.0, 0.5, 1.0)
"""Parts of the repeated blocks that are computed again."""


class Fitting(NamedTuple):
    """A scenario in which some variants of a system fit the GPU."""

    scenario: Scenario
    variants: tuple[AnyStrategy, ...]


def fitting(scenario: Scenario, variants: Iterable[AnyStrategy]) -> tuple[AnyStrategy, ...]:
    """Return the variants that are not known to need more memory than the GPU has, and can be predicted."""
    memory_of, kept = memory_fit.memories(scenario), []
    for one in variants:
        try:
            memory = memory_of(one)
        except SimnetError:
            continue
        if memory is None or memory.fits is not False:
            kept.append(one)
    return tuple(kept)


def that_fit(scenario: Scenario, variants: tuple[AnyStrategy, ...]) -> list[Fitting]:
    """Return the scenarios of the same global batch in which some of the variants fit.

    As it is given, where some fit so. Else for each part of the blocks that may be checkpointed the largest
    micro-batch that fits: smaller ones and more checkpointing are never faster.
    """
    if kept := fitting(scenario, variants):
        return [Fitting(scenario, kept)]
    found = []
    for level in _cut_smaller(scenario, variants):
        for settings in level:
            there = with_settings(scenario, settings)
            if kept := fitting(there, variants):
                found.append(Fitting(there, kept))
                break
    return found


def _cut_smaller(scenario: Scenario, variants: Iterable[AnyStrategy]) -> Iterator[list[BatchSettings]]:
    """Yield for each part that may be checkpointed the settings to try, the largest micro-batch first."""
    given, memory = settings_of(scenario), scenario.workload.memory
    if memory is None:
        return
    takes_others = all(one.takes_other_micro_batches for one in variants)
    parts = [one for one in range(1, given.batch_per_rank + 1) if given.batch_per_rank % one == 0]
    levels = [one for one in CHECKPOINTED if one >= given.checkpointing] if memory.checkpointed else []
    for level in levels or [given.checkpointing]:
        yield [
            BatchSettings(given.batch_per_rank // one, given.micro_batches * one, level)
            for one in (parts if takes_others else [1])
        ]
