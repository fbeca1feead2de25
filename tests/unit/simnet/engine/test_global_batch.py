"""A global batch that is given: gradients are accumulated over as many micro-batches as it takes."""

from typing import Any

import pytest
from msgspec.structs import replace

from simnet.core.errors import SimnetError
from simnet.engine.scenario import RunSettings, build
from simnet.engine.simulation import simulate
from tests.helpers.scenario_samples import pod

PER_RANK = 16


def given(batch: int | None, **changes: Any) -> dict[str, Any]:
    """Return a scenario of 2 x 8 ranks with 16 samples each, 256 at once."""
    run = {} if batch is None else {"run__global_batch": batch}
    return pod(workload__batch_per_rank=PER_RANK, **run, **changes)


@pytest.mark.parametrize(("batch", "nodes", "count"), [(256, 2, 1), (2048, 2, 8), (2048, 4, 4), (2048, 16, 1)])
def test_accumulation_follows_from_the_global_batch(batch: int, nodes: int, count: int) -> None:
    scenario = build(given(batch, cluster__num_nodes=nodes))
    assert scenario.grad_accumulation == count
    found = simulate(scenario).result
    assert found.samples_per_s * found.iteration_s == pytest.approx(batch)
    accumulated = build(given(None, run__grad_accumulation=count, cluster__num_nodes=nodes))
    assert simulate(accumulated).result.iterations_s == found.iterations_s


def test_without_one_accumulation_is_what_was_given_or_one() -> None:
    assert build(given(None)).grad_accumulation == 1
    assert build(given(None, run__grad_accumulation=3)).grad_accumulation == 3


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


def test_ranks_that_do_not_divide_it_are_refused_also_in_python() -> None:
    scenario = build(given(2048))
    with pytest.raises(ValueError, match=r"run.global_batch: 2048: must be a multiple of 24 ranks"):
        replace(scenario, cluster=replace(scenario.cluster, num_nodes=3))
    with pytest.raises(ValueError, match="grad_accumulation: 2: follows from"):
        RunSettings(global_batch=8, grad_accumulation=2)


def test_a_scenario_without_it_keeps_its_accumulation_on_other_ranks() -> None:
    scenario = build(given(2048)).without_global_batch()
    other = replace(scenario, cluster=replace(scenario.cluster, num_nodes=3))
    assert (other.run.global_batch, other.grad_accumulation) == (None, 8)
