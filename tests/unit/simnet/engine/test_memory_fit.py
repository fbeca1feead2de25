"""Does a step fit the GPU, and what would: what a rank holds by strategy, and changes that hold less."""

import itertools
import json
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

import simnet
from simnet.analysis.advise import advise
from simnet.analysis.tune import chosen
from simnet.core.units import Duration, Size
from simnet.engine import memory_fit
from simnet.engine.memory_fit import BatchSettings
from simnet.engine.scenario import Scenario, build
from simnet.engine.simulation import simulate
from simnet.report.advice import advice_table, to_use
from simnet.strategies import BinSGDM, DenseAllReduce, FullShard, Strategy
from simnet.strategies.base import strategy_from_text
from simnet.workload import training_step
from simnet.workload.workload import Checkpointed, ComputeTime, StepMemory
from tests.helpers import advise_samples
from tests.helpers.refusals import refused

GB = 1e9


def scenario(workload: object = "llama_7b", batch: int = 2, num_nodes: int = 8, **keys: object) -> Scenario:
    return build(
        {
            "cluster": {"use": "generic_25gbit", "num_nodes": num_nodes},
            "calibration": "a100_tcp_estimate",
            "workload": {"use": workload, "batch_per_rank": batch},
            "strategy": "all_reduce",
            **keys,
        }
    )


def held(text: str, given: Scenario) -> dict[str, float]:
    found = memory_fit.memory_of(given, strategy_from_text(text, "test"))
    assert found is not None
    return found.parts


def test_full_sharding_divides_by_all_ranks_and_hybrid_sharding_by_those_of_a_node() -> None:
    whole = held("all_reduce", scenario())
    for text, ranks in (("fsdp", 64), ("hsdp", 8), ("hsdp:shard_ranks=16", 16)):
        found = held(text, scenario())
        for part in ("parameters", "optimizer"):
            assert found[part] == pytest.approx(whole[part] / ranks, rel=1e-3)
        assert found["buckets"] == 0
        assert 0 < found["gathered"] < 0.25 * whole["parameters"]
    run = {"grad_accumulation": 4}
    sharded, later = (held(f"fsdp:reduce_every={when}", scenario(run=run)) for when in ("micro_batch", "step"))
    assert later["gradients"] == pytest.approx(64 * sharded["gradients"], rel=1e-2), "whole until a step ends"


def test_binsgdm_keeps_two_averages_and_what_rounding_lost() -> None:
    given = scenario("llama_1b", 1)
    elements = simulate(given).gradient_bytes / 2
    random, shaped = (held(f"binsgdm:rounding={one}", given) for one in ("random", "shaped"))
    assert random["residuals"] == pytest.approx(8 * elements)
    assert shaped["residuals"] == pytest.approx((8 + 2 / 8 + 2 / 64) * elements)
    assert held("binsgdm:topology=flat", given)["residuals"] == pytest.approx((8 + 2 + 2 / 64) * elements)
    in_one_bit = held("binsgdm:intra_node_dtype=one_bit", given)
    assert in_one_bit["residuals"] == pytest.approx((8 + 2 + 2 / 8 + 2 / 64) * elements)
    assert random["optimizer"] == 0


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        ("byte_grad", 0),
        ("ef_sign_sgd", 1),
        ("ef_sign_sgd:topology=scatter_reduce", 1 + 1 / 64),
        ("ef_sign_sgd:topology=hierarchical", 1 / 8),
        ("ef_sign_sgd:topology=hierarchical_scatter_reduce", 1 / 8 * (1 + 1 / 8)),
        ("ef_sign_sgd:momentum=0.9", 2),
        ("sign_sgd:momentum=0.9", 1),
        ("random_k:ratio=0.01,unbiased=true", 0),
        ("random_k:ratio=0.01", 1),
        ("power_sgd", 1),
        ("diloco", 2 / 8),
        ("diloco:workers=rank", 2),
        ("local_sgd", 0),
        ("one_bit_adam", 1 + 1 / 64),
    ],
)
def test_residuals_are_fp32_values_of_what_a_rank_compresses(text: str, copies: float) -> None:
    given = scenario("llama_1b", 1)
    elements = simulate(given).gradient_bytes / 2
    assert held(text, given)["residuals"] == pytest.approx(4 * elements * copies)


