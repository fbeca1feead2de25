"""BinSGDM as torch users use an optimizer: steps, closures, states, odd memory, copies, interrupts, refusals."""

import copy
import threading
import time
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

import binsgdm
from binsgdm import BinSGDM
from binsgdm.comm import Member, run_in_lockstep
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key, thresholds
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from binsgdm.optimizers.worker import Worker


def zeros(*sizes: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


def stepped(values: list[torch.nn.Parameter], **options: Any) -> BinSGDM:
    """Return an optimizer that has taken one step with gradients of 1."""
    optimizer = BinSGDM(values, **options)
    for value in values:
        value.grad = torch.ones_like(value)
    optimizer.step()
    return optimizer


def test_the_update_is_that_of_the_paper():
    """Against the equations written out in plain torch, with the draws of the reference."""
    value = torch.nn.Parameter(torch.linspace(-1, 1, 11))
    x, m, b = value.detach().clone(), torch.zeros(11), torch.zeros(11)
    settings = {"lr": 0.1, "beta": 0.9, "weight_decay": 0.5, "seed": 3}
    optimizer = BinSGDM([value], **settings, **binsgdm.PAPER)
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


def test_a_parameter_without_gradient_is_left_alone_and_does_not_shift_the_draws_of_others():
    values = zeros(40, 40, 40)
    optimizer = BinSGDM(values, lr=1.0)
    values[0].grad = torch.randn(40, generator=torch.Generator().manual_seed(0))
    values[2].grad = torch.zeros(40)
    optimizer.step()
    assert values[0].any()
    assert not values[1].any()
    assert 8 < (values[2] > 0).sum() < 32, "0/0 counts as 0: up or down with equal chance"


def test_odd_shapes_work():
    values = [torch.nn.Parameter(one) for one in (torch.zeros(6, 5).t(), torch.zeros(0, 4), torch.tensor(1.0))]
    stepped(values, lr=1.0)
    assert torch.equal(values[0], torch.full((5, 6), -1.0))
    assert values[2].item() == 0.0


@pytest.mark.parametrize("rounding", ["random", "shaped"])
def test_bucket_boundaries_do_not_change_the_result(rounding):
    """Draws are counted by place in the flat order, which starts anew with every bucket only by padding."""
    results = []
    for bucket_elements in (8, 64, 10**6):
        values = zeros(16, 24, 8)
        for number, value in enumerate(values):
            value.grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(number))
        optimizer = BinSGDM(values, lr=1.0, rounding=rounding)
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
    value, other = zeros(20, 3)
    optimizer = stepped([value, other])
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


def test_attach_without_a_process_group_leaves_the_optimizer_alone_but_refuses_what_has_no_effect(monkeypatch):
    net = torch.nn.Linear(3, 1)
    optimizer = BinSGDM(net.parameters())
    binsgdm.attach(optimizer, net)
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["step"] == 1
    with pytest.raises(BinsgdmError, match=r"no effect with topology='flat'"):
        binsgdm.attach(optimizer, net, topology="flat", intra_node_dtype="bf16")
    with pytest.raises(BinsgdmError, match=r"bucket_cap_mb=0"):
        binsgdm.attach(optimizer, net, bucket_cap_mb=0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BinsgdmError, match="WORLD_SIZE is above 1, but there is no process group"):
        binsgdm.attach(optimizer)


def test_averages_of_slices_are_not_taken_for_whole_ones():
    (value,) = zeros(9)
    slices = "slices for 2 ranks a node of 4"
    sliced, whole, later = BinSGDM([value]), BinSGDM([value]), BinSGDM([value])
    value.grad = torch.ones(9)
    for optimizer, kept in ((sliced, slices), (whole, "")):
        optimizer.join(optimizer.session, kept)
        optimizer.step()
    later.load_state_dict(sliced.state_dict())
    later.join(later.session, slices)
    with pytest.raises(BinsgdmError, match=f"averages of {slices}: here each rank keeps whole"):
        later.join(later.session, "")
    with pytest.raises(BinsgdmError, match="averages of whole parameters: here each rank keeps slices"):
        whole.join(whole.session, slices)


def test_a_copy_of_an_attached_optimizer_must_be_attached():
    optimizer = stepped(zeros(4), rounding="random")
    optimizer.join(Session(Member(rank=0, world_size=2)))
    with pytest.raises(BinsgdmError, match="a copy of an attached optimizer; attach the copy"):
        copy.deepcopy(optimizer).step()


def test_autograd_notices_that_a_step_changed_a_parameter():
    value = torch.nn.Parameter(torch.ones(4))
    loss = (value * value).sum()
    loss.backward(retain_graph=True)
    BinSGDM([value]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_fp16_gradients_with_a_grad_scaler_are_refused():
    value = torch.nn.Parameter(torch.zeros(8, dtype=torch.float16))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(value.float().sum() * 1e-6).backward()
    with pytest.raises(BinsgdmError, match="fp16 gradients with a GradScaler"):
        scaler.step(BinSGDM([value]))


def test_an_interrupt_waits_for_the_threads_that_write():
    needs("numba")
    from binsgdm.kernels import cpu

    running, main = threading.Event(), threading.get_ident()
    written = []

    def run(lo: int, _hi: int) -> None:
        if threading.get_ident() == main:
            running.wait(10)
            raise KeyboardInterrupt
        running.set()
        time.sleep(0.05)
        written.append(lo)

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            cpu.on_threads([(number, number + 1) for number in range(100)], run)
    finally:
        torch.set_num_threads(threads)
    count = len(written)
    time.sleep(0.2)
    assert count == len(written), "nothing may be written after the interrupt has come out"
    assert count < 90, "jobs that nobody has taken are dropped"


@pytest.mark.parametrize("name", ["m", "b"])
def test_a_state_without_an_average_is_refused(name: str) -> None:
    parameter = torch.nn.Parameter(torch.ones(40))
    optimizer = BinSGDM([parameter], lr=0.1)
    parameter.grad = torch.ones(40)
    optimizer.step()
    del optimizer.state[parameter][name]
    with pytest.raises(BinsgdmError, match="parameter 0: a state that was emptied or replaced"):
        optimizer.step()
