"""A step that is recorded on a card has the seconds of compute that it takes, by events of the card.

Without one a pretended clock, which moves in layers alone, stands for the time of both.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.recording import recorder
from binsgdm.recording.recording import Recording, RecordingSettings
from binsgdm.recording.single_process_world import World
from tests.helpers.kernel_samples import device as device_name

# On a card a step then takes 10 ms and more, which hides its launches. A recording makes these longer.
WIDTH, LAYERS, BATCH = (4096, 4, 4096) if device_name() == "cuda" else (8, 4, 8)
WARM_UP, STEPS = 2, 3
# The answers of collectives, and waits for side streams, are in the one and not in the other: a few percent here.
TOLERANCE = 0.15


class Working(torch.autograd.Function):
    """Takes a second of a pretended clock forward, and one backward."""

    passed_s = 0.0

    @staticmethod
    def forward(_ctx: Any, values: torch.Tensor) -> torch.Tensor:
        Working.passed_s += 1.0
        return values.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Working.passed_s += 1.0
        return gradient


class Layer(nn.Linear):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return Working.apply(super().forward(values))


@pytest.fixture(autouse=True)
def _pretended_clock(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type != "cuda":
        monkeypatch.setattr(Working, "passed_s", 0.0)
        monkeypatch.setattr(recorder, "time", SimpleNamespace(perf_counter=lambda: Working.passed_s))


def moment_of(device: torch.device) -> tuple[Callable[[], Any], Callable[[Any, Any], float]]:
    """Return what takes a moment, and what gives the seconds between two; on a card by torch's own events."""
    if device.type != "cuda":
        return lambda: Working.passed_s, lambda one, other: float(other - one)
    record = torch.cuda.Event.record  # a recording puts another in its place

    def moment() -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        record(event, torch.cuda.current_stream())
        return event

    def between(one: Any, other: Any) -> float:
        torch.cuda.synchronize(device)
        return float(one.elapsed_time(other)) / 1e3

    return moment, between


def seconds_of_a_step(wrap: Callable[[nn.Module], nn.Module], device: torch.device) -> tuple[float, float]:
    """Return the seconds of a step as recorded, and as taken from the end of one step to that of the next."""
    kind: Any = device.type
    runs_on: Any = "gpu" if kind == "cuda" else "cpu"
    settings = RecordingSettings(steps=STEPS, warm_up=WARM_UP, compute="timed", runs_on=runs_on, device=kind)
    recording = Recording(World(num_nodes=2, ranks_per_node=1), settings)
    moment, seconds_between = moment_of(device)
    make: Any = nn.Linear if kind == "cuda" else Layer
    with recording.running():
        dist.init_process_group()
        model = wrap(nn.Sequential(*(make(WIDTH, WIDTH, device=kind) for _ in range(LAYERS))))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs, ends = torch.randn(BATCH, WIDTH, device=kind), []
        for _ in range(WARM_UP + STEPS):
            model(inputs).square().mean().backward()
            optimizer.step()
            ends.append(moment())
            optimizer.zero_grad()
    found = recording.document()
    operations = [
        operation for stream in found["streams"] for operation in stream["operations"] if stream["name"] == "compute"
    ]
    recorded_s = sum(one.get("seconds", 0.0) for one in operations) / found["num_steps"]
    return recorded_s, seconds_between(ends[WARM_UP - 1], ends[-1]) / STEPS


def in_fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, in_fsdp], ids=["DDP", "FSDP2"])
def test_a_recorded_step_has_the_seconds_that_it_takes(device: torch.device, wrap: Any) -> None:
    recorded_s, taken_s = seconds_of_a_step(wrap, device)
    assert taken_s > 0
    assert recorded_s == pytest.approx(taken_s, rel=TOLERANCE if device.type == "cuda" else 1e-9)