def test_what_does_not_fit_is_noted_with_the_first_change_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    given = scenario("llama_1b", 16)
    memory = memory_fit.memory_of(given, DenseAllReduce())
    repair = memory_fit.what_fits(given, DenseAllReduce())
    assert memory is not None
    assert memory.fits is False
    assert repair is not None
    assert repair.text == "micro-batch 16 x 1, 50 % of the blocks checkpointed (workload.checkpointing = 0.5)"
    assert repair.scenario.workload.batch_per_rank * repair.scenario.grad_accumulation == 16
    others = [simulate(one.scenario).result.iteration_s for one in memory_fit.that_fit(given, (DenseAllReduce(),))]
    assert simulate(repair.scenario).result.iteration_s == min(others) < max(others)
    assert repair.memory == memory_fit.memory_of(repair.scenario, repair.scenario.strategy)
    assert repair.memory.total_bytes <= 80 * GB < memory.total_bytes
    (note,) = (note for note in simulate(given).notes if "does not fit" in note)
    assert note.startswith("does not fit: DDP takes 96.67 GB of 80 GB on A100-80GB (activations 85.77 GB, ")
    assert repair.text in note
    with_global = memory_fit.what_fits(scenario("llama_1b", 16, run={"global_batch": 2048}), DenseAllReduce())
    assert with_global is not None
    assert (with_global.scenario.run.global_batch, with_global.scenario.grad_accumulation) == (2048, 2)
    assert "grad_accumulation" not in with_global.text
    large = scenario("llama_70b", 1)
    checkpointed = memory_fit.what_fits(large, DenseAllReduce())
    assert checkpointed is not None
    assert checkpointed.text.startswith(
        "full sharding (strategy = 'fsdp') with micro-batch 1 x 1, all blocks checkpoint"
    )
    memory = replace(large.workload.memory, checkpointed=None)
    large = replace(large, workload=replace(large.workload, memory=memory))
    resolve = Mock(wraps=training_step.resolve)
    monkeypatch.setattr(training_step, "resolve", resolve)
    assert memory_fit.what_fits(large, DenseAllReduce()) is None
    resolve.assert_called_once()  # however many changes are tried


@pytest.mark.parametrize(
    ("workload", "batch"), [("llama_70b", 1), ("llama_13b", 16), ("llama_7b", 16), ("llama_1b", 16)]
)
@pytest.mark.parametrize("strategy", [DenseAllReduce(), FullShard(), BinSGDM()], ids=lambda one: one.kind)
def test_what_fits_is_the_first_change_that_fits_by_itself(workload: str, batch: int, strategy: Strategy) -> None:
    given = replace(scenario(workload, batch), strategy=strategy)
    step = training_step.resolve(given.workload, given.cluster, given.calibration)
    fitting = (
        (text, memory)
        for text, changed in memory_fit._changes(given, step)
        if (memory := memory_fit.memory_of(changed, changed.strategy)) is not None and memory.fits
    )
    found = memory_fit.what_fits(given, strategy)
    assert (found and (found.text, found.memory)) == next(fitting, None)


def test_a_change_whose_step_has_no_time_is_not_offered() -> None:
    row = ComputeTime(
        gpu="A100-80GB", precision="bf16", batch=16, step_s=Duration(0.02), optimizer="adam", source="made up"
    )
    given = scenario("llama_1b", 16)
    memory = replace(given.workload.memory, checkpointed=None)
    given = replace(given, workload=replace(given.workload, work=None, precision=None, compute=(row,), memory=memory))
    halved = replace(given, workload=replace(given.workload, batch_per_rank=8))
    with refused("is shorter than its optimizer"):
        memory_fit.memory_of(halved, DenseAllReduce())
    assert memory_fit.what_fits(given, DenseAllReduce()) is None


