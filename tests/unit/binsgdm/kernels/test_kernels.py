"""Every fast kernel equals the reference bit for bit; every wrong argument is refused.

The Triton kernels run on a GPU where there is one, else through Triton's interpreter on the CPU, where Triton can be
imported (`pip install --no-deps triton` beside a CPU build of torch does).
"""

import itertools
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels import Kernels, functional, keys, select
from binsgdm.kernels.functional import packed_numel
from binsgdm.kernels.random import thresholds
from tests.helpers.kernel_samples import (
    DTYPES,
    KEY,
    NOT_FINITE,
    assert_equal,
    home,
    outcomes,
    reference,
    residuals,
    same_bits,
    state,
)

# Of the interpreter of Triton, which takes a tenth of a second for each.
MAX_EXAMPLES = min(20, settings.default.max_examples)
SIZES = (0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 100, 1000, 1024, 1056, 2047)
STARTS = (0, 8, 24, 1024, 2**34 - 4096)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("numel", SIZES)
def test_a_kernel_equals_the_reference_bit_for_bit(fast: Kernels, numel: int) -> None:
    turn = SIZES.index(numel)  # the interpreter of Triton takes its time: each size has one start and dtype, in turn
    in_turn = [(STARTS[turn % len(STARTS)], DTYPES[turn % len(DTYPES)])]
    for start, dtype in itertools.product(STARTS, DTYPES) if fast.name == "cpu" else in_turn:
        grad, m, b = state(numel, seed=numel + start % 1000)
        assert_equal(fast, grad.to(dtype), m, b, start)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # Triton's interpreter computes with numpy
def test_a_kernel_equals_the_reference_where_gradients_are_not_finite(fast: Kernels, dtype: torch.dtype) -> None:
    for number, bad in enumerate(NOT_FINITE):
        for position in (0, 33, 99) if fast.name == "cpu" else (0, 33, 99)[number:][:1]:
            grad, m, b = state(100, seed=number)
            grad[position] = bad
            assert_equal(fast, grad.clamp(-6e4, 6e4).to(dtype), m, b, 8)
            assert_equal(fast, grad.to(dtype), m, b, 8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=MAX_EXAMPLES)
