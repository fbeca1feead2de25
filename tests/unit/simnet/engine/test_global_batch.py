"""A global batch that is given: gradients are accumulated over as many micro-batches as it takes."""

from typing import Any

import pytest
from msgspec.structs import replace

from simnet.core.errors import SimnetError
from simnet.engine.scenario import build
from tests.helpers.scenario_samples import pod

PER_RANK = 16


def given(batch: int | None, **changes: Any) -> dict[str, Any]:
    """Return a scenario of 2 x 8 ranks with 16 samples each, 256 at once."""
    run = {} if batch is None else {"run__global_batch": batch}
    return pod(workload__batch_per_rank=PER_RANK, **run, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch": 1000},
            r"^x: run.global_batch: 1000: must be a multiple of 16 ranks x 16 samples = 256; change it, workload",
        ),
        ({"batch": 128}, r"^x: run.global_batch: 128: must be a multiple of 16 ranks x 16 samples = 256"),
        (
            {"batch": 256 * 10_001},
            r"10001 micro-batches of 16 ranks x 16 samples: at most 10000; raise workload.batch_p",
        ),
        ({"batch": 0}, r"^x: run.global_batch: 0: must be a whole number of at least 1"),
        ({"batch": "512"}, r"^x: run.global_batch: '512': write a whole number without quotes"),
        (
            {"batch": 256, "run__grad_accumulation": 1},
            r"^x: run.grad_accumulation: 1: follows from global_batch = 256; drop one of the two",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SimnetError, match=message):
        build(given(**changes), "x")


def test_a_scenario_without_it_keeps_its_accumulation_on_other_ranks() -> None:
    scenario = build(given(2048)).without_global_batch()
    other = replace(scenario, cluster=replace(scenario.cluster, num_nodes=3))
    assert (other.run.global_batch, other.grad_accumulation) == (None, 8)
