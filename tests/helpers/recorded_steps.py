"""Small training scripts to record, and what a recording of them holds."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from binsgdm.recording.recording import Recording, RecordingSettings
from binsgdm.recording.single_process_world import World

LAYERS, WIDTH = 4, 64
LAYER_BYTES = 4 * WIDTH * (WIDTH + 1)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def train(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    after_step: Callable[[int], object] = lambda _: None,
    micro_batches: int = 1,
) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            module(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.step()
        after_step(step)


def recorded(
    script: Callable[[], object], num_nodes: int = 2, ranks_per_node: int = 4, **settings: Any
) -> dict[str, Any]:
    """Return the recording of a script that makes no process group of its own, in this process."""
    recording = Recording(
        World(num_nodes=num_nodes, ranks_per_node=ranks_per_node),
        RecordingSettings(**{"steps": 4, "warm_up": 2, **settings}),
    )
    with recording.running():
        dist.init_process_group("gloo")
        assert (dist.get_rank(), dist.get_world_size()) == (0, num_nodes * ranks_per_node)
        assert os.environ["LOCAL_WORLD_SIZE"] == str(ranks_per_node)
        script()
    return recording.document()


def collectives(recording: dict[str, Any]) -> list[tuple[str, tuple[int, int], float]]:
    """Return kind, (size, stride) of the group and bytes of all collectives, stream by stream."""
    groups = recording["groups"]
    return [
        (one["kind"], (groups[one["group"]]["size"], groups[one["group"]]["stride"]), one["message_bytes"])
        for stream in recording["streams"]
        for one in stream["operations"]
        if one["kind"] != "compute"
    ]


def stream_of(recording: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (found,) = (stream["operations"] for stream in recording["streams"] if stream["name"] == name)
    return found
