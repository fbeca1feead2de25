"""ByteGrad: what a byte holds, what is lost of a block, and what its ranks exchange."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import AllGather, AllToAll
from binsgdm.compressors.quantizers import ByteGrad
from binsgdm.compressors.registry import make
from tests.helpers.gradient_buckets import means_of, normal, there_and_back

DTYPES = ("int8", "fp8_e4m3", "fp8_e5m2")


def test_an_integer_is_the_nearest_multiple_of_a_127th_of_the_largest_a_tie_the_even_one() -> None:
    values = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 0.51, -126.7, 3.0])
    assert there_and_back(ByteGrad(), values).tolist() == [127, 0, 2, 2, 0, -2, 0, 1, -127, 3]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("fp8_e4m3", [448, 416, -240, 18, 1.125, 2**-6, 2**-9, 0]),
        ("fp8_e5m2", [57344, 49152, -1280, 1.25, 2**-14, 2**-16, 0]),
    ],
)
def test_what_an_eight_bit_float_holds_is_kept(dtype: Any, values: list[float]) -> None:
    assert there_and_back(ByteGrad(dtype=dtype), torch.tensor(values)).tolist() == values


@pytest.mark.parametrize(("dtype", "kept", "lost"), [("fp8_e4m3", 2**-9, 2**-11), ("fp8_e5m2", 2**-16, 2**-18)])
def test_what_is_too_small_for_an_eight_bit_float_becomes_zero(dtype: Any, kept: float, lost: float) -> None:
    largest = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[dtype]
    assert there_and_back(ByteGrad(dtype=dtype), torch.tensor([largest, kept, lost])).tolist() == [largest, kept, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zeros_and_huge_and_tiny_values_finite(dtype: Any) -> None:
    compressor = ByteGrad(dtype=dtype)
    assert not there_and_back(compressor, torch.zeros(300)).any()
    for scale in (1e30, 3e38, 1e-38, 1e-40):
        found = there_and_back(compressor, torch.full((300,), scale)).double().mean().item()
        assert 0.7 < found / scale < 1.3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_makes_its_block_nan_and_no_other(dtype: Any, bad: float) -> None:
    values = normal(12)
    values[5] = bad
    found = there_and_back(ByteGrad(dtype=dtype, block_size=4), values).isnan().view(3, 4)
    assert found.tolist() == [[False] * 4, [True] * 4, [False] * 4]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_by_default_all_ranks_scatter_reduce_and_agree_on_the_mean(dtype: str, world_size: int) -> None:
    given = [normal(8193, seed=rank) for rank in range(world_size)]
    messages = []
    ends = [make("byte_grad", rank=rank, world_size=world_size, dtype=dtype) for rank in range(world_size)]
    means = means_of(
        ends,
        given,
        shapes=((8193,),),
        on_sent=lambda rank, message: messages.append(type(message)) if rank == 0 else None,
    )
    assert messages == [AllToAll, AllGather]
    assert all(torch.equal(mean, means[0]) for mean in means)
    exact = torch.stack(given).double().mean(dim=0)
    lost = ((means[0] - exact).norm() / exact.norm()).item()
    # Two roundings, the second of a mean that is the smaller the more ranks there are.
    low, high = {"int8": (2e-3, 2e-2), "fp8_e4m3": (1.5e-2, 6e-2), "fp8_e5m2": (3e-2, 1.2e-1)}[dtype]
    assert low < lost < high
