"""What only Triton's kernels have: tables of many tensors, whole chunks, addresses, draws and bits on a GPU.

They run in Triton's interpreter where there is no GPU.
"""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

needs("triton")

from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels import (
    Kernels,
    bits,
    functional,
    random,
    select,
    tables,
    triton_kernels,
    triton_programs,
    triton_signs,
    triton_support,
)
from binsgdm.kernels.tables import ROW_WORDS
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.session import Session
from tests.helpers.kernel_samples import DTYPES, KEY, device, reference, same_bits, state

TILE, CHUNK = triton_programs.TILE.value, 4 * triton_programs.TILE.value
WHERE: dict[str, Any] = {"beta": 0.95, "beta_b": 0.95, "key": KEY}

pytestmark = pytest.mark.gpu


@pytest.fixture
def kernels() -> Kernels:
    return select("triton", device())


def misaligned(values: Tensor) -> Tensor:
    """Return a copy that begins one element after a multiple of 16 bytes."""
    return torch.cat([values[:1], values])[1:]


@pytest.mark.parametrize("place", [torch.clone, misaligned], ids=["aligned", "misaligned"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_chunks_whole_and_cut_give_the_bits_of_the_reference(
    kernels: Kernels, dtype: torch.dtype, place: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binsgdm.kernels.triton_kernels._MANY_TILES", 2)  # as of 32 million elements: four a program
    # Of the first tensor the first chunk is cut by its start, the second is whole, the third is cut by its end.
    numels, starts = (2 * CHUNK + 100, CHUNK, 3), (8, 4 * CHUNK, 6 * CHUNK)
    results = []
    for which in (reference, kernels):
        states = [state(numel, seed=numel) for numel in numels]
        grads = [place(grad.to(device(), dtype)) for grad, _, _ in states]
        ms, bs = ([place(given[index].to(device())) for given in states] for index in (1, 2))
        outs = [torch.zeros(functional.packed_numel(numel), dtype=torch.uint8, device=device()) for numel in numels]
        told = which.update_quantize_pack_(grads, ms, bs, start=starts, out=outs, **WHERE)
        xs = [place(grad) for grad in grads]
        which.unpack_apply_(xs, outs, lr=1e-3, weight_decay=0.1)
        results.append([told, *ms, *bs, *outs, *xs])
    assert all(same_bits(wanted, got) for wanted, got in zip(*results, strict=True))


def test_an_element_beyond_2_to_the_31_is_found_and_draws_its_own_threshold(kernels: Kernels) -> None:
    # The table says that this is the chunk from element 2**32 on of a tensor that begins 2**32 elements before.
    far, numel = 2**32, 40
    grad, m, b = (given.to(device()) for given in state(numel, seed=1))
    out = torch.zeros(5, dtype=torch.uint8, device=device())
    wanted_m, wanted_b, wanted = m.clone(), b.clone(), out.clone()
    reference.update_quantize_pack_(grad, wanted_m, wanted_b, start=far, out=wanted, **WHERE)
    row = torch.zeros(1, ROW_WORDS, dtype=torch.int64)
    row[0, :3] = torch.tensor([-far // TILE, far + numel, 0])
    for column, tensor in enumerate((grad, m, b, out)):
        row[0, 4 + column] = tensor.data_ptr() - (far // 8 if tensor is out else far * 4)
    owners, finite = torch.zeros(1, dtype=torch.int32, device=device()), torch.ones(1, dtype=torch.uint8)
    numbers = (1, finite.to(device()), 0.95, 1.0 - 0.95, 0.95, 1.0 - 0.95, 1.0, 0.0, 1.0, *KEY.words())
    triton_support.launch(
        triton_programs.update,
        1,
        row.to(device()),
        owners,
        *numbers,
        dtype=triton_programs.tl.float32,
        rounding="random",
    )
    assert all(same_bits(*pair) for pair in ((wanted_m, m), (wanted_b, b), (wanted, out)))


def test_a_table_is_made_once_while_nothing_moves(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = []
    monkeypatch.setattr(tables, "upload_tensor", lambda *given: uploads.append(given) or given[0].to(given[1]))
    grads = [torch.ones(40 + number, device=device()) for number in range(3)]
    ms, bs, us = ([torch.zeros_like(grad) for grad in grads] for _ in range(3))
    for _ in range(2):
        kernels.update_(grads, ms, bs, beta=0.9, beta_b=0.9, out_u=us)
    assert len(uploads) == 2  # rows, and which chunk is whose
    moved = [grad.clone() for grad in grads]
    kernels.update_(moved, ms, bs, beta=0.9, beta_b=0.9, out_u=us)
    assert len(uploads) == 3


def test_another_stream_has_a_table_of_its_own(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = []
    monkeypatch.setattr(tables, "upload_tensor", lambda *given: uploads.append(given) or given[0].to(given[1]))
    flat = [torch.zeros(48, device=device()) for _ in range(4)]
    for stream in (1, 2, 1):
        monkeypatch.setattr(tables, "stream_of", lambda _, stream=stream: stream)
        kernels.update_(flat[:1], flat[1:2], flat[2:3], beta=0.9, beta_b=0.9, out_u=flat[3:])
    assert len(uploads) == 4


@pytest.mark.parametrize("rounding", ["shaped", "random"])
def test_a_step_of_hundreds_of_buckets_makes_no_table_anew(rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients move between two places, as a script's do that sets them to None."""
    uploads: list[Any] = []
    monkeypatch.setattr(tables, "upload_tensor", lambda *given: uploads.append(given) or given[0].to(given[1]))
    monkeypatch.setattr(triton_kernels, "launch", lambda *_, **__: None)
    parameters = [torch.nn.Parameter(torch.ones(40, device=device())) for _ in range(400)]
    optimizer = BinSGDM(parameters, kernels="triton", rounding=rounding)
    optimizer.join(Session(bucket_elements=40))
    made = []
    for gradients in [[torch.ones_like(one) for one in parameters] for _ in range(2)] * 2:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        made.append(len(uploads))
        uploads.clear()
    assert len(optimizer.session.worker.buckets) == 400
    assert made[0] >= 2 * 400
    assert made[1] == 400
    assert made[2:] == [0, 0]


def test_tables_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    kept = tables._LastUsedTables(lambda number, rows: made.append(number) or torch.zeros(rows, ROW_WORDS), 4 * 2**10)
    for number in (0, 1, 0, 2, 0):
        kept(number, 40)  # 1,440 bytes each: two fit
    assert made == [0, 1, 2]
    kept(1, 40)
    assert made == [0, 1, 2, 1], "the one asked for longest ago has gone"
    for number in range(10, 18):
        kept(number, 1)  # 512 bytes each, as the allocator hands out
    made.clear()
    for number in range(10, 18):
        kept(number, 1)
    assert made == []
    assert kept(9, 1000).numel() == 1000 * ROW_WORDS, "one that is too large is kept alone"
    kept(9, 1000)
    assert made == [9]


def test_a_launch_happens_on_the_device_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[Any] = []

    def program(*given: object, **options: object) -> None:
        entered.append((given[1:], options["maxnreg"], options["enable_fp_fusion"]))

    monkeypatch.setattr(torch.cuda, "device", lambda place: nullcontext(entered.append(place)))
    first: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda:1"))
    triton_support.launch({(3,): program}, 3, first, 7, registers=96)
    assert entered == [first.device, ((7,), 96, False)]


def test_many_tensors_take_one_launch_a_dtype(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []
    monkeypatch.setattr("binsgdm.kernels.triton_kernels.launch", lambda *given, **_: launches.append(given))
    grads = [torch.ones(40, device=device(), dtype=DTYPES[number % 2]) for number in range(6)]
    ms, bs, us = ([torch.zeros(40, device=device()) for _ in grads] for _ in range(3))
    kernels.update_(grads, ms, bs, beta=0.9, beta_b=0.9, out_u=us)
    assert len(launches) == 2
    kernels.unpack_apply_(us, [torch.zeros(5, dtype=torch.uint8, device=device())] * 6, lr=1, weight_decay=0)
    assert len(launches) == 3


@pytest.mark.parametrize(("numel", "tiles"), [(8, 1), (2**23, 1), (2**24, 2), (2**25, 4), (2**30, 4)])
def test_a_program_does_more_where_there_are_programs_enough(numel: int, tiles: int) -> None:
    assert triton_kernels._tiles_for(numel) == tiles


def test_a_wrong_tensor_among_many_is_refused(kernels: Kernels) -> None:
    flat = torch.zeros(16, device=device())
    with pytest.raises(BinsgdmError, match=r"b: 8 elements: must have 16"):
        kernels.update_([flat] * 3, [flat] * 3, [flat, flat, flat[:8]], beta=0.9, beta_b=0.9, out_u=[flat] * 3)
    both = [flat.cpu(), flat.to("meta")]
    with pytest.raises(BinsgdmError, match=r"grad: on meta: must be on cpu, as the first tensor"):
        kernels.update_(both, both, both, beta=0.9, beta_b=0.9, out_u=both)
    rows = torch.zeros(2**16, 1, dtype=torch.uint8, device=device())
    with pytest.raises(BinsgdmError, match="packed_rows: 65536 vectors: must be at most 65535"):
        kernels.merge(rows, numel=8, key=KEY, start=0, out=rows[0])


@pytest.mark.parametrize(("start", "numel"), [(0, CHUNK + 5), (5, 100), (2**34 - 7, 7), (64, 0)])
def test_draws_and_thresholds_are_those_of_plain_torch(start: int, numel: int) -> None:
    for dtype, plain in ((torch.int64, random.draws), (torch.float32, random.thresholds)):
        out = torch.zeros(numel, dtype=dtype, device=device())
        triton_signs.write_draws(out, KEY.words(), start=start)
        assert torch.equal(out.cpu(), plain(KEY, start=start, numel=numel))


@pytest.mark.parametrize("numel", [1, 8, 1001, CHUNK + 9])
def test_signs_become_the_bits_of_plain_torch_and_come_back(numel: int) -> None:
    positive = torch.rand(numel, generator=torch.Generator().manual_seed(numel)) < 0.5
    wanted = bits.pack_signs(positive)
    for given in (positive, positive.to(torch.int32)):
        packed = torch.full_like(wanted, 7).to(device())
        triton_signs.pack(given.to(device()), packed)
        assert torch.equal(packed.cpu(), wanted)
    signs = torch.zeros(numel, device=device())
    triton_signs.unpack(packed, signs)
    assert torch.equal(signs.cpu(), bits.unpack_signs(wanted, numel))


def test_on_a_gpu_draws_and_bits_are_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = []

    def launch(*given: Any, **options: Any) -> None:
        launches.append(given)
        launched(*given, **options)

    launched = triton_support.launch

    def everything() -> list[Tensor]:
        packed = bits.pack_signs(random.thresholds(KEY, start=8, numel=77) < 0)
        return [random.draws(KEY, start=3, numel=40), packed, bits.unpack_signs(packed, 77)]

    wanted = everything()
    monkeypatch.setattr(triton_support, "launch", launch)
    monkeypatch.setattr(triton_support, "is_used_on", lambda _: True)
    assert all(torch.equal(*pair) for pair in zip(wanted, everything(), strict=True))
    assert len(launches) == 4
    with pytest.raises(BinsgdmError, match="draws: elements -8 to 0"):
        random.thresholds(KEY, start=-8, numel=8)


def test_triton_is_left_alone_where_the_reference_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_support, "_has_triton", lambda _: True)
    monkeypatch.delenv("BINSGDM_KERNELS", raising=False)
    assert triton_support.is_used_on(torch.device("cuda"))
    assert not triton_support.is_used_on(torch.device("cpu"))
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    assert not triton_support.is_used_on(torch.device("cuda"))
