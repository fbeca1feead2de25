"""Kernels on a card against the reference on the CPU, to the bit: what the tests of the kernels have no time for.

Those run on a card, too (`tests/unit/binsgdm/kernels`): every edge, planted errors, and what is refused.
"""

from contextlib import nullcontext
from itertools import cycle, product
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.kernels import Kernels, bits, functional, random, select
from tests.helpers.kernel_samples import (
    DTYPES,
    KEY,
    NOT_FINITE,
    GuardedMemory,
    assert_equal,
    reference,
    residuals,
    same_bits,
    state,
)
from tests.helpers.kernel_samples import device as device_name

IS_CARD = device_name() == "cuda"
# Around a byte, a group of 32 draws, a Triton block of 1,024 and several of them, and an odd million.
SIZES = (1, 7, 8, 9, 31, 32, 33, 1023, 1024, 1025, 4095, 4096, 4097, 65_537, 1_000_003) if IS_CARD else (33,)
PLACES = tuple(product((9, 1025, 4097), (0, 8, 24, 32, 2**31 - 8, 2**33), (1, 3))) if IS_CARD else ((9, 2**33, 1),)
MANY = (5, 1024, 1, 33, 70_001, 8, 4096, 257) * 12 if IS_CARD else (5, 33, 1)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # Triton's interpreter computes with numpy


@pytest.fixture(params=["reference", "triton"])
def kernels(request: pytest.FixtureRequest, device: torch.device) -> Kernels:
    """Return what is compared with the reference on the CPU."""
    needs("GPU" if request.param == "reference" else "triton")
    return select(request.param, device)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("numel", SIZES)
def test_kernels_have_the_bits_of_the_reference_at_any_size(
    kernels: Kernels, device: torch.device, numel: int, dtype: torch.dtype
) -> None:
    grad, m, b = state(numel, seed=numel)
    assert_equal(kernels, grad.to(dtype), m, b, 0, memory=GuardedMemory(device))
    if numel == SIZES[-1]:
        grad[:: numel // 3] = torch.tensor(NOT_FINITE).repeat(2)[: len(grad[:: numel // 3])]
        assert_equal(kernels, grad.to(dtype), m, b, 0, memory=GuardedMemory(device))


@pytest.mark.parametrize(("numel", "start", "offset"), PLACES)
def test_kernels_have_the_bits_of_the_reference_at_any_start_and_address(
    kernels: Kernels, device: torch.device, numel: int, start: int, offset: int
) -> None:
    for dtype in DTYPES if IS_CARD else DTYPES[1:2]:
        grad, m, b = state(numel, seed=start % 1000)
        assert_equal(kernels, grad.to(dtype), m, b, start, memory=GuardedMemory(device, offset))


@pytest.mark.parametrize("offset", [0, 1])
def test_kernels_for_many_tensors_have_the_bits_of_the_reference(
    kernels: Kernels, device: torch.device, offset: int
) -> None:
    found = []
    for which, place in ((reference, "cpu"), (kernels, device)):
        memory = GuardedMemory(place, offset)
        states = [state(numel, seed) for seed, numel in enumerate(MANY)]
        grads, xs = ([memory.place(one.to(dtype)) for (one, _, _), dtype in zip(states, cycle(DTYPES))] for _ in "ab")
        lists = [[[memory.place(given[one]) for given in states] for one in (1, 2)] for _ in range(3)]
        es = [memory.place(residuals(numel, numel, functional.SCALE)) for numel in MANY]
        us = [memory.place(torch.full((numel,), 9.0)) for numel in MANY]
        full = [torch.full((functional.packed_numel(numel),), 0xFF, dtype=torch.uint8) for numel in MANY]
        random_signs, shaped_signs = ([memory.place(one) for one in full] for _ in "ab")
        starts = [-(-sum(MANY[:number]) // 8) * 8 + 8 * number for number in range(len(MANY))]
        how: dict[str, Any] = {"beta": 0.95, "beta_b": 0.99, "nesterov": True}
        told = [
            which.update_(grads, *lists[0], out_u=us, **how),
            which.update_quantize_pack_(grads, *lists[1], key=KEY, start=starts, out=random_signs, gain=2.5, **how),
            which.update_shape_pack_(grads, *lists[2], es, gain=2.5, out=shaped_signs, **how),
        ]
        which.unpack_apply_(xs, random_signs, lr=1e-3, weight_decay=0.01)
        momenta = [tensor for pair in lists for tensors in pair for tensor in tensors]
        found.append([*told, *momenta, *es, *us, *random_signs, *shaped_signs, *xs, memory.guards_hold()])
    assert all(same_bits(wanted, got) for wanted, got in zip(*found, strict=True))


@pytest.mark.parametrize("uses", ["", "reference"])
@pytest.mark.parametrize("start", [0, 1, 31, 1023, 2**31 - 5, 2**34 - 70_001])
@pytest.mark.parametrize("numel", [1, 33, 1025, 70_001])
def test_draws_and_packed_signs_have_the_bits_of_the_cpu(
    device: torch.device, numel: int, start: int, uses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BINSGDM_KERNELS", uses)
    for function in (random.draws, random.thresholds):
        wanted, got = (function(KEY, start=start, numel=numel, device=one) for one in ("cpu", device))
        assert same_bits(wanted, got)
    positive = random.draws(KEY, start=start, numel=numel) % 2 == 1
    packed = bits.pack_signs(positive)
    assert same_bits(packed, bits.pack_signs(positive.to(device)))
    assert same_bits(bits.unpack_signs(packed, numel), bits.unpack_signs(packed.to(device), numel))


@pytest.mark.parametrize("where", ["another stream", "the last card"])
def test_kernels_work_on_another_stream_and_on_a_card_that_is_not_the_current_one(kernels: Kernels, where: str) -> None:
    needs("GPU")
    device = torch.device("cuda", torch.cuda.device_count() - 1 if where == "the last card" else 0)
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream) if where == "another stream" else nullcontext():
        assert_equal(kernels, *state(70_001, seed=1), 8, memory=GuardedMemory(device))
