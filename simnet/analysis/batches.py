"""How a step of one global batch is cut to fit a GPU: micro-batch, accumulation, activation checkpointing."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from simnet.core.errors import SimnetError
from simnet.engine import memory_fit
from simnet.engine.scenario import Scenario
from simnet.strategies import AnyStrategy

CHECKPOINTED = (0.0, 0.5, 1.0)
"""Parts of the repeated blocks that are computed again."""


class BatchSettings(NamedTuple):
    """How one rank goes through its samples of a step.

    Attributes:
        batch_per_rank: samples of a micro-batch.
        micro_batches: of a step.
        checkpointing: part of the repeated blocks whose activations are computed again in backward.
    """

    batch_per_rank: int
    micro_batches: int
    checkpointing: float

    def text(self) -> str:
        """Return the settings for people: "micro-batch 1 x 8, all blocks checkpointed"."""
        part = {0.0: "", 1.0: ", all blocks checkpointed"}.get(
            self.checkpointing, f", {self.checkpointing:.0%} of the blocks checkpointed".replace("%", " %")
        )
        return f"micro-batch {self.batch_per_rank} x {self.micro_batches}{part}"


class Fitting(NamedTuple):
    """A scenario in which some variants of a system fit the GPU."""

    scenario: Scenario
    variants: tuple[AnyStrategy, ...]


def settings_of(scenario: Scenario) -> BatchSettings:
    """Return how a scenario cuts its batch."""
    workload = scenario.workload
    return BatchSettings(workload.batch_per_rank, scenario.grad_accumulation, workload.checkpointing)


def with_settings(scenario: Scenario, settings: BatchSettings) -> Scenario:
    """Return a scenario of the same global batch that is cut so."""
    run = scenario.run
    if run.global_batch is None:
        run = replace(run, grad_accumulation=settings.micro_batches)
    workload = replace(scenario.workload, batch_per_rank=settings.batch_per_rank, checkpointing=settings.checkpointing)
    return replace(scenario, workload=workload, run=run)


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
