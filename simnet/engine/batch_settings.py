"""How one rank goes through its samples of a step: what is varied where a batch does not fit."""

from typing import NamedTuple

from msgspec.structs import replace

from simnet.engine.scenario import Scenario


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
