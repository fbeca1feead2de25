"""The real system behind a strategy: what is trained with comes back from the labels of a measurement."""

import pytest
from msgspec import structs

from simnet.core.units import Size
from simnet.strategies import (
    ByteGrad,
    Fp8AllReduce,
    FullShard,
    Int8AllReduce,
    Zero1,
    Zero2,
)
from simnet.validation.lab.strategy_spec import StrategySpec

FLAT = ByteGrad(topology="scatter_reduce")


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
