"""BinSGDM where users do the unusual: copies, odd memory, replaced state, frozen parameters, interrupts."""

import copy
import pickle
import threading
import time
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

import binsgdm
from binsgdm.comm import Member
from binsgdm.optimizers.session import Session


def stepped(values: list[torch.nn.Parameter], **options: Any) -> binsgdm.BinSGDM:
    """Return an optimizer that has taken one step with gradients of 1."""
    optimizer = binsgdm.BinSGDM(values, **options)
    for value in values:
        value.grad = torch.ones_like(value)
    optimizer.step()
    return optimizer


def test_copies_go_on_like_the_original():
    value = torch.nn.Parameter(torch.zeros(40))
    optimizer = stepped([value], seed=3)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        (other,) = copied.param_groups[0]["params"]
        other.grad = torch.linspace(-1, 1, 40)
        copied.step()
        assert copied.param_groups[0]["step"] == 2
    value.grad = torch.linspace(-1, 1, 40)
    optimizer.step()
    assert torch.equal(value, other)


def test_a_copy_of_an_attached_optimizer_must_be_attached():
    optimizer = stepped([torch.nn.Parameter(torch.zeros(4))], rounding="random")
    optimizer.join(Session(Member(rank=0, world_size=2)))
    copied = copy.deepcopy(optimizer)
    with pytest.raises(binsgdm.BinsgdmError, match="a copy of an attached optimizer; attach the copy"):
        copied.step()


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_what_is_not_plain_memory_is_treated_as_its_values(kernels):
    needs("numba")
    strided, plain = torch.nn.Parameter(torch.zeros(12)[::2]), torch.nn.Parameter(torch.zeros(6))
    negative = torch.tensor([1.0 + 1.0j] * 6).conj().imag
    assert negative.is_neg()
    expanded = torch.nn.Parameter(torch.zeros(5))
    for value in (strided, plain):
        value.grad = negative.clone() if value is strided else negative
    expanded.grad = torch.ones(1).expand(5)
    binsgdm.BinSGDM([strided, plain, expanded], lr=1.0, kernels=kernels).step()
    assert torch.equal(strided, torch.ones(6))
    assert torch.equal(plain, torch.ones(6))
    assert torch.equal(expanded, -torch.ones(5))


def test_autograd_notices_that_a_step_changed_a_parameter():
    value = torch.nn.Parameter(torch.ones(4))
    loss = (value * value).sum()
    loss.backward(retain_graph=True)
    binsgdm.BinSGDM([value]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_frozen_parameter_is_left_alone_whatever_gradient_it_still_has():
    frozen, trained = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))
    optimizer = stepped([frozen, trained])
    frozen.requires_grad_(False)
    before = frozen.clone()
    optimizer.step()
    assert torch.equal(frozen, before)
    assert not torch.equal(trained, before)


def test_averages_that_somebody_replaces_are_used():
    value = torch.nn.Parameter(torch.zeros(9))
    optimizer = stepped([value], lr=1.0, **binsgdm.PAPER)
    optimizer.state[value]["m"], optimizer.state[value]["b"] = torch.full((9,), -10.0), torch.full((9,), 10.0)
    value.grad = torch.zeros(9)
    optimizer.step()
    assert torch.equal(value, torch.zeros(9)), "one step down, and one up since m / b is -1"


def test_fp16_gradients_with_a_grad_scaler_are_refused():
    value = torch.nn.Parameter(torch.zeros(8, dtype=torch.float16))
    optimizer = binsgdm.BinSGDM([value])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(value.float().sum() * 1e-6).backward()
    with pytest.raises(binsgdm.BinsgdmError, match="fp16 gradients with a GradScaler"):
        scaler.step(optimizer)


def test_a_refused_group_leaves_nothing_behind():
    optimizer = stepped([torch.nn.Parameter(torch.zeros(4))])
    with pytest.raises(binsgdm.BinsgdmError, match="lr: inf"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "lr": float("inf")})
    optimizer.step()
    assert len(optimizer.param_groups) == 1


def test_attach_without_a_process_group_is_refused_where_there_are_other_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(binsgdm.BinsgdmError, match="WORLD_SIZE is above 1, but there is no process group"):
        binsgdm.attach(binsgdm.BinSGDM([torch.nn.Parameter(torch.zeros(4))]))


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
