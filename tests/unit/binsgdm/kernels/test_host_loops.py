"""Compiled loops of quantizers give the bits of their plain form, which every system has where there is no numba."""

import math
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import choices
from binsgdm.comm import RankContext
from binsgdm.comm.messages import run_as_if_alike
from binsgdm.compressors import levels
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import make
from binsgdm.compressors.sparse import drawn_indices
from binsgdm.kernels import host_loops, random
from binsgdm.kernels.random import Key
from tests.helpers.pretend_device import PretendDevice

SHAPES = ((61, 97), (5,), (130, 64), (1,), (7, 9, 3))
NUMEL = sum(math.prod(shape) for shape in SHAPES)
KEY = Key(seed=2**40 + 5, step=3, rank=2, stream=9)
SYSTEMS = [
    *(name for name in choices.names() if name != choices.ONE_BIT_ADAM),
    *(f"qsgd:bits={bits},block_size={block}" for bits, block in ((2, 1), (3, 100), (5, 4097), (8, 2**20))),
    "qsgd:coding=elias",
    "nuqsgd:bits=3,with_zero=false",
    "byte_grad:block_size=1",
    "top_k:ratio=0.4,momentum=0.9",
    "ms_top_k:ratio=0.05,num_samplings=9",
    "random_k:k=3",
]


@pytest.fixture(params=["loops", "reference"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take the loops or the plain form."""
    if request.param == "reference":
        monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    assert host_loops.is_used_on(torch.device("cpu")) == (request.param == "loops")
    return str(request.param)


def gradients(what: str) -> torch.Tensor:
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1)) * 0.01
    if what == "zeros":
        return values * (torch.arange(NUMEL) % 301 == 0)
    if what == "ties":
        return (values * 300).round() / 300
    if what == "subnormal":
        return values * 1e-38
    if what in {"nan", "inf"}:
        values[NUMEL // 3] = float(what)
    return values


def steps_of(system: str, what: str) -> list[torch.Tensor]:
    """Return the means and what is left after three steps, in the second of which gradients are these."""
    choice = choices.choice(system, "test")
    end = make(choice.name, rank=1, world_size=3, **choice.options)
    found = []
    for step, kind in enumerate(("normal", what, "normal"), 1):
        values = gradients(kind)
        bucket = GradientBucket(values=values.clone(), parameters=tuple(range(len(SHAPES))), shapes=SHAPES)
        context = RankContext(rank=1, world_size=3, ranks_per_node=1, seed=1, step=step)
        found.append(run_as_if_alike(end.mean(bucket, context), context))
        assert torch.equal(bucket.values.view(torch.int32), values.view(torch.int32))  # nobody changes them
    state: Any = end.state_dict()
    state = state.get("residuals", {})
    return [*found, *state.get("residuals", state).values()]


@pytest.mark.parametrize("what", ["normal", "zeros", "ties", "subnormal", "nan", "inf"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_system_does_the_same_with_loops_and_without(system: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_loops = steps_of(system, what)
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    for own, plain in zip(with_loops, steps_of(system, what), strict=True):
        assert torch.equal(own.nan_to_num(7.0), plain.nan_to_num(7.0))


@pytest.mark.parametrize(("start", "numel"), [(0, 5000), (37, 4096), (2**34 - 70, 70), (0, 1)])
@pytest.mark.parametrize("draw", [random.draws, random.thresholds, random.uniforms])
def test_draws_are_the_same(draw: Any, start: int, numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = draw(KEY, start=start, numel=numel)
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    plain = draw(KEY, start=start, numel=numel)
    assert own.dtype == plain.dtype
    assert torch.equal(own, plain)


@pytest.mark.parametrize(("numel", "count"), [(10_000, 100), (10_000, 9_999), (50, 50), (1, 1)])
def test_the_smallest_draws_are_the_same(numel: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = drawn_indices(numel, count, KEY, torch.device("cpu"))
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    assert torch.equal(own, drawn_indices(numel, count, KEY, torch.device("cpu")))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_codes_of_any_width(threads: int, kind: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for bits in range(2, 9):
            codes = random.draws(KEY, start=0, numel=200_003).remainder(2**bits).to(torch.uint8)
            assert torch.equal(levels.unpack_codes(levels.pack_codes(codes, bits), bits, codes.numel()), codes), kind
        trits = random.draws(KEY, start=0, numel=200_003).remainder(3).to(torch.uint8)
        assert torch.equal(levels.unpack_trits(levels.pack_trits(trits), trits.numel()), trits), kind
    finally:
        torch.set_num_threads(before)


def test_counted_operations_are_those_of_the_plain_form() -> None:
    with PretendDevice():
        assert not host_loops.is_used_on(torch.device("cpu"))
    assert not host_loops.is_used_on(torch.device("meta"))