def test_fits_needs_a_gpu_of_the_table() -> None:
    given = scenario("llama_1b", 1)
    assert simnet.fits(given, DenseAllReduce()) is True
    assert simnet.fits(given, "ddp") is simnet.fits("what_to_use", "binsgdm:bucket_cap=5 MiB") is True
    unknown = replace(
        given,
        cluster=replace(given.cluster, gpu="H900"),
        workload=replace(given.workload, work=None, forward_s=Duration(1.0), backward_s=Duration(1.0)),
    )
    assert memory_fit.memory_of(unknown, DenseAllReduce()).gpu_bytes is None
    with refused(start="fits: cluster.gpu: 'H900': unknown GPU."):
        simnet.fits(unknown, DenseAllReduce())


def small() -> Scenario:
    """Return a scenario on GPUs of 80 GB whose model takes 12 GB beside activations."""
    memory = StepMemory(
        parameters=Size(2 * GB),
        gradients=Size(2 * GB),
        optimizer=Size(4 * GB),
        activations_per_sample=Size(20 * GB),
        checkpointed=Checkpointed(activations_per_sample=Size(2 * GB), recomputed=0.8, blocks=4),
    )
    found = advise_samples.scenario(
        gbit_per_s=10, workload=replace(advise_samples.WORKLOAD, memory=memory, batch_per_rank=8)
    )
    return replace(found, cluster=replace(found.cluster, gpu="A100-80GB"))


