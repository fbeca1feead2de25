"""ByteGrad: what a byte holds, what is lost of a block, and what its ranks exchange."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import AllGather, AllToAll, RankContext, run_in_lockstep
from binsgdm.compressors import eight_bit
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.eight_bit import ByteGrad
from binsgdm.compressors.registry import make
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key

KEY = Key(seed=5, step=2, rank=1)
DTYPES = ("int8", "fp8_e4m3", "fp8_e5m2")
SHAPES = ((3, 5), (), (0, 4), (8193,))
NUMEL = 15 + 1 + 8193


def normal(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def restored(compressor: ByteGrad, values: torch.Tensor) -> torch.Tensor:
    shapes = ((values.numel(),),)
    return compressor.decompress(compressor.compress(values, shapes, KEY), shapes, KEY)


def test_an_integer_is_the_nearest_multiple_of_a_127th_of_the_largest_a_tie_the_even_one() -> None:
    values = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 0.51, -126.7, 3.0])
    assert restored(ByteGrad(), values).tolist() == [127, 0, 2, 2, 0, -2, 0, 1, -127, 3]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("fp8_e4m3", [448, 416, -240, 18, 1.125, 2**-6, 2**-9, 0]),
        ("fp8_e5m2", [57344, 49152, -1280, 1.25, 2**-14, 2**-16, 0]),
    ],
)
def test_what_an_eight_bit_float_holds_is_kept(dtype: Any, values: list[float]) -> None:
    assert restored(ByteGrad(dtype=dtype), torch.tensor(values)).tolist() == values


@pytest.mark.parametrize(("dtype", "kept", "lost"), [("fp8_e4m3", 2**-9, 2**-11), ("fp8_e5m2", 2**-16, 2**-18)])
def test_what_is_too_small_for_an_eight_bit_float_becomes_zero(dtype: Any, kept: float, lost: float) -> None:
    largest = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[dtype]
    assert restored(ByteGrad(dtype=dtype), torch.tensor([largest, kept, lost])).tolist() == [largest, kept, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zeros_and_huge_and_tiny_values_finite(dtype: Any) -> None:
    compressor = ByteGrad(dtype=dtype)
    assert not restored(compressor, torch.zeros(300)).any()
    for scale in (1e30, 3e38, 1e-38, 1e-40):
        found = restored(compressor, torch.full((300,), scale)).double().mean().item()
        assert 0.7 < found / scale < 1.3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_makes_its_block_nan_and_no_other(dtype: Any, bad: float) -> None:
    values = normal(12)
    values[5] = bad
    found = restored(ByteGrad(dtype=dtype, block_size=4), values).isnan().view(3, 4)
    assert found.tolist() == [[False] * 4, [True] * 4, [False] * 4]


def exchanged(dtype: str, given: list[torch.Tensor], **options: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Return what each rank makes of its gradients, and the messages of the first."""
    size = len(given)
    contexts = [RankContext(rank=rank, world_size=size, ranks_per_node=1, seed=3, step=7) for rank in range(size)]
    ends = [make("byte_grad", rank=rank, world_size=size, dtype=dtype, **options) for rank in range(size)]
    messages: list[Any] = []

    def watched(rank: int) -> Any:
        bucket = GradientBucket(values=given[rank], parameters=tuple(range(len(SHAPES))), shapes=SHAPES)
        protocol, answer = ends[rank].mean(bucket, contexts[rank]), None
        while True:
            try:
                message = protocol.send(answer)
            except StopIteration as stop:
                return stop.value
            if rank == 0:
                messages.append(message)
            answer = yield message

    return run_in_lockstep([watched(rank) for rank in range(size)], 1), messages


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_by_default_all_ranks_scatter_reduce_and_agree_on_the_mean(dtype: str, world_size: int) -> None:
    given = [normal(NUMEL, seed=rank) for rank in range(world_size)]
    means, messages = exchanged(dtype, given)
    assert [type(message) for message in messages] == [AllToAll, AllGather]
    assert all(torch.equal(mean, means[0]) for mean in means)
    exact = torch.stack(given).double().mean(dim=0)
    lost = ((means[0] - exact).norm() / exact.norm()).item()
    # Two roundings, the second of a mean that is the smaller the more ranks there are.
    low, high = {"int8": (2e-3, 2e-2), "fp8_e4m3": (1.5e-2, 6e-2), "fp8_e5m2": (3e-2, 1.2e-1)}[dtype]
    assert low < lost < high


@pytest.mark.parametrize("topology", ["scatter_reduce", "gather"])
def test_a_value_that_is_not_finite_is_nan_on_all_ranks(topology: str) -> None:
    given = [normal(NUMEL, seed=rank) for rank in range(3)]
    given[1][4000] = torch.inf
    means, _ = exchanged("int8", given, topology=topology)
    assert means[0][4000].isnan()
    assert 1 <= means[0].isnan().sum() <= 2 * 256
    assert all(torch.equal(mean.isnan(), means[0].isnan()) for mean in means)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dtype": "fp8"}, r"^byte_grad: dtype: 'fp8': must be one of \['int8', 'fp8_e4m3', 'fp8_e5m2'\]; give one"),
        ({"block_size": 0}, r"^byte_grad: block_size: 0: must be a whole number from 1 to 1048576; "),
        ({"topology": "hierarchical_scatter_reduce"}, r"^byte_grad: topology: .*between nodes it has its own exchange"),
        ({"topology": "ring"}, r"^byte_grad: topology: 'ring': must be one of \['scatter_reduce', 'gather', 'hier"),
    ],
)
def test_a_setting_out_of_range_is_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BinsgdmError, match=sentence):
        make("byte_grad", rank=0, world_size=2, **settings)


def test_a_dtype_that_this_torch_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eight_bit._TORCH_NAMES, "fp8_e4m3", "float8_missing")
    with pytest.raises(
        BinsgdmError, match=r"^byte_grad: dtype: 'fp8_e4m3': torch .* does not have it; give 'int8', or"
    ):
        ByteGrad(dtype="fp8_e4m3")
