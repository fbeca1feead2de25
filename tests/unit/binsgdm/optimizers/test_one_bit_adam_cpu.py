"""1-bit Adam's compiled passes do what its step in plain torch does, to the bit, and take little memory."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

needs("numba")

from binsgdm.comm import Member, run_in_lockstep
from binsgdm.kernels import ENVIRONMENT_VARIABLE, cpu_adam, numba_kernels
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.one_bit_adam_cpu import CpuPasses

SHAPES = ((70, 61), (5,), (33, 3), (0,), (2, 3, 5, 7), (4500,))
WITHOUT_ORDER = 4  # the tensor that lies in memory in another order
REMEDIES = {"scales_momenta": True, "variance_floor": 0.01}


def team(topology: str, dtype, size: int = 4, **options) -> list[OneBitAdam]:
    """Return the optimizers of some ranks, each with two groups of parameters."""
    draw = torch.Generator().manual_seed(3)
    values = [torch.randn(shape, generator=draw).to(dtype) for shape in SHAPES]
    values[WITHOUT_ORDER] = values[WITHOUT_ORDER].to(memory_format=torch.channels_last)
    ranks = []
    for rank in range(size):
        mine = [torch.nn.Parameter(value.clone(memory_format=torch.preserve_format)) for value in values]
        groups = [{"params": mine[:3], "lr": 0.01, "betas": (0.8, 0.95)}, {"params": mine[3:]}]
        ranks.append(OneBitAdam(groups, weight_decay=0.1, dense_steps=2, topology=topology, **options))
        ranks[-1].join(Member(rank=rank, world_size=size, ranks_per_node=min(size, 2)))
    return ranks


def train(ranks: list[OneBitAdam], last: int = 5) -> list:
    """Take steps with missing gradients and one that is skipped; return all that ranks have then."""
    draw = torch.Generator().manual_seed(4)
    for step in range(1, last + 1):
        for rank, optimizer in enumerate(ranks):
            for number, one in enumerate(optimizer.param_states()):
                values = torch.randn(one.parameter.shape, generator=draw) * 10.0 ** (number - 3)
                if number == 0:
                    values[0, 5:40] = 0  # no variance
                    values[1, 0] = torch.nan if (step, rank) == (4, len(ranks) // 2) else 1
                is_left_out = (number == 1 and rank != step % 4) or (number == 2 and step == 3)
                one.parameter.grad = None if is_left_out else values.to(one.parameter.dtype)
        run_in_lockstep([optimizer.step_protocol() for optimizer in ranks], min(len(ranks), 2))
    states = [param_state for optimizer in ranks for param_state in optimizer.param_states()]
    kept = [value for state in states for value in state.state.values() if isinstance(value, torch.Tensor)]
    return [one.parameter.detach() for one in states] + kept


@pytest.mark.filterwarnings("ignore:OneBitAdam. step")
@pytest.mark.parametrize(("topology", "size"), [("flat", 4), ("hierarchical", 4), ("flat", 1)])
@pytest.mark.parametrize("streamed_numel", [1, 1 << 22])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [(torch.float32, {}), (torch.float32, {"maximize": True}), (torch.bfloat16, REMEDIES), (torch.float16, {})],
)
def test_compiled_passes_do_what_torch_does_to_the_bit(
    monkeypatch, topology: str, size: int, streamed_numel: int, dtype, options
) -> None:
    monkeypatch.setattr(cpu_adam, "_STREAMED_NUMEL", streamed_numel)
    found = {}
    for kernels in ("cpu", "reference"):
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, kernels)
        ranks = team(topology, dtype, size, **options)
        found[kernels] = train(ranks)
        assert isinstance(ranks[0]._passes, CpuPasses) == (kernels == "cpu")
        assert ranks[0].num_skipped == 1
    assert all(torch.equal(*pair) for pair in zip(found["cpu"], found["reference"], strict=True))


@pytest.mark.filterwarnings("ignore:OneBitAdam. step")
def test_what_a_lone_server_owes_is_paid(monkeypatch) -> None:
    found = {}
    for kernels in ("cpu", "reference"):
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, kernels)
        ranks = team("flat", torch.float32, 1)
        train(ranks, 3)
        state = ranks[0].state_dict()
        for one in state["state"].values():
            one["server_residual"] = torch.full_like(one["server_residual"], 0.25)
        ranks[0].load_state_dict(state)
        found[kernels] = train(ranks, 2)
        assert not ranks[0].param_states()[-1].state["server_residual"].eq(0.25).any()
    assert all(torch.equal(*pair) for pair in zip(found["cpu"], found["reference"], strict=True))


def test_the_number_of_threads_changes_no_bit(monkeypatch) -> None:
    monkeypatch.setattr(cpu_adam, "_LEAST_JOB_NUMEL", numba_kernels.ADAM_BLOCK_NUMEL)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            cpu_adam._jobs_of.cache_clear()
            found.append(train(team("flat", torch.float32), 3))
    finally:
        torch.set_num_threads(before)
        cpu_adam._jobs_of.cache_clear()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_a_gradient_that_is_too_large_is_seen_wherever_it_lies() -> None:
    for place in (0, 31, 32, 4095, 4096, 4100):
        for value in (torch.nan, torch.inf, -(2.0**63)):
            given, out = torch.zeros(4101), torch.empty(4104)
            cut = cpu_adam.plan((4101,), 4104, 1)
            assert cpu_adam.gather_gradients(cut, cpu_adam.addresses([given]), out, 2.0**63)
            assert cpu_adam.are_small(cut, cpu_adam.addresses([given]), 2.0**63)
            given[place] = value
            assert not cpu_adam.gather_gradients(cut, cpu_adam.addresses([given]), out, 2.0**63)
            assert not cpu_adam.are_small(cut, cpu_adam.addresses([given]), 2.0**63)
            assert torch.equal(out[:4101].view(torch.int32), given.view(torch.int32))


def test_a_large_gradient_is_copied_past_the_caches_alike(monkeypatch) -> None:
    monkeypatch.setattr(cpu_adam, "_STREAMED_NUMEL", 1)
    given = [torch.randn(4096), torch.randn(24), torch.randn(5000)]
    out = torch.empty(9120 + 16)
    out = out[-out.data_ptr() // 4 % 16 :][:9120]
    assert out.data_ptr() % 64 == 0
    cut = cpu_adam.plan((4096, 24, 5000), 9120, 1)
    assert cpu_adam.gather_gradients(cut, cpu_adam.addresses(given), out, 2.0**63)
    assert torch.equal(out, torch.cat(given))