def test_the_largest_micro_batch_that_fits_is_taken_at_each_level_and_nothing_that_fits_is_faster() -> None:
    dense = (DenseAllReduce(),)
    tried = [one.scenario for one in memory_fit.that_fit(small(), dense)]
    found = [memory_fit.settings_of(one) for one in tried]
    assert [one.checkpointing for one in found] == [0.0, 0.5, 1.0]
    assert all(one.batch_per_rank * one.micro_batches == 8 for one in found)
    assert found[0].batch_per_rank < found[2].batch_per_rank
    fastest_s = min(simulate(one).result.iteration_s for one in tried)
    largest = {one.checkpointing: one.batch_per_rank for one in found}
    for batch, part in itertools.product((1, 2, 4, 8), memory_fit.CHECKPOINTED):
        there = memory_fit.with_settings(small(), BatchSettings(batch, 8 // batch, part))
        fits = bool(memory_fit.fitting(there, dense))
        assert not (fits and batch > largest[part])
        assert not fits or simulate(there).result.iteration_s >= fastest_s * (1 - 1e-9)


def test_alternatives_that_fit_in_another_cut_are_ranked_beside_those_that_fit_as_small() -> None:
    found = advise(small(), names=chosen(["BinSGDM", "fsdp", "zero1"]))
    assert all(one.may_fit for one in found.systems)
    for one in found.systems:
        there = memory_fit.with_settings(replace(small(), strategy=one.strategy), one.batches)
        assert simulate(there).result.iteration_s == pytest.approx(one.iteration_s)
        assert one.batches.batch_per_rank * one.batches.micro_batches == 8
    assert advise_samples.row(found, "BinSGDM").speedup.value == pytest.approx(
        found.baseline_system.iteration_s / advise_samples.row(found, "BinSGDM").iteration_s
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


def of_3_billion(**memory: Any) -> Scenario:
    """Return two micro-batches of a model whose DDP takes 5 x 12.8 GB, activations, and 12.8 GB while Adam steps."""
    sizes = {"parameters": 12.8, "gradients": 12.8, "optimizer": 25.6, "activations_per_sample": 2.0} | memory
    given = scenario("llama_1b", 1, run={"grad_accumulation": 2})
    held = StepMemory(**{name: Size(size * GB) for name, size in sizes.items()})
    workload = replace(given.workload, dtype="fp32", memory=held)
    return replace(given, workload=workload, run=replace(given.run, grad_accumulation=1))


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        ({}, "micro-batch 1 x 1, gradient_as_bucket_view=True"),
        ({"activations_per_sample": 15.0}, "micro-batch 1 x 1, gradient_as_bucket_view=True"),
        ({"optimizer": 40.0}, "micro-batch 1 x 1, gradient_as_bucket_view=True, AdamW(fused=True)"),
        ({"optimizer": 90.0}, None),
    ],
)
def test_what_costs_nothing_is_taken_where_it_is_needed_and_rounded_states_never(
    memory: dict[str, float], text: str | None
) -> None:
    given = of_3_billion(**memory)
    assert not memory_fit.fitting(given, (DenseAllReduce(),))
    found = memory_fit.that_fit(given, (DenseAllReduce(),))
    assert [memory_fit.settings_of(one.scenario).text() for one in found] == ([text] if text else [])
    for one in found:
        assert simulate(one.scenario).result.iteration_s == simulate(given).result.iteration_s
    (note,) = (note for note in simulate(given).notes if "does not fit" in note)
    in_8_bit = (
        '; if Adam may round its state, micro-batch 1 x 1, bnb.optim.AdamW8bit (workload.memory.adam = "8bit") takes'
    )
    assert (in_8_bit in note) == (text is None)


def test_the_keys_of_a_repair_make_it() -> None:
    for workload, batch, strategy in (("llama_1b", 16, "binsgdm"), ("llama_7b", 16, "fsdp"), ("llama_1b", 32, "zero1")):
        given = scenario(workload, batch, strategy=strategy)
        repair = memory_fit.what_fits(given, given.strategy)
        assert repair is not None
        keys = dict(one.split(" = ") for one in repair.text.partition(" (")[2].removesuffix(")").split(", "))
        made = given.replace(**{key: json.loads(value.replace("'", '"')) for key, value in keys.items()})
        assert memory_fit.memory_of(made, made.strategy) == repair.memory


def test_what_fits_in_no_way_is_ranked_last_as_takes_the_least_memory_and_has_no_speedup() -> None:
    given = of_3_billion(optimizer=90.0)
    found = advise(replace(given, run=replace(given.run, draws=0)), names=chosen(["ByteGrad", "fsdp", "BinSGDM"]))
    last = found.systems[-1]
    assert [one.may_fit for one in found.systems] == sorted((one.may_fit for one in found.systems), reverse=True)
    assert not last.may_fit
    for settings in itertools.product((1,), (1,), (0.0,), (False, True), ("foreach", "fused")):
        there = memory_fit.with_settings(given, BatchSettings(*settings))
        assert last.memory is not None
        assert last.memory.total_bytes <= memory_fit.memory_of(there, last.strategy).total_bytes
    assert last.batches == BatchSettings(1, 1, 0.0, gradient_as_bucket_view=True, adam="fused")
    (note,) = (note for note in last.notes if memory_fit.repair_in(note))
    assert note in simulate(replace(given, strategy=last.strategy)).notes
    shown = dict(zip((one.title for one in advice_table(found).columns), advice_table(found).rows[-1], strict=True))
    assert shown["step"] == "does not fit"
    assert (shown["over tuned"], shown["over flat"], shown["samples/s"]) == ("-", "-", "-")
    assert shown["micro-batch"] == "1 x 1, gradient_as_bucket_view=True, AdamW(fused=True)"


def test_a_ranked_system_and_its_simulation_name_the_same_repair_and_its_call_shows_it() -> None:
    given = of_3_billion()
    found = advise(replace(given, run=replace(given.run, draws=0)), names=chosen(["ByteGrad", "fsdp", "one_bit_adam"]))
    changed = [one for one in found.systems if one.may_fit and one.batches != memory_fit.settings_of(given)]
    assert {one.name for one in changed} >= {"DDP bf16", "ByteGrad"}
    for one in changed:
        (note,) = (note for note in simulate(replace(given, strategy=one.strategy)).notes if memory_fit.repair_in(note))
        assert memory_fit.repair_in(note).startswith(one.batches.text())
        call = to_use(one, found)
        assert ("DistributedDataParallel(model, gradient_as_bucket_view=True" in call) is one.batches[3]
        assert f"# {one.batches.text()}" in call
