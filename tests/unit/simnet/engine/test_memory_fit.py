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


def held(text: str, asked: Scenario) -> dict[str, float]:
    memory = memory_fit.memory_of(asked, strategy_from_text(text, "test"))
    assert memory is not None
    return memory.parts


def test_full_sharding_divides_by_all_ranks_and_hybrid_sharding_by_those_of_a_node() -> None:
    whole = held("all_reduce", scenario())
    for text, ranks in (("fsdp", 64), ("hsdp", 8), ("hsdp:shard_ranks=16", 16)):
        parts = held(text, scenario())
        for part in ("parameters", "optimizer"):
            assert parts[part] == pytest.approx(whole[part] / ranks, rel=1e-3)
        assert parts["buckets"] == 0
        assert 0 < parts["gathered"] < 0.25 * whole["parameters"]
    run = {"grad_accumulation": 4}
    sharded, later = (held(f"fsdp:reduce_every={when}", scenario(run=run)) for when in ("micro_batch", "step"))
    assert later["gradients"] == pytest.approx(64 * sharded["gradients"], rel=1e-2), "whole until a step ends"


def test_binsgdm_keeps_two_averages_and_what_rounding_lost() -> None:
    asked = scenario("llama_1b", 1)
    elements = simulate(asked).gradient_bytes / 2
    random, shaped = (held(f"binsgdm:rounding={rounding}", asked) for rounding in ("random", "shaped"))
    assert random["residuals"] == pytest.approx(8 * elements)
    assert shaped["residuals"] == pytest.approx((8 + 2 / 8 + 2 / 64) * elements)
    assert held("binsgdm:topology=flat", asked)["residuals"] == pytest.approx((8 + 2 + 2 / 64) * elements)
    in_one_bit = held("binsgdm:intra_node_dtype=one_bit", asked)
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
    asked = scenario("llama_1b", 1)
    elements = simulate(asked).gradient_bytes / 2
    assert held(text, asked)["residuals"] == pytest.approx(4 * elements * copies)


def test_what_does_not_fit_is_noted_with_the_first_change_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scenario("llama_1b", 16)
    memory = memory_fit.memory_of(asked, DenseAllReduce())
    repair = memory_fit.what_fits(asked, DenseAllReduce())
    assert memory is not None
    assert memory.fits is False
    assert repair is not None
    assert repair.text == "micro-batch 16 x 1, 50 % of the blocks checkpointed (workload.checkpointing = 0.5)"
    assert repair.scenario.workload.batch_per_rank * repair.scenario.grad_accumulation == 16
    others = [
        simulate(fitting.scenario).result.iteration_s for fitting in memory_fit.that_fit(asked, (DenseAllReduce(),))
    ]
    assert simulate(repair.scenario).result.iteration_s == min(others) < max(others)
    assert repair.memory == memory_fit.memory_of(repair.scenario, repair.scenario.strategy)
    assert repair.memory.total_bytes <= 80 * GB < memory.total_bytes
    (note,) = (note for note in simulate(asked).notes if "does not fit" in note)
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
@pytest.mark.parametrize("strategy", [DenseAllReduce(), FullShard(), BinSGDM()], ids=lambda tried: tried.kind)
def test_what_fits_is_the_first_change_that_fits_by_itself(workload: str, batch: int, strategy: Strategy) -> None:
    asked = replace(scenario(workload, batch), strategy=strategy)
    step = training_step.resolve(asked.workload, asked.cluster, asked.calibration)
    fitting = (
        (text, memory)
        for text, changed in memory_fit._changes(asked, step)
        if (memory := memory_fit.memory_of(changed, changed.strategy)) is not None and memory.fits
    )
    repair = memory_fit.what_fits(asked, strategy)
    assert (repair and (repair.text, repair.memory)) == next(fitting, None)


