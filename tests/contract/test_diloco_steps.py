"""Steps recorded from LocalSGD, DiLoCo and torch's post-local SGD are the simulated ones: messages, bytes, waits."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from simnet.strategies.program import Program
from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import CAP_BYTES, CAP_MB, LAYOUTS, Layout
from tests.helpers.recorded_steps import recorded
from tests.helpers.step_forms import StepForm, form_of_program, form_of_recording, unrolled

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_own_ways.py"
EXCHANGES = {
    "fp32": {},
    "bf16": {"outer_dtype": "bf16"},
    "int8": {"exchange_by": "byte_grad:topology=scatter_reduce"},
    "fp8": {"exchange_by": "byte_grad:topology=scatter_reduce,dtype=fp8_e4m3"},
    "one_bit": {"exchange_by": "ef_sign_sgd:topology=scatter_reduce,scale_per=bucket"},
}
SCHEDULES = [
    {"inner_steps": 1},
    {"inner_steps": 3},
    {"inner_steps": 3, "overlap_steps": 1},
    {"inner_steps": 4, "fragments": 2},
    {"inner_steps": 6, "fragments": 2, "overlap_steps": 2},
]


def even_fragments() -> nn.Module:
    """Return two tensors of as many elements, which a slice of each rank of any layout divides."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96, bias=False), nn.Linear(96, 64, bias=False))


def record(layout: Layout, made, inner_steps: int, *, workers: str, overlap_steps: int = 0) -> dict[str, Any]:
    """Return a period at whose end no exchange is under way."""
    warm_up = 2 * inner_steps + overlap_steps

    def script() -> None:
        module = trained = even_fragments()
        if workers == "node":
            node, _ = dist.new_subgroups(group_size=layout[1])
            trained = DistributedDataParallel(module, process_group=node)
        optimizer = made(torch.optim.SGD(module.parameters(), lr=1e-3))
        for _ in range(warm_up + 2 * inner_steps):
            optimizer.zero_grad()
            trained(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()

    return recorded(script, *layout, steps=inner_steps, warm_up=warm_up)


def forms(program: Program, recording: dict[str, Any]) -> tuple[StepForm, StepForm]:
    """Return the recorded and the simulated period."""
    return form_of_recording(recording), form_of_program(unrolled(program, recording["num_steps"]))


def of_diloco(layout: Layout, exchange: str, schedule: dict[str, int], workers: str) -> tuple[StepForm, StepForm]:
    def made(inner: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return binsgdm.DiLoCo(inner, exchange=exchange, workers=workers, **schedule)

    recording = record(
        layout, made, schedule["inner_steps"], workers=workers, overlap_steps=schedule.get("overlap_steps", 0)
    )
    simulated = steps.strategy("diloco", workers=workers, **schedule, **EXCHANGES[exchange])
    return forms(steps.program(simulated, recording), recording)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("workers", ["rank", "node"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_diloco_sends_what_is_simulated(exchange, workers, layout):
    real, simulated = of_diloco(layout, exchange, {"inner_steps": 2}, workers)
    assert real == simulated
    assert real.sent


@pytest.mark.parametrize("workers", ["rank", "node"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_exchange_begins_and_ends_after_the_simulated_steps(schedule, workers):
    real, simulated = of_diloco((2, 2), "fp32", schedule, workers)
    assert real == simulated


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("workers", ["rank", "node"])
@pytest.mark.parametrize("wire_dtype", ["fp32", "bf16"])
def test_local_sgd_sends_what_is_simulated(wire_dtype, workers, layout):
    def made(inner: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return binsgdm.LocalSGD(inner, inner_steps=3, wire_dtype=wire_dtype)

    recording = record(layout, made, 3, workers=workers)
    simulated = steps.strategy("local_sgd", inner_steps=3, workers=workers, wire_dtype=wire_dtype)
    real, wanted = forms(steps.program(simulated, recording), recording)
    assert real == wanted
    assert real.sent


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_local_sgd_of_a_script_of_ones_own_sends_what_is_simulated(layout):
    own = runpy.run_path(str(EXAMPLE))["LocalSGD"]

    def made(inner: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return own(inner.param_groups[0]["params"], inner_steps=4, lr=0.1, momentum=0.9)

    recording = record(layout, made, 4, workers="rank")
    assert recording["num_steps"] == 4
    real, wanted = forms(steps.program(steps.strategy("local_sgd", inner_steps=4), recording), recording)
    assert real == wanted
    assert [message.kind for message in real.sent] == ["all_reduce"]


def post_local_sgd(layout: Layout, inner_steps: int) -> dict[str, Any]:
    """Return a period of post-local SGD as torch does it."""

    def script() -> None:
        module = steps.small_model()
        trained = DistributedDataParallel(module, bucket_cap_mb=CAP_MB)
        node, _ = dist.new_subgroups(group_size=layout[1])
        state = post_local.PostLocalSGDState(process_group=None, subgroup=node, start_localSGD_iter=0)
        trained.register_comm_hook(state, post_local.post_localSGD_hook)
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        averager = PeriodicModelAverager(period=inner_steps, warmup_steps=0)
        for _ in range(4 * inner_steps):
            optimizer.zero_grad()
            trained(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
            averager.average_parameters(module.parameters())

    return recorded(script, *layout, steps=inner_steps, warm_up=2 * inner_steps)


def sent(form: StepForm) -> list[tuple]:
    """Return messages with their waits, but not how far backward of which step was, of which the simulated hold few."""
    return [message._replace(ready=0, after=frozenset()) for message in form.sent]


@pytest.mark.parametrize("layout", [(2, 2), (3, 2)], ids=str)
def test_post_local_sgd_sends_what_is_simulated(layout):
    recording = post_local_sgd(layout, 3)
    strategy = steps.strategy("local_sgd", inner_steps=3, workers="node", bucket_cap=f"{CAP_BYTES} B")
    simulated = steps.program(strategy, recording)
    assert simulated.inner is not None
    real, wanted = form_of_recording(recording), form_of_program(simulated)
    inner = form_of_program(simulated.inner.program)
    assert sorted(sent(real)) == sorted([*sent(wanted), *sent(inner) * simulated.inner.number])
