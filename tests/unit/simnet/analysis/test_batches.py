"""How a batch is cut to fit a GPU: micro-batches, accumulation, activation checkpointing."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

import simnet
from simnet.analysis import batches
from simnet.analysis.advise import advise
from simnet.analysis.batches import BatchSettings
from simnet.analysis.tune import chosen
from simnet.core.units import Size
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce
from simnet.workload.workload import Checkpointed, StepMemory
from tests.helpers.advise_samples import WORKLOAD, row, scenario
from tests.helpers.refusals import refused

GB = 1e9


def given() -> Scenario:
    """Return a scenario on GPUs of 80 GB whose model takes 12 GB beside activations."""
    memory = StepMemory(
        parameters=Size(2 * GB),
        gradients=Size(2 * GB),
        optimizer=Size(4 * GB),
        activations_per_sample=Size(20 * GB),
        checkpointed=Checkpointed(activations_per_sample=Size(2 * GB), recomputed=0.8, blocks=4),
    )
    found = scenario(gbit_per_s=10, workload=replace(WORKLOAD, memory=memory, batch_per_rank=8))
    return replace(found, cluster=replace(found.cluster, gpu="A100-80GB"))


def test_the_largest_micro_batch_that_fits_is_taken_at_each_level_and_nothing_that_fits_is_faster() -> None:
    dense = (DenseAllReduce(),)
    tried = [one.scenario for one in batches.that_fit(given(), dense)]
    found = [batches.settings_of(one) for one in tried]
    assert [one.checkpointing for one in found] == [0.0, 0.5, 1.0]
    assert all(one.batch_per_rank * one.micro_batches == 8 for one in found)
    assert found[0].batch_per_rank < found[2].batch_per_rank
    fastest_s = min(simulate(one).result.iteration_s for one in tried)
    largest = {one.checkpointing: one.batch_per_rank for one in found}
    for batch, part in itertools.product((1, 2, 4, 8), batches.CHECKPOINTED):
        there = batches.with_settings(given(), BatchSettings(batch, 8 // batch, part))
        fits = bool(batches.fitting(there, dense))
        assert not (fits and batch > largest[part])
        assert not fits or simulate(there).result.iteration_s >= fastest_s * (1 - 1e-9)


def test_alternatives_that_fit_in_another_cut_are_ranked_beside_those_that_fit_as_given() -> None:
    found = advise(given(), names=chosen(["BinSGDM", "fsdp", "zero1"]))
    assert all(one.may_fit for one in found.systems)
    for one in found.systems:
        there = batches.with_settings(replace(given(), strategy=one.strategy), one.batches)
        assert simulate(there).result.iteration_s == pytest.approx(one.iteration_s)
        assert one.batches.batch_per_rank * one.batches.micro_batches == 8
    assert row(found, "BinSGDM").speedup.value == pytest.approx(
        found.baseline_system.iteration_s / row(found, "BinSGDM").iteration_s
    )


@pytest.mark.slow
def test_a_shipped_model_of_13_billion_parameters_is_cut_to_fit() -> None:
    found = simnet.advise(
        "what_fits", {"workload": "llama_13b", "workload.batch_per_rank": 16}, draws=0,
        systems=["fsdp", "hsdp", "zero1"], samples=1e6, price_per_gpu_hour=2.5,
    )  # fmt: skip
    best = found.baseline_system
    assert best.memory is not None
    assert best.memory.fits
    assert best.batches.micro_batches > 1
    mfu, days, cost = found.mfu(best), found.days(best), found.cost(best)
    assert mfu is not None
    assert days is not None
    assert cost is not None
    assert 0.3 < mfu < 0.7
    assert days * 86400 * found.samples_per_s(best) == pytest.approx(1e6)
    assert cost == pytest.approx(days * 24 * 128 * 2.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0.0}, "must be above 0 and finite"),
        ({"samples": float("inf")}, "give a finite number"),
        ({"samples": 1e6, "price_per_gpu_hour": -1.0}, "must be above 0 and finite"),
        ({"price_per_gpu_hour": 2.0}, "no effect without"),
    ],
)
def test_a_wrong_training_is_refused(options: dict[str, Any], message: str) -> None:
    with refused(message):
        simnet.advise("bert_base_10gbit", draws=0, systems=["binsgdm"], **options)


def test_the_text_names_every_part() -> None:
    assert BatchSettings(4, 2, 0.0).text() == "micro-batch 4 x 2"
    assert BatchSettings(4, 2, 1.0).text() == "micro-batch 4 x 2, all blocks checkpointed"
    assert BatchSettings(4, 2, 0.5).text() == "micro-batch 4 x 2, 50 % of the blocks checkpointed"
