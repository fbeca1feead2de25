"""The real system behind a strategy: what is trained with comes back from the labels of a measurement."""

import pytest

from simnet.core.units import Size
from simnet.strategies import (
    ByteGrad,
    Fp8AllReduce,
    FullShard,
    Int8AllReduce,
    Zero1,
    Zero2,
)
from simnet.validation.strategy_spec import StrategySpec


@pytest.mark.parametrize(
    ("strategy", "argument", "options"),
    [
        (Int8AllReduce(), "", {}),
        (Fp8AllReduce(), ",dtype=fp8_e4m3", {"dtype": "fp8_e4m3"}),
        (Fp8AllReduce(dtype="fp8_e5m2", block_size=64), None, {"dtype": "fp8_e5m2", "block_size": 64}),
    ],
    ids=str,
)
def test_an_all_reduce_of_bytes_is_run_as_byte_grad(strategy, argument, options) -> None:
    spec = StrategySpec.of_strategy(strategy)
    assert argument is None or spec.argument == f"byte_grad:topology=scatter_reduce{argument}"
    cap = Size(8 * 2**20)
    wanted = ByteGrad(topology="scatter_reduce", bucket_cap=cap, **options)
    assert spec.strategy(cap, is_ring=True) == wanted


@pytest.mark.parametrize("strategy", [Zero1(), Zero2(), FullShard()], ids=str)
def test_what_is_no_system_is_not_run(strategy) -> None:
    with pytest.raises(ValueError, match=f"^strategies: {strategy.kind} is no system of binsgdm; name one, or record"):
        StrategySpec.of_strategy(strategy)
