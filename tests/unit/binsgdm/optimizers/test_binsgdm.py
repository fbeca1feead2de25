"""BinSGDM as torch users use an optimizer: groups, schedulers, closures, state, dtypes, scaler, refusals."""

import copy

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

import binsgdm
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import functional  # noqa: F401


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def train(net, optimizer, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 10, generator=generator), torch.randint(3, (16,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def test_the_update_is_that_of_the_paper():
    """Against the equations written out in plain torch, with the draws of the reference."""
    from binsgdm.kernels.random import Key, thresholds

    value = torch.nn.Parameter(torch.linspace(-1, 1, 11))
    x, m, b = value.detach().clone(), torch.zeros(11), torch.zeros(11)
    settings = {"lr": 0.1, "beta": 0.9, "weight_decay": 0.5, "seed": 3}
    optimizer = binsgdm.BinSGDM([value], **settings, **binsgdm.PAPER)
    for step in range(1, 4):
        g = torch.randn(11, generator=torch.Generator().manual_seed(step))
        value.grad = g.clone()
        optimizer.step()
        beta, rest = torch.tensor(0.9), torch.tensor(1 - 0.9)
        m = m * beta + g * rest
        b = b * beta + g.abs() * rest
        sign = torch.where(thresholds(Key(seed=3, step=step), start=0, numel=11) < m / b, 1.0, -1.0)
        x = x * (1 - 0.1 * 0.5) - 0.1 * sign
        assert torch.allclose(value, x, rtol=0, atol=1e-6)


def test_every_element_moves_by_lr_and_on_average_against_its_gradient():
    value = torch.nn.Parameter(torch.zeros(4000))
    optimizer = binsgdm.BinSGDM([value], lr=0.25, beta=0.0)
    value.grad = torch.cat([torch.full((2000,), 1e-3), torch.full((2000,), -7.0)])
    optimizer.step()
    assert torch.equal(value[:2000], torch.full((2000,), -0.25)), "u = 1 is always +1"
    assert torch.equal(value[2000:], torch.full((2000,), 0.25))


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    value = torch.nn.Parameter(torch.ones(3))
    optimizer = binsgdm.BinSGDM([value], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = value.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert torch.equal(value, torch.full((3,), 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_resumed_run_goes_on_bit_for_bit(dtype, tmp_path):
    straight = model().to(dtype)
    resumed = copy.deepcopy(straight)

    def step_all(net, optimizer, steps):
        for step in steps:
            for number, p in enumerate(net.parameters()):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + number)).to(dtype)
            optimizer.step()

    optimizer = binsgdm.BinSGDM(straight.parameters(), lr=0.01, seed=5)
    step_all(straight, optimizer, range(6))
    first = binsgdm.BinSGDM(resumed.parameters(), lr=0.01, seed=5)
    step_all(resumed, first, range(3))
    torch.save((resumed.state_dict(), first.state_dict()), tmp_path / "checkpoint.pt")
    weights, state = torch.load(tmp_path / "checkpoint.pt")
    other = model(1).to(dtype)
    other.load_state_dict(weights)
    second = binsgdm.BinSGDM(other.parameters(), lr=0.5, seed=99)
    second.load_state_dict(state)
    step_all(other, second, range(3, 6))
    for a, b in zip(straight.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert second.state[b]["m"].dtype == torch.float32


def test_a_parameter_without_gradient_is_left_alone_and_does_not_shift_the_draws_of_others():
    values = [torch.nn.Parameter(torch.zeros(40)) for _ in range(3)]
    optimizer = binsgdm.BinSGDM(values, lr=1.0)
    values[0].grad = torch.randn(40, generator=torch.Generator().manual_seed(0))
    values[2].grad = torch.zeros(40)
    optimizer.step()
    assert values[0].any()
    assert not values[1].any()
    assert 8 < (values[2] > 0).sum() < 32, "0/0 counts as 0: up or down with equal chance"


def test_odd_shapes_work():
    whole = torch.zeros(6, 5)
    values = [
        torch.nn.Parameter(whole.t()),
        torch.nn.Parameter(torch.zeros(0, 4)),
        torch.nn.Parameter(torch.tensor(1.0)),
    ]
    optimizer = binsgdm.BinSGDM(values, lr=1.0)
    for value in values:
        value.grad = torch.ones_like(value)
    optimizer.step()
    assert torch.equal(values[0], torch.full((5, 6), -1.0))
    assert values[2].item() == 0.0


@pytest.mark.parametrize("rounding", ["random", "shaped"])
def test_bucket_boundaries_do_not_change_the_result(rounding):
    """Draws are counted by place in the flat order, which starts anew with every bucket only by padding."""
    from binsgdm.comm import run_in_lockstep
    from binsgdm.optimizers.sign_exchange import Scheme
    from binsgdm.optimizers.worker import Worker

    results = []
    for bucket_elements in (8, 64, 10**6):
        values = [torch.nn.Parameter(torch.zeros(size)) for size in (16, 24, 8)]
        for number, value in enumerate(values):
            value.grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(number))
        optimizer = binsgdm.BinSGDM(values, lr=1.0, rounding=rounding)
        worker = Worker(
            optimizer.param_states(),
            context=optimizer.rank_context(),
            scheme=Scheme(topology="flat"),
            bucket_elements=bucket_elements,
            kernels=optimizer.kernels(),
        )
        worker.begin_step(1)
        with torch.no_grad():
            for bucket in worker.buckets:
                worker.apply(bucket, run_in_lockstep([worker.signs(bucket)], 1)[0], [1, 1, 1])
        results.append(torch.cat([value.detach() for value in values]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_a_gradient_that_is_not_finite_moves_nothing_and_its_averages_stay(bad):
    value, other = torch.nn.Parameter(torch.zeros(20)), torch.nn.Parameter(torch.zeros(3))
    optimizer = binsgdm.BinSGDM([value, other])
    value.grad, other.grad = torch.ones(20), torch.ones(3)
    optimizer.step()
    before, b = value.detach().clone(), optimizer.state[value]["b"].clone()
    value.grad[7] = bad
    with pytest.warns(UserWarning, match="BinSGDM: step 2 was skipped on all ranks") as warned:
        optimizer.step()
    assert warned[0].filename == __file__
    assert torch.equal(value, before)
    assert optimizer.param_groups[0]["step"] == 1
    assert optimizer.num_skipped == 1
    kept = optimizer.state[value]["b"] == b
    assert kept.tolist() == [index == 7 for index in range(20)]
    value.grad[7] = 1.0
    optimizer.step()
    assert optimizer.param_groups[0]["step"] == 2
    assert (value < before).all(), "every u is 1, so every element moves down"


def test_attach_without_a_process_group_leaves_the_optimizer_alone():
    net = model()
    optimizer = binsgdm.BinSGDM(net.parameters())
    binsgdm.attach(optimizer, net)
    train(net, optimizer, 2)
    assert optimizer.param_groups[0]["step"] == 2
    with pytest.raises(BinsgdmError, match=r"no effect with topology='flat'"):
        binsgdm.attach(optimizer, net, topology="flat", intra_node_dtype="bf16")
    with pytest.raises(BinsgdmError, match=r"bucket_cap_mb=0"):
        binsgdm.attach(optimizer, net, bucket_cap_mb=0)


def test_averages_of_slices_are_not_taken_for_whole_ones():
    value = torch.nn.Parameter(torch.zeros(9))
    sliced, whole = binsgdm.BinSGDM([value]), binsgdm.BinSGDM([value])
    value.grad = torch.ones(9)
    for optimizer, slices in ((sliced, "slices for 2 ranks a node of 4"), (whole, "")):
        optimizer.join(optimizer.session, slices)
        optimizer.step()
    saved = sliced.state_dict()
    later = binsgdm.BinSGDM([value])
    later.load_state_dict(saved)
    later.join(later.session, "slices for 2 ranks a node of 4")
    with pytest.raises(
        binsgdm.BinsgdmError, match="averages of slices for 2 ranks a node of 4: here each rank keeps whole"
    ):
        later.join(later.session, "")
    with pytest.raises(binsgdm.BinsgdmError, match="averages of whole parameters: here each rank keeps slices"):
        whole.join(whole.session, "slices for 2 ranks a node of 4")