def test_a_change_whose_step_has_no_time_is_not_offered() -> None:
    row = ComputeTime(
        gpu="A100-80GB", precision="bf16", batch=16, step_s=Duration(0.02), optimizer="adam", source="made up"
    )
    asked = scenario("llama_1b", 16)
    memory = replace(asked.workload.memory, checkpointed=None)
    asked = replace(asked, workload=replace(asked.workload, work=None, precision=None, compute=(row,), memory=memory))
    halved = replace(asked, workload=replace(asked.workload, batch_per_rank=8))
    with refused("is shorter than its optimizer"):
        memory_fit.memory_of(halved, DenseAllReduce())
    assert memory_fit.what_fits(asked, DenseAllReduce()) is None


def test_fits_needs_a_gpu_of_the_table() -> None:
    asked = scenario("llama_1b", 1)
    assert simnet.fits(asked, DenseAllReduce()) is True
    assert simnet.fits(asked, "ddp") is simnet.fits("what_to_use", "binsgdm:bucket_cap=5 MiB") is True
    unknown = replace(
        asked,
        cluster=replace(asked.cluster, gpu="H900"),
        workload=replace(asked.workload, work=None, forward_s=Duration(1.0), backward_s=Duration(1.0)),
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
    sample = advise_samples.scenario(
        gbit_per_s=10, workload=replace(advise_samples.WORKLOAD, memory=memory, batch_per_rank=8)
    )
    return replace(sample, cluster=replace(sample.cluster, gpu="A100-80GB"))


def test_the_largest_micro_batch_that_fits_is_taken_at_each_level_and_nothing_that_fits_is_faster() -> None:
    dense = (DenseAllReduce(),)
    tried = [fitting.scenario for fitting in memory_fit.that_fit(small(), dense)]
    cuts = [memory_fit.settings_of(cut_scenario) for cut_scenario in tried]
    assert [cut.checkpointing for cut in cuts] == [0.0, 0.5, 1.0]
    assert all(cut.batch_per_rank * cut.micro_batches == 8 for cut in cuts)
    assert cuts[0].batch_per_rank < cuts[2].batch_per_rank
    fastest_s = min(simulate(cut_scenario).result.iteration_s for cut_scenario in tried)
    largest = {cut.checkpointing: cut.batch_per_rank for cut in cuts}
    for batch, part in itertools.product((1, 2, 4, 8), memory_fit.CHECKPOINTED):
        there = memory_fit.with_settings(small(), BatchSettings(batch, 8 // batch, part))
        fits = bool(memory_fit.fitting(there, dense))
        assert not (fits and batch > largest[part])
        assert not fits or simulate(there).result.iteration_s >= fastest_s * (1 - 1e-9)


@pytest.mark.slow
def test_alternatives_that_fit_in_another_cut_are_ranked_beside_those_that_fit_as_small() -> None:
    advice = advise(small(), names=chosen(["BinSGDM", "fsdp", "zero1"]))
    assert all(system.may_fit for system in advice.systems)
    for system in advice.systems:
        there = memory_fit.with_settings(replace(small(), strategy=system.strategy), system.batches)
        assert simulate(there).result.iteration_s == pytest.approx(system.iteration_s)
        assert system.batches.batch_per_rank * system.batches.micro_batches == 8
    assert advise_samples.row(advice, "BinSGDM").speedup.value == pytest.approx(
        advice.baseline_system.iteration_s / advise_samples.row(advice, "BinSGDM").iteration_s
    )


@pytest.mark.slow
def test_a_shipped_model_of_13_billion_parameters_is_cut_to_fit() -> None:
    advice = simnet.advise(
        "what_fits", {"workload": "llama_13b", "workload.batch_per_rank": 16}, draws=0,
        systems=["fsdp", "hsdp", "zero1"], samples=1e6, price_per_gpu_hour=2.5,
    )  # fmt: skip
    best = advice.baseline_system
    assert best.memory is not None
    assert best.memory.fits
    assert best.batches.micro_batches > 1
    mfu, days, cost = advice.mfu(best), advice.days(best), advice.cost(best)
    assert mfu is not None
    assert days is not None
    assert cost is not None
    assert 0.3 < mfu < 0.7
    assert days * 86400 * advice.samples_per_s(best) == pytest.approx(1e6)
    assert cost == pytest.approx(days * 24 * 128 * 2.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0.0}, "must be above 0 and finite"),
        ({"samples": float("inf")}, "must be finite"),
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
    sample = scenario("llama_1b", 1, run={"grad_accumulation": 2})
    held = StepMemory(**{name: Size(size * GB) for name, size in sizes.items()})
    workload = replace(sample.workload, dtype="fp32", memory=held)
    return replace(sample, workload=workload, run=replace(sample.run, grad_accumulation=1))


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
    asked = of_3_billion(**memory)
    assert not memory_fit.fitting(asked, (DenseAllReduce(),))
    fittings = memory_fit.that_fit(asked, (DenseAllReduce(),))
    assert [memory_fit.settings_of(fitting.scenario).text() for fitting in fittings] == ([text] if text else [])
    for fitting in fittings:
        assert simulate(fitting.scenario).result.iteration_s == simulate(asked).result.iteration_s
    (note,) = (note for note in simulate(asked).notes if "does not fit" in note)
    in_8_bit = (
        '; if Adam may round its state, micro-batch 1 x 1, bnb.optim.AdamW8bit (workload.memory.adam = "8bit") takes'
    )
    assert (in_8_bit in note) == (text is None)


def test_the_keys_of_a_repair_make_it() -> None:
    for workload, batch, strategy in (("llama_1b", 16, "binsgdm"), ("llama_7b", 16, "fsdp"), ("llama_1b", 32, "zero1")):
        asked = scenario(workload, batch, strategy=strategy)
        repair = memory_fit.what_fits(asked, asked.strategy)
        assert repair is not None
        keys = dict(setting.split(" = ") for setting in repair.text.partition(" (")[2].removesuffix(")").split(", "))
        made = asked.replace(**{key: json.loads(value.replace("'", '"')) for key, value in keys.items()})
        assert memory_fit.memory_of(made, made.strategy) == repair.memory


@pytest.mark.slow
def test_what_fits_in_no_way_is_ranked_last_as_takes_the_least_memory_and_has_no_speedup() -> None:
    asked = of_3_billion(optimizer=90.0)
    advice = advise(replace(asked, run=replace(asked.run, draws=0)), names=chosen(["ByteGrad", "fsdp", "BinSGDM"]))
    last = advice.systems[-1]
    assert [system.may_fit for system in advice.systems] == sorted(
        (system.may_fit for system in advice.systems), reverse=True
    )
    assert not last.may_fit
    for settings in itertools.product((1,), (1,), (0.0,), (False, True), ("foreach", "fused")):
        there = memory_fit.with_settings(asked, BatchSettings(*settings))
        assert last.memory is not None
        assert last.memory.total_bytes <= memory_fit.memory_of(there, last.strategy).total_bytes
    assert last.batches == BatchSettings(1, 1, 0.0, gradient_as_bucket_view=True, adam="fused")
    (note,) = (note for note in last.notes if memory_fit.repair_in(note))
    assert note in simulate(replace(asked, strategy=last.strategy)).notes
    shown = dict(
        zip((column.title for column in advice_table(advice).columns), advice_table(advice).rows[-1], strict=True)
    )
    assert shown["step"] == "does not fit"
    assert (shown["over tuned"], shown["over flat"], shown["samples/s"]) == ("-", "-", "-")
    assert shown["micro-batch"] == "1 x 1, gradient_as_bucket_view=True, AdamW(fused=True)"


@pytest.mark.slow
def test_a_ranked_system_and_its_simulation_name_the_same_repair_and_its_call_shows_it() -> None:
    asked = of_3_billion()
    advice = advise(replace(asked, run=replace(asked.run, draws=0)), names=chosen(["ByteGrad", "fsdp", "one_bit_adam"]))
    changed = [
        system for system in advice.systems if system.may_fit and system.batches != memory_fit.settings_of(asked)
    ]
    assert {system.name for system in changed} >= {"DDP bf16", "ByteGrad"}
    for system in changed:
        (note,) = (
            note for note in simulate(replace(asked, strategy=system.strategy)).notes if memory_fit.repair_in(note)
        )
        assert memory_fit.repair_in(note).startswith(system.batches.text())
        call = to_use(system, advice)
        assert ("DistributedDataParallel(model, gradient_as_bucket_view=True" in call) is system.batches[3]
        assert f"# {system.batches.text()}" in call
