"""BinSGDM where users do the unusual: copies, odd memory, replaced state, frozen parameters, interrupts."""

import copy
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


def test_a_copy_of_an_attached_optimizer_must_be_attached():
    optimizer = stepped([torch.nn.Parameter(torch.zeros(4))], rounding="random")
    optimizer.join(Session(Member(rank=0, world_size=2)))
    copied = copy.deepcopy(optimizer)
    with pytest.raises(binsgdm.BinsgdmError, match="a copy of an attached optimizer; attach the copy"):
        copied.step()


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


def test_fp16_gradients_with_a_grad_scaler_are_refused():
    value = torch.nn.Parameter(torch.zeros(8, dtype=torch.float16))
    optimizer = binsgdm.BinSGDM([value])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(value.float().sum() * 1e-6).backward()
    with pytest.raises(binsgdm.BinsgdmError, match="fp16 gradients with a GradScaler"):
        scaler.step(optimizer)


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