@given(
    rows=st.lists(st.tuples(*[st.floats(width=32)] * 2, st.floats(0, width=32, allow_infinity=False)), max_size=70),
    start=st.integers(0, 2**30).map(lambda group: 8 * group),
    dtype=st.sampled_from(DTYPES),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_kernel_equals_the_reference_on_any_floats(
    fast: Kernels, rows: list[tuple[float, float, float]], start: int, dtype: torch.dtype
) -> None:
    grad, ratio, b = torch.tensor(rows, dtype=torch.float32).reshape(-1, 3).T.contiguous()
    m = torch.where(ratio.abs() <= 1, ratio * b, torch.copysign(b, ratio))
    assert_equal(fast, grad.to(dtype), m, b, start)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_every_16_bit_parameter_is_read_and_rounded_as_torch_does(fast: Kernels, dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = x[x.isfinite()]
    signs = torch.randint(
        256, (packed_numel(x.numel()),), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    for lr, weight_decay in ((0.0, 0.0), (1e-3, 0.1), (2.0**-9, 0.0), (1e-7, 1e3)):
        wanted, got = x.clone(), x.to(home(fast), copy=True)
        reference.unpack_apply_(wanted, signs, lr=lr, weight_decay=weight_decay)
        fast.unpack_apply_(got, signs.to(got.device), lr=lr, weight_decay=weight_decay)
        assert same_bits(wanted, got)


@pytest.mark.parametrize("num_vectors", [1, 2, 3, 7, 256])
def test_merging_and_averaging_any_number_of_vectors_equals_the_reference(fast: Kernels, num_vectors: int) -> None:
    source = torch.Generator().manual_seed(num_vectors)
    numel = 40 if num_vectors == 256 and fast.name == "triton" else 1101
    packed = torch.randint(256, (num_vectors, packed_numel(numel)), dtype=torch.uint8, generator=source)
    parts = torch.randn(num_vectors, numel, generator=source)
    results = []
    for kernels in (reference, fast):
        out = torch.zeros_like(packed[0]).to(home(kernels))
        mean = torch.zeros_like(parts[0]).to(home(kernels))
        kernels.merge(packed.to(out.device), numel=numel, key=KEY, start=8, out=out)
        kernels.mean_(parts.to(out.device), mean)
        into_itself = parts.to(out.device, copy=True)
        kernels.mean_(into_itself, into_itself[0])
        results.append((out, mean, into_itself[0]))
        assert same_bits(mean, into_itself[0])
    for wanted, got in zip(*results, strict=True):
        assert same_bits(wanted, got)


def test_a_sign_turns_exactly_at_its_threshold(fast: Kernels) -> None:
    for kernels in (reference, fast):
        t = thresholds(KEY, start=8, numel=1000, device=home(kernels))
        out = torch.zeros(125, dtype=torch.uint8, device=t.device)
        kernels.quantize_pack(t, key=KEY, start=8, out=out)
        assert out.sum() == 0
        kernels.quantize_pack(t.nextafter(torch.full_like(t, 2.0)), key=KEY, start=8, out=out)
        assert (out == 0xFF).all()


@pytest.mark.parametrize("rounding", ["random", "shaped"])
def test_segments_give_the_bits_of_the_whole(fast: Kernels, rounding: str) -> None:
    given = [one.to(home(fast)) for one in state(3000, seed=1)]
    kept = residuals(3000, seed=5, most=functional.SCALE).to(given[0].device)

    def packed(cuts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        residual, signs = kept.clone(), torch.zeros(375, dtype=torch.uint8, device=kept.device)
        for lo, hi in itertools.pairwise((0, *cuts, 3000)):
            pieces, out = [one[lo:hi].clone() for one in given], signs[lo // 8 : hi // 8]
            if rounding == "shaped":
                fast.update_shape_pack_(*pieces, residual[lo:hi], beta=0.9, beta_b=0.9, gain=1.0, out=out)
            else:
                fast.update_quantize_pack_(*pieces, beta=0.9, beta_b=0.9, key=KEY, start=64 + lo, out=out)
        return signs, residual

    whole = packed(())
    for cuts in ((8,), (40,), (1000,), (2992,), (40, 1000)):
        assert all(torch.equal(*pair) for pair in zip(whole, packed(cuts), strict=True))


def test_a_skipped_update_says_so_and_keeps_the_momenta(fast: Kernels) -> None:
    for kernels in (reference, fast):
        grad, m, b = (given.to(home(kernels)) for given in state(70, seed=2))
        grad.clamp_(-1e30, 1e30)
        u, before = torch.zeros_like(m), (m.clone(), b.clone())
        assert kernels.update_(grad.clone(), m.clone(), b.clone(), beta=0.5, beta_b=0.5, out_u=u)
        grad[69] = torch.nan
        assert not kernels.update_(grad, m, b, beta=0.5, beta_b=0.5, out_u=u)
        assert (m[69], b[69]) == (before[0][69], before[1][69])
        assert m.isfinite().all()
        assert not torch.equal(m[:69], before[0][:69])


@pytest.mark.parametrize("dtypes", [DTYPES[:1], DTYPES], ids=["float32", "mixed"])
def test_many_tensors_at_once_give_the_bits_of_one_after_the_other(fast: Kernels, dtypes: Any) -> None:
    numels = (5, 0, 64, 33, 1) if fast.name == "triton" else (5, 0, 70_000, 33, 200_001, 1)
    place = home(fast)
    grads = [state(n, seed=n)[0].to(place, dtypes[i % len(dtypes)]) for i, n in enumerate(numels)]
    starts = [96 * number + sum(numels[:number]) // 8 * 8 for number in range(len(numels))]
    one, many, split = ([[given.to(place) for given in state(n, seed=n)[1:3]] for n in numels] for _ in range(3))
    signs, all_signs = ([torch.zeros(packed_numel(n), dtype=torch.uint8, device=place) for n in numels] for _ in "ab")
    us = [torch.zeros(n, device=place) for n in numels]
    x, all_x = [grad.clone() for grad in grads], [grad.clone() for grad in grads]
    where: dict[str, Any] = {"beta": 0.95, "beta_b": 0.95, "key": KEY}
    finite = [
        fast.update_quantize_pack_(grad, *pair, start=start, out=out, **where)
        for grad, pair, start, out in zip(grads, one, starts, signs, strict=True)
    ]
    m, b = ([pair[which] for pair in many] for which in (0, 1))
    assert fast.update_quantize_pack_(grads, m, b, start=starts, out=all_signs, **where) == all(finite)
    fast.update_(grads, *([pair[which] for pair in split] for which in (0, 1)), beta=0.95, beta_b=0.95, out_u=us)
    for values, packed in zip(x, signs, strict=True):
        fast.unpack_apply_(values, packed, lr=1e-3, weight_decay=0.1, maximize=True)
    fast.unpack_apply_(all_x, all_signs, lr=1e-3, weight_decay=0.1, maximize=True)
    for number in range(len(numels)):
        assert torch.equal(signs[number], all_signs[number])
        assert same_bits(x[number], all_x[number])
        assert all(
            same_bits(a, c) and same_bits(a, d)
            for a, c, d in zip(one[number], many[number], split[number], strict=True)
        )
        assert same_bits(us[number], functional.ratio(*split[number]))


# Planted errors: what the comparison above would see.


# Threads.


def test_the_number_of_threads_does_not_matter() -> None:
    needs("numba")
    kernels, before = select("cpu"), torch.get_num_threads()
    given = (*state(300_001, seed=3), 8)
    wanted = outcomes(reference, *given)
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            got = outcomes(kernels, *given)
            assert all(same_bits(wanted[name], got[name]) for name in wanted)
    finally:
        torch.set_num_threads(before)


def test_two_threads_may_call_at_once() -> None:
    needs("numba")
    kernels, given = select("cpu"), (*state(200_001, seed=4), 0)
    wanted, results = outcomes(kernels, *given), []
    threads = [threading.Thread(target=lambda: results.append(outcomes(kernels, *given))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(same_bits(wanted[name], got[name]) for got in results for name in wanted)


@pytest.mark.nightly
def test_a_cpu_without_avx_gets_the_same_bits(tmp_path: Any) -> None:
    needs("numba", "x86-64")
    program = """
from binsgdm.kernels import select
from tests.helpers import kernel_samples as t
for dtype in t.DTYPES:
    for numel in (33, 1000):
        grad, m, b = t.state(numel, numel)
        t.assert_equal(select("cpu"), grad.to(dtype), m, b, 8)
"""
    target = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **target}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# Wrong arguments.

FLAT, SIGNS, LEFT = torch.zeros(16), torch.zeros(2, dtype=torch.uint8), torch.zeros(16, dtype=torch.int16)
QUANTIZE: dict[str, Any] = {"key": KEY, "start": 0, "out": SIGNS}
SHAPE: dict[str, Any] = {"gain": 1.0, "out": SIGNS}
UPDATE: dict[str, Any] = {"beta": 0.9, "beta_b": 0.9}
INTO: dict[str, Any] = {**UPDATE, "out_u": FLAT}
SHAPED: dict[str, Any] = {**UPDATE, "gain": 1.0}
TOO_MANY = torch.full((keys.MAX_SHAPED_VECTORS + 1, 1), 0xFF, dtype=torch.uint8)
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("update_", (FLAT, FLAT[:8], FLAT), INTO, "m: 8 elements: must have 16"),
    ("update_", (FLAT, FLAT, FLAT.half()), INTO, "b: torch.float16: must be torch.f"),
    ("update_", (FLAT.double(), FLAT, FLAT), INTO, "grad: torch.float64: must be torch.float32 or torch.bfloat16"),
    ("update_", (FLAT, FLAT.to("meta"), FLAT), INTO, "m: on meta: must be on cpu"),
    ("update_", (torch.zeros(4, 4).T, FLAT, FLAT), INTO, r"grad: strides \(1, 4\): must be contiguous"),
    ("quantize_pack", (FLAT,), {**QUANTIZE, "start": 4}, "start: 4: must be a multiple of 8"),
    ("quantize_pack", (FLAT,), {**QUANTIZE, "start": -8}, "start: -8: must be a multiple of 8"),
    ("quantize_pack", (FLAT,), {**QUANTIZE, "start": 2**34 - 8}, "start: .*: must be a multiple"),
    ("quantize_pack", (FLAT[:8],), QUANTIZE, "out: 2 elements: must have 1"),
    ("quantize_pack", (FLAT.half(),), QUANTIZE, "u: torch.float16: must be torch.float32"),
    ("merge", (SIGNS,), {"numel": 16, **QUANTIZE}, r"packed_rows: shape \(2,\): must be K x P"),
    ("merge", (SIGNS[None],), {"numel": 17, **QUANTIZE}, "packed_rows: 2 elements: must have 3"),
    ("mean_", (FLAT[None][:0], FLAT), {}, r"parts: shape \(0, 16\): must be K x N with K at least 1"),
    ("mean_", (FLAT[None], FLAT[:8]), {}, "out: 8 elements: must have 16"),
    ("unpack_apply_", (FLAT, SIGNS[:1]), {"lr": 1, "weight_decay": 0}, "packed: 1 elements: must have 2"),
    ("shape_pack_", (FLAT, LEFT.int()), SHAPE, "residual: torch.int32: must be torch.int16"),
    ("shape_pack_", (FLAT, LEFT[:8]), SHAPE, "residual: 8 elements: must have 16"),
    ("shape_pack_", (FLAT, LEFT.to("meta")), SHAPE, "residual: on meta: must be on cpu"),
    ("shape_pack_", (FLAT, LEFT.repeat(2)[::2]), SHAPE, r"residual: strides \(2,\): must be contiguous; pass a flat"),
    ("shape_pack_", (FLAT.half(), LEFT), SHAPE, "u: torch.float16: must be torch.float32"),
    ("shape_pack_", (FLAT, LEFT), {"gain": 1.0, "out": SIGNS[:1]}, "out: 1 elements: must have 2"),
    ("update_shape_pack_", (FLAT, FLAT, FLAT, LEFT[:8]), {**SHAPED, "out": SIGNS}, "residual: 8 elements: must have"),
    ("update_shape_pack_", (*[[FLAT] * 2] * 3, [LEFT, LEFT.int()]), {**SHAPED, "out": [SIGNS] * 2},
     "residual: torch.int32: must be torch.int16"),
    ("merge_shaped_", (SIGNS, LEFT), {"numel": 16, "out": SIGNS}, r"packed_rows: shape \(2,\): must be K x P"),
    ("merge_shaped_", (SIGNS[None], LEFT[:8]), {"numel": 16, "out": SIGNS}, "residual: 8 elements: must have 16"),
    ("merge_shaped_", (TOO_MANY, LEFT[:8]), {"numel": 8, "out": SIGNS[:1]},
     "packed_rows: 32768 vectors: must be at most 32767; take rounding='random'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"), WRONG, ids=[f"{one[0]} {one[3]}" for one in WRONG]
)
def test_a_wrong_argument_is_refused(fast: Kernels, name: str, arguments: Any, options: Any, message: str) -> None:
    for kernels in (reference, fast):
        with pytest.raises(BinsgdmError, match=message):
            getattr(kernels, name)(*arguments, **options)
