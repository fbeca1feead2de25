"""The real system behind a strategy: what is trained with comes back from the labels of a measurement."""

import pytest
from msgspec import structs

from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.strategies import (
    NUQSGD,
    QSGD,
    AnyStrategy,
    Atomo,
    BinSGDM,
    ByteGrad,
    DenseAllReduce,
    EFSignSGD,
    Fp8AllReduce,
    FullShard,
    Int8AllReduce,
    Marsit,
    MSTopK,
    OneBitAdam,
    PowerSGD,
    QSGDInf,
    SignSGD,
    TopK,
    Zero1,
    Zero2,
)
from simnet.validation.lab.strategy_spec import StrategySpec
from tests.helpers.needs import needs

FLAT = ByteGrad(topology="scatter_reduce")
STRATEGIES = [
    DenseAllReduce(), BinSGDM(topology="flat", finite_check="ring"), BinSGDM(intra_node_dtype="bf16",
    overlap=False, finite_check="ring"), BinSGDM(intra_node_dtype="one_bit", rounding="random", finite_check="ring"),
    BinSGDM(topology="flat", rounding="shaped", finite_check="ring"),
    OneBitAdam(finite_check=True), QSGD(bits=2, block_size=64), NUQSGD(with_zero=False), SignSGD(),
    EFSignSGD(scale_per="bucket"), TopK(k=3), MSTopK(ratio=0.25), PowerSGD(matrix_rank=2), Atomo(budget=1.5),
    Marsit(sync_period=None, torus=True), Marsit(scale=0.5),
    QSGDInf(topology="hierarchical", intra_node_dtype="bf16"), TopK(k=3, topology="scatter_reduce"),
    EFSignSGD(topology="gather"), Marsit(topology="hierarchical"),
]  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_what_is_trained_with_comes_back_from_its_labels(strategy: AnyStrategy) -> None:
    needs("torch")
    from binsgdm.bench import training

    run = training.strategy(StrategySpec.of_strategy(strategy).argument)
    cap = Size(8 * 2**20)
    found = StrategySpec.of_labels(run.labels)
    assert found.strategy(cap, is_ring=True) == structs.replace(
        strategy, bucket_cap=None if isinstance(strategy, OneBitAdam) else cap
    )
    assert found.label.startswith(str(strategy.__struct_config__.tag))


@pytest.mark.parametrize(
    ("strategy", "argument", "run"),
    [
        (Int8AllReduce(), "byte_grad:topology=scatter_reduce", FLAT),
        (Fp8AllReduce(), "byte_grad:topology=scatter_reduce,dtype=fp8_e4m3", structs.replace(FLAT, dtype="fp8_e4m3")),
        (
            Fp8AllReduce(dtype="fp8_e5m2", block_size=64),
            None,
            structs.replace(FLAT, dtype="fp8_e5m2", block_size=64),
        ),
    ],
    ids=str,
)
def test_an_all_reduce_of_bytes_is_run_as_byte_grad(strategy, argument, run) -> None:
    found = StrategySpec.of_strategy(strategy)
    assert argument in (None, found.argument)
    cap = Size(8 * 2**20)
    assert found.strategy(cap, is_ring=True) == structs.replace(run, bucket_cap=cap)


@pytest.mark.parametrize("strategy", [Zero1(), Zero2(), FullShard()], ids=str)
def test_what_is_no_system_is_not_run(strategy) -> None:
    with pytest.raises(ValueError, match=f"^strategies: {strategy.kind} is no system of binsgdm; name one, or record"):
        StrategySpec.of_strategy(strategy)


def test_labels_of_a_system_that_is_not_known_are_refused() -> None:
    with pytest.raises(SimnetError, match="training with qsgd bit=4: unknown to the simulator"):
        StrategySpec.of_labels({"strategy": "qsgd", "options": {"bit": 4}}).strategy(Size(1e6), is_ring=True)
