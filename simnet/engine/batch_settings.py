"""How one rank goes through its samples of a step, and what it keeps meanwhile: what is varied to fit a GPU."""

from typing import NamedTuple

from msgspec.structs import replace

from simnet.engine.scenario import Scenario
from simnet.workload.workload import Adam

ADAM_TEXTS: dict[Adam, str] = {"foreach": "", "fused": "AdamW(fused=True)", "8bit": "bnb.optim.AdamW8bit"}


class BatchSettings(NamedTuple):
    """How one rank goes through its samples of a step, and what it keeps meanwhile.

    Attributes:
        batch_per_rank: samples of a micro-batch.
        micro_batches: of a step.
        checkpointing: part of the repeated blocks whose activations are computed again in backward.
        gradient_as_bucket_view: DDP's argument, as in `workload.memory`.
        adam: as in `workload.memory`.
    """

    batch_per_rank: int
    micro_batches: int
    checkpointing: float
    gradient_as_bucket_view: bool = False
    adam: Adam = "foreach"

    def text(self) -> str:
        """Return the settings for people: "micro-batch 1 x 8, all blocks checkpointed"."""
        part = {0.0: "", 1.0: "all blocks checkpointed"}.get(
            self.checkpointing, f"{self.checkpointing:.0%} of the blocks checkpointed".replace("%", " %")
        )
        view = "gradient_as_bucket_view=True" if self.gradient_as_bucket_view else ""
        cut = f"micro-batch {self.batch_per_rank} x {self.micro_batches}"
        return ", ".join(filter(None, (cut, part, view, ADAM_TEXTS[self.adam])))

    def changes(self, other: "BatchSettings") -> dict[str, object]:
        """Return what of other settings differs, by key of a scenario: `{"workload.checkpointing": 0.5}`."""
        keys = {
            "workload.batch_per_rank": "batch_per_rank",
            "run.grad_accumulation": "micro_batches",
            "workload.checkpointing": "checkpointing",
            "workload.memory.gradient_as_bucket_view": "gradient_as_bucket_view",
            "workload.memory.adam": "adam",
        }
        values = {key: getattr(self, field) for key, field in keys.items()}
        return {key: value for key, value in values.items() if value != getattr(other, keys[key])}


def settings_of(scenario: Scenario) -> BatchSettings:
    """Return how a scenario cuts its batch, and what it keeps."""
    workload, memory = scenario.workload, scenario.workload.memory
    kept = (memory.gradient_as_bucket_view, memory.adam) if memory else ()
    return BatchSettings(workload.batch_per_rank, scenario.grad_accumulation, workload.checkpointing, *kept)


def with_settings(scenario: Scenario, settings: BatchSettings) -> Scenario:
    """Return a scenario of the same global batch with these settings; those of memory need `workload.memory`."""
    run, memory = scenario.run, scenario.workload.memory
    if run.global_batch is None:
        run = replace(run, grad_accumulation=settings.micro_batches)
    if memory is not None:
        memory = replace(memory, gradient_as_bucket_view=settings.gradient_as_bucket_view, adam=settings.adam)
    workload = replace(
        scenario.workload,
        batch_per_rank=settings.batch_per_rank,
        checkpointing=settings.checkpointing,
        memory=memory,
    )
    return replace(scenario, workload=workload, run=run)
