"""Eight bits an element: the same exchange by several names, each ranked once, on GPUs that can do it."""

import pytest
from msgspec.structs import replace

from simnet.analysis import tune
from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.core.system_options import SystemOptions
from simnet.core.units import Duration, Size
from simnet.engine.prepared_scenario import PreparedScenario, StepTimer
from simnet.engine.simulation import simulate
from simnet.strategies import (
    STRATEGIES,
    ByteGrad,
    CompressingStrategy,
    DiLoCo,
    Fp8AllReduce,
    HybridShard,
    Int8AllReduce,
)
from simnet.strategies.base import strategy_from_text, train_alike
from simnet.strategies.compressors import MSTopK
from tests.helpers.advise_samples import scenario
from tests.helpers.refusals import refused

FLAT = ByteGrad(topology="scatter_reduce")


def test_kernels_that_were_timed_with_other_bytes_are_named():
    options = SystemOptions({"dtype": "fp8_e4m3"})
    timed = KernelTime(s_per_element=Duration(1e-12), launch_s=Duration(1e-6), options=options)
    asked = scenario(calibration=Calibration(kernels={"byte_grad_encode": timed}))
    said = {
        strategy: PreparedScenario(asked).plan(strategy).timed_otherwise(asked.calibration)
        for strategy in (Int8AllReduce(), Fp8AllReduce(), Fp8AllReduce(dtype="fp8_e5m2"))
    }
    assert list(said.values()) == [
        ("byte_grad_encode was timed with dtype=fp8_e4m3, not dtype=int8",),
        (),
        ("byte_grad_encode was timed with dtype=fp8_e4m3, not dtype=fp8_e5m2",),
    ]


def test_trainings_of_the_same_bytes_in_the_same_topology_count():
    assert train_alike(Int8AllReduce(), replace(FLAT, block_size=64))
    assert train_alike(FLAT, Int8AllReduce())
    assert train_alike(ByteGrad(), ByteGrad(topology="hierarchical"))
    assert not train_alike(Int8AllReduce(), ByteGrad())
    assert not train_alike(Fp8AllReduce(), ByteGrad())
    assert not train_alike(Int8AllReduce(), strategy_from_text("qsgd", "here"))


def test_no_exchange_is_ranked_twice():
    systems = tune.systems()
    forms = [
        {(setting.byte_dtype, setting.used_topology) for setting in systems[name]}
        for name in ("ByteGrad", "int8 all-reduce", "fp8 all-reduce")
    ]
    assert forms == [
        {("int8", "gather"), ("int8", "hierarchical")},
        {("int8", "scatter_reduce")},
        {("fp8_e4m3", "scatter_reduce")},
    ]
    assert {setting.used_topology for setting in tune.trained_variants(FLAT, "fp32")} == {"scatter_reduce"}
    assert {setting.used_topology for setting in tune.trained_variants(ByteGrad(), "fp32")} == {"hierarchical"}


AVERAGING = [ByteGrad(), ByteGrad(dtype="fp8_e5m2"), MSTopK(ratio=0.01)]


@pytest.mark.parametrize("strategy", AVERAGING, ids=str)
def test_what_averages_in_the_node_does_so_by_default_where_a_node_has_several_ranks(strategy):
    """As BAGUA's ByteGrad and HiTopKComm do."""
    flat, hierarchical = (replace(strategy, topology=topology) for topology in (strategy.topologies[0], "hierarchical"))
    several, one_each = (PreparedScenario(scenario(num_nodes=3, ranks_per_node=ranks)) for ranks in (4, 1))
    assert several.plan(strategy).program == several.plan(hierarchical).program != several.plan(flat).program
    assert one_each.plan(strategy).program == one_each.plan(flat).program


def test_all_others_have_their_own_exchange_by_default():
    kinds = [kind for kind in STRATEGIES.built_in() if issubclass(kind, CompressingStrategy)]
    assert {kind for kind in kinds if kind.averages_in_node} == {ByteGrad, MSTopK}


REFUSED = (
    "cluster.gpu: 'A100-80GB': has no 8-bit floats for an all-reduce in fp8: it has fp32, tf32, bf16, fp16; use 'int8'"
)


def on(gpu, strategy):
    sample = scenario()
    return replace(sample, cluster=replace(sample.cluster, gpu=gpu), strategy=strategy)


SHARDED = HybridShard(replicas="fp8", unit_cap=Size.parse("20 MB"))
WITHIN = [Fp8AllReduce(), SHARDED, DiLoCo(exchange_by="fp8", inner_steps=4)]


@pytest.mark.parametrize("strategy", WITHIN, ids=str)
@pytest.mark.parametrize("ask", [simulate, lambda asked: StepTimer(asked).of(asked.strategy)], ids=["run", "timer"])
def test_fp8_is_refused_on_a_gpu_without_it_alone(ask, strategy):
    with refused(start=REFUSED):
        ask(on("A100-80GB", strategy))
    for gpu in ("H100-80GB", "", "a card of one's own"):
        ask(on(gpu, strategy))
    ask(on("A100-80GB", Int8AllReduce()))
