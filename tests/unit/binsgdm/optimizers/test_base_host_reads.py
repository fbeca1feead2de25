"""What a step costs on a GPU beside its kernels: waits of the host for the device, and memory."""

import ctypes
import gc
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import Member, RankContext, run_in_lockstep
from binsgdm.comm.messages import run_as_if_alike
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import SCHEMES, Rounding, Scheme
from tests.helpers.pretend_device import PretendDevice, PretendTensor, pretended_device

SHAPES = ((9, 7), (5,))


RANKS, RANKS_PER_NODE = 4, 2


def parameters(device: str = "cuda") -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.linspace(-1, 1, torch.Size(s).numel(), device=device).view(s)) for s in SHAPES]


def give_gradients(optimizer: OneBitOptimizer, *, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for param_state in optimizer.param_states():
        gradient = scale * torch.randn(param_state.parameter.shape, generator=generator)
        param_state.parameter.grad = gradient.to(param_state.parameter.dtype).to(param_state.parameter.device)


def scaled_by(optimizer: OneBitOptimizer, scale: float | None, *, found_inf: bool = False) -> None:
    """Do what `torch.amp.GradScaler.step` does: both are scalars on its device; no scale if it has unscaled before."""
    device = optimizer.param_groups[0]["params"][0].device.type  # of GPUs the current one
    optimizer.found_inf = torch.full((), float(found_inf), device=device)
    optimizer.grad_scale = None if scale is None else torch.full((), scale, device=device)


def bin_sgdm(
    scheme: Scheme | None = None,
    rank: int = 0,
    device: str = "cuda",
    kernels: str | None = "reference",
    rounding: Rounding = "random",
) -> BinSGDM:
    made = BinSGDM(parameters(device), lr=0.1, kernels=kernels, rounding=rounding)
    if scheme is not None:
        made.join(Session(Member(rank=rank, world_size=RANKS, ranks_per_node=RANKS_PER_NODE), scheme, 64))
    return made


def one_bit_adam(topology: str = "flat", rank: int | None = None, device: str = "cuda") -> OneBitAdam:
    made = OneBitAdam(parameters(device), dense_steps=2, topology=topology)
    if rank is not None:
        made.join(Member(rank=rank, world_size=RANKS, ranks_per_node=RANKS_PER_NODE))
    return made


def step_together(optimizers: Sequence[OneBitOptimizer]) -> bool:
    ranks_per_node = RANKS_PER_NODE if len(optimizers) > 1 else 1
    return all(map(bool, run_in_lockstep([optimizer.step_protocol() for optimizer in optimizers], ranks_per_node)))


def assert_one_read_a_step(counts: PretendDevice, optimizers: Sequence[OneBitOptimizer], *, steps: int = 4) -> None:
    for step in range(steps):
        for rank, optimizer in enumerate(optimizers):
            give_gradients(optimizer, seed=10 * step + rank)
        counts.reset()
        assert step_together(optimizers)
        # In the first step ranks compare their parameters: a checksum, and those of all.
        reads_a_rank = 3 if step == 0 and len(optimizers) > 1 else 1
        assert counts.reads.total() == reads_a_rank * len(optimizers), f"step {step}: {counts.reads}"
        if step not in (0, 2):  # the first of a stage copies its constants
            assert not counts.blocking_uploads, f"step {step}: {counts.blocking_uploads}"


@pytest.mark.slow
def test_a_step_alone_has_one_host_read_on_any_device() -> None:
    for device in ("cuda", "cuda:1"):
        with pretended_device(uses_triton=device == "cuda:1") as counts:
            assert_one_read_a_step(counts, [bin_sgdm(device=device, kernels="reference", rounding="shaped")], steps=2)
            assert_one_read_a_step(counts, [bin_sgdm(device=device, kernels=None)], steps=2)
            launches = {name: number for name, number in counts.operations.items() if name.startswith("triton.")}
            if launches:
                assert launches == {"triton.update": 1, "triton.unpack_apply": 1}
                assert counts.storages < 10, "flags and tables"
            assert_one_read_a_step(counts, [one_bit_adam(device=device)])


@pytest.mark.parametrize("topology", ["flat", "hierarchical"])
def test_both_stages_of_one_bit_adam_have_one_host_read_a_rank(topology: str) -> None:
    with pretended_device() as counts:
        assert_one_read_a_step(counts, [one_bit_adam(topology, rank) for rank in range(RANKS)])


@pytest.mark.parametrize("scale", [1024.0, None], ids=["the optimizer unscales", "unscaled before"])
@pytest.mark.parametrize("make", [bin_sgdm, one_bit_adam])
def test_a_grad_scaler_adds_no_host_read_and_skips_as_on_the_cpu(make, scale: float | None) -> None:
    with pretended_device() as counts:
        pair = make(device="cuda:1"), make(device="cpu")
        for step, found_inf in enumerate((False, True, False, False)):
            for optimizer in pair:
                give_gradients(optimizer, seed=step, scale=scale or 1.0)
                scaled_by(optimizer, scale, found_inf=found_inf)
            if found_inf:  # clipping may have hidden it from the averages: the scaler's word counts
                assert not step_together(pair[:1])
                assert not step_together(pair[1:])
            else:
                counts.reset()
                assert step_together(pair[:1])
                assert counts.reads.total() == 1, f"step {step}: {counts.reads}"
                assert step_together(pair[1:])
            assert_equal(*pair)
        assert [optimizer.num_skipped for optimizer in pair] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["random", "shaped"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_scheme_has_one_host_read_a_rank_and_skips_what_one_scaler_found_as_on_the_cpu(
    scheme: Scheme, rounding: Rounding
) -> None:
    with pretended_device() as counts:
        both = [
            [bin_sgdm(scheme, rank, device, rounding=rounding) for rank in range(RANKS)] for device in ("cuda", "cpu")
        ]
        for step in range(2):
            for optimizers in both:
                for rank, optimizer in enumerate(optimizers):
                    give_gradients(optimizer, seed=10 * step + rank, scale=8.0)
                    scaled_by(optimizer, 8.0, found_inf=(step, rank) == (1, 2))
                counts.reset()
                if step == 0:
                    assert step_together(optimizers)
                    assert counts.reads.total() == (3 * RANKS if optimizers is both[0] else 0)
                    continue
                with pytest.warns(UserWarning, match="step 2 was skipped on all ranks"):
                    assert not step_together(optimizers)
                assert not counts.blocking_uploads
        for on_gpu, on_cpu in zip(*both, strict=True):
            assert_equal(on_gpu, on_cpu)


def assert_equal(on_gpu: OneBitOptimizer, on_cpu: OneBitOptimizer) -> None:
    for ours, theirs in zip(on_gpu.param_states(), on_cpu.param_states(), strict=True):
        pairs = [(ours.parameter, theirs.parameter)]
        assert ours.state.keys() == theirs.state.keys()
        names = [name for name, kept in ours.state.items() if isinstance(kept, torch.Tensor)]
        pairs += [(ours.state[name], theirs.state[name]) for name in names]
        for given, wanted in pairs:
            assert isinstance(given, PretendTensor)
            assert torch.equal(given.data.cpu(), wanted), "the same bits"


def test_a_gradient_that_is_not_finite_is_found_without_another_read() -> None:
    with pretended_device() as counts:
        for optimizer in (bin_sgdm(), one_bit_adam()):
            give_gradients(optimizer, seed=0)
            given = [param_state.parameter for param_state in optimizer.param_states()]
            given[1].grad[2] = torch.inf
            before = [one.data.clone() for one in given]
            counts.reset()
            with pytest.warns(UserWarning, match="was skipped on all ranks"):
                assert not step_together([optimizer])
            assert counts.reads.total() == 1
            assert all(torch.equal(one.data, old) for one, old in zip(given, before, strict=True))


@pytest.mark.parametrize("make", [bin_sgdm, one_bit_adam])
def test_a_step_in_a_cuda_graph_is_refused_and_moves_nothing(make) -> None:
    with pretended_device() as counts:
        optimizer = make()
        give_gradients(optimizer, seed=0)
        counts.is_capturing = True
        with pytest.raises(BinsgdmError, match=r"step\(\) while a CUDA graph is captured: .*; capture forward"):
            optimizer.step()
        assert not optimizer.param_groups[0]["step"]
        counts.is_capturing = False
        optimizer.step()
        assert optimizer.param_groups[0]["step"] == 1


NUMEL, TENSORS = 1 << 24, 16
MAX_BYTES = 12  # of a parameter: m and b 8, the residual 2, the sign 1/8, and what one piece of draws takes
MAX_BYTES_AMONG_OTHERS = (
    15  # with what a bucket receives, the residual of the mean, and what one piece of a checksum takes
)


def steps_of_optimizer(
    numel: int, rounding: str, parameters: list[torch.nn.Parameter] | None = None, ranks: int = 1
) -> None:
    """Make an optimizer and take two steps, the first of which draws its residuals and compares states of all ranks."""
    given = parameters or [torch.nn.Parameter(torch.zeros(numel))]
    for parameter in given:
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad
    optimizer = BinSGDM(given, rounding=rounding)
    if ranks > 1:
        context = RankContext(rank=0, world_size=ranks, ranks_per_node=1, seed=0, step=1)
        member = Member(world_size=ranks, run=lambda protocol: run_as_if_alike(protocol, context))
        optimizer.join(Session(member, bucket_elements=NUMEL // TENSORS))
    for _ in range(2):
        optimizer.step()


def kib(name: str) -> int:
    """Return a number of this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def give_back() -> None:
    """Let the system have what is free in this process, which would be taken without being seen."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.slow
@pytest.mark.parametrize(("rounding", "least"), [("shaped", 10), ("random", 8)])
@pytest.mark.parametrize(("ranks", "most"), [(1, MAX_BYTES), (4, MAX_BYTES_AMONG_OTHERS)])
def test_an_optimizer_takes_few_bytes_a_parameter(rounding: str, least: int, ranks: int, most: int) -> None:
    needs("numba", "peak memory")
    peak = Path("/proc/self/clear_refs")
    steps_of_optimizer(1 << 17, rounding, ranks=ranks)  # compiles
    parameters = [torch.nn.Parameter(torch.zeros(NUMEL // TENSORS)) for _ in range(TENSORS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    give_back()
    before = kib("VmRSS")
    peak.write_text("5", encoding="ascii")  # forgets the peak so far
    steps_of_optimizer(NUMEL, rounding, parameters, ranks)
    taken = (kib("VmHWM") - before) * 1024 / NUMEL
    assert least <= taken <= most
