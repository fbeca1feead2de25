"""Check recorded steps: their seconds of compute, against the time of the same steps by events of the card.

`python -m binsgdm.bench.gpu.recorded DEVICE` records in a process of its own, as torch has one world a process.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.bench.gpu.worker import end_with_parent
from binsgdm.bench.record import Record
from binsgdm.recording.recording import Recording, RecordingSettings
from binsgdm.recording.single_process_world import World

LIMIT_S = 15
# On a card a step then takes 10 ms and more, which hides its launches. A recording makes these longer.
WIDTH, LAYERS, BATCH = 4096, 4, 4096
WARM_UP, STEPS = 2, 3
# The answers of collectives, and waits for side streams, are in the one and not in the other: a few percent here.
TOLERANCE = 0.15

Times = dict[str, list[float]]  # by wrapper: the seconds of a step as recorded, and as taken


def check_recorded_steps(record: Record, device: torch.device, run: Callable[..., Any] = subprocess.run) -> None:
    """Add whether a step of DDP and one of FSDP2 are recorded with the seconds that they take."""
    command = [sys.executable, "-m", "binsgdm.bench.gpu.recorded", str(device)]
    try:
        done = run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        record.note(f"recorded steps: were not recorded within {LIMIT_S} s: left out")
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
        record.check("recorded steps", passed=False, detail=reason)
        return
    times: Times = json.loads(done.stdout.strip().splitlines()[-1])
    for name, (recorded_s, taken_s) in times.items():
        record.check(
            f"recorded step of {name}: its seconds of compute, against events",
            passed=abs(recorded_s / taken_s - 1) <= TOLERANCE,
            count=STEPS,
            detail=f"{recorded_s * 1e3:.3g} ms of {taken_s * 1e3:.3g} ms; they may differ by {TOLERANCE:.0%}",
        )


def times_of(name: str, device: torch.device, width: int = WIDTH, batch: int = BATCH) -> list[float]:
    """Return the seconds of a step as recorded, and as taken from the end of one step to that of the next.

    Args:
        name: of the wrapper, in `WRAPPERS`.
        device: of the model.
        width: of its layers.
        batch: samples.
    """
    runs_on: Any = "gpu" if device.type == "cuda" else "cpu"
    kind: Any = device.type
    settings = RecordingSettings(steps=STEPS, warm_up=WARM_UP, compute="timed", runs_on=runs_on, device=kind)
    recording = Recording(World(num_nodes=2, ranks_per_node=1), settings)
    moment, seconds_between = _stopwatch(device)
    with recording.running():
        dist.init_process_group()
        layers = [nn.Linear(width, width, device=device) for _ in range(LAYERS)]
        model = WRAPPERS[name](nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.randn(batch, width, device=device)
        ends = []
        for _ in range(WARM_UP + STEPS):
            model(inputs).square().mean().backward()
            optimizer.step()
            ends.append(moment())
            optimizer.zero_grad()
    found = recording.document()
    operations = [one for stream in found["streams"] for one in stream["operations"] if stream["name"] == "compute"]
    recorded_s = sum(one.get("seconds", 0.0) for one in operations) / found["num_steps"]
    return [recorded_s, seconds_between(ends[WARM_UP - 1], ends[-1]) / STEPS]


def _stopwatch(device: torch.device) -> tuple[Callable[[], Any], Callable[[Any, Any], float]]:
    """Return what takes a moment, and what gives the seconds between two; on a card by torch's own events."""
    if device.type != "cuda":
        return time.perf_counter, lambda one, other: float(other - one)
    record = torch.cuda.Event.record  # a recording puts another in its place

    def moment() -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        record(event, torch.cuda.current_stream())
        return event

    def between(one: Any, other: Any) -> float:
        torch.cuda.synchronize(device)
        return float(one.elapsed_time(other)) / 1e3

    return moment, between


def _in_fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {"DDP": DistributedDataParallel, "FSDP2": _in_fsdp}


def main(device_name: str) -> None:
    """Print the times of every wrapper that this torch has, in one line of JSON."""
    device = torch.device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    has_fsdp = hasattr(torch.distributed.fsdp, "fully_shard")
    times: Times = {name: times_of(name, device) for name in WRAPPERS if name != "FSDP2" or has_fsdp}
    sys.stdout.write(json.dumps(times) + "\n")


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1])
