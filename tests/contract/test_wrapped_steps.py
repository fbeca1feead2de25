"""Steps recorded from `binsgdm.LocalSGD` and `binsgdm.DiLoCo` are the simulated ones: messages, groups, bytes."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import Layout
from tests.helpers.recorded_steps import recorded
from tests.helpers.step_forms import StepForm, form_of_program, form_of_recording

INNER_STEPS = 3
ONE_BIT = "ef_sign_sgd:topology=scatter_reduce,scale_per=bucket"
INT8 = "byte_grad:topology=scatter_reduce"
LAYOUTS = [(2, 1), (2, 2), (4, 2)]


def recorded_period(layout: Layout, wrapper: type, ddp: str, **options: Any) -> dict[str, Any]:
    """Return a period of steps of an SGD in a wrapper."""

    def script() -> None:
        module = steps.small_model(even=True)
        trained: nn.Module = module
        if ddp == "node":
            node, _ = dist.new_subgroups(group_size=layout[1])
            trained = DistributedDataParallel(module, process_group=node)
        optimizer = wrapper(torch.optim.SGD(module.parameters(), lr=1e-3), INNER_STEPS, **options)
        for _ in range(4 * INNER_STEPS):
            optimizer.zero_grad()
            trained(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()

    return recorded(script, *layout, steps=INNER_STEPS, warm_up=2 * INNER_STEPS)


def sent(form: StepForm) -> list[tuple]:
    """Return messages without how far backward of which step was, of which the simulated hold few."""
    return [one._replace(ready=0, after=frozenset()) for one in form.sent]


def assert_alike(recording: dict[str, Any], kind: str, **options: Any) -> None:
    simulated = steps.program(steps.strategy(kind, inner_steps=INNER_STEPS, **options), recording)
    assert simulated.period == recording["num_steps"] == INNER_STEPS
    wanted = sent(form_of_program(simulated))
    inner = [] if simulated.inner is None else sent(form_of_program(simulated.inner.program)) * simulated.inner.number
    assert sorted(sent(form_of_recording(recording))) == sorted(wanted + inner)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_local_sgd_sends_what_is_simulated(layout):
    assert_alike(recorded_period(layout, binsgdm.LocalSGD, "rank"), "local_sgd")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("workers", ["rank", "node"])
@pytest.mark.parametrize(
    ("exchange", "simulated"),
    [
        ("fp32", {}),
        ("bf16", {"outer_dtype": "bf16"}),
        ("int8", {"exchange_by": INT8}),
        ("one_bit", {"exchange_by": ONE_BIT}),
    ],
)
def test_diloco_sends_what_is_simulated(exchange, simulated, workers, layout):
    recording = recorded_period(layout, binsgdm.DiLoCo, workers, exchange=exchange, workers=workers)
    assert_alike(recording, "diloco", workers=workers, **simulated)
