"""Does a step fit the GPU, and what would: what a rank holds by strategy, and changes that hold less."""

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from simnet.core.units import Duration
from simnet.engine import memory_fit
from simnet.engine.scenario import Scenario, build
from simnet.engine.simulation import simulate
from simnet.strategies import BinSGDM, DenseAllReduce, FullShard, Strategy
from simnet.strategies.base import strategy_from_text
from simnet.workload import training_step
from simnet.workload.workload import ComputeTime
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
    assert repair.text == "workload.batch_per_rank = 8 with run.grad_accumulation = 2"
    assert repair.scenario.workload.batch_per_rank * repair.scenario.grad_accumulation == 16
    assert repair.memory == memory_fit.memory_of(repair.scenario, repair.scenario.strategy)
    assert repair.memory.total_bytes <= 80 * GB < memory.total_bytes
    (note,) = (note for note in simulate(given).notes if "does not fit" in note)
    assert note.startswith("does not fit: DDP takes 96.67 GB of 80 GB on A100-80GB (activations 85.77 GB, ")
    assert repair.text in note
    with_global = memory_fit.what_fits(scenario("llama_1b", 16, run={"global_batch": 2048}), DenseAllReduce())
    assert with_global is not None
    assert (with_global.scenario.run.global_batch, with_global.scenario.grad_accumulation) == (2048, 4)
    resolve = Mock(wraps=training_step.resolve)
    monkeypatch.setattr(training_step, "resolve", resolve)
    assert memory_fit.what_fits(scenario("llama_70b", 1), DenseAllReduce()) is None
    resolve.assert_called_once()  # however many changes are tried


@pytest.mark.parametrize(
    ("workload", "batch"), [("llama_70b", 1), ("llama_13b", 16), ("llama_7b", 16), ("llama_1b", 16)]
)
@pytest.mark.parametrize("strategy", [DenseAllReduce(), FullShard(), BinSGDM()], ids=lambda one: one.kind)
def test_what_fits_is_the_first_change_that_fits_by_itself(workload: str, batch: int, strategy: Strategy) -> None:
    given = replace(scenario(workload, batch), strategy=strategy)
    fitting = (
        (text, memory)
        for text, changed in memory_fit._changes(given)
        if (memory := memory_fit.memory_of(changed, changed.strategy)) is not None and memory.fits
    )
    found = memory_fit.what_fits(given, strategy)
    assert (found and (found.text, found.memory)) == next(fitting, None)


def test_a_change_whose_step_has_no_time_is_not_offered() -> None:
    row = ComputeTime(
        gpu="A100-80GB", precision="bf16", batch=16, step_s=Duration(0.02), optimizer="adam", source="made up"
    )
    given = scenario("llama_1b", 16)
    given = replace(given, workload=replace(given.workload, work=None, precision=None, compute=(row,)))
    halved = replace(given, workload=replace(given.workload, batch_per_rank=8))
    with refused("is shorter than its optimizer"):
        memory_fit.memory_of(halved, DenseAllReduce())
    assert memory_fit.what_fits(given, DenseAllReduce()) is None


def test_fits_needs_a_gpu_of_the_table() -> None:
    given = scenario("llama_1b", 1)
    assert memory_fit.fits(given, DenseAllReduce()) is True
    unknown = replace(
        given,
        cluster=replace(given.cluster, gpu="H900"),
        workload=replace(given.workload, work=None, forward_s=1.0, backward_s=1.0),
    )
    assert memory_fit.memory_of(unknown, DenseAllReduce()).gpu_bytes is None
    with refused(start="fits: cluster.gpu: 'H900': unknown GPU."):
        memory_fit.fits(unknown, DenseAllReduce())
