"""Small training scripts to record, and what a recording of them holds."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

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


def data_parallel(hook: Any = None, state: object = None) -> None:
    """Train under DDP, two layers a bucket."""
    # By its name in torch, as a script that starts inside the recording imports it.
    module = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=2 * LAYER_BYTES / 2**20)
    if hook is not None:
        module.register_comm_hook(state, hook)
    train(module, torch.optim.AdamW(module.parameters()))


def power_sgd() -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    data_parallel(powerSGD_hook.powerSGD_hook, state)


def accumulated() -> None:
    """Train under DDP with two micro-batches a step."""
    module = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=2 * LAYER_BYTES / 2**20)
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(6):
        with module.no_sync():
            module(torch.ones(2, WIDTH)).mean().backward()
        module(torch.ones(2, WIDTH)).mean().backward()
        optimizer.step()


def mesh(*sizes: int) -> DeviceMesh:
    return dist.device_mesh.init_device_mesh("cpu", sizes, mesh_dim_names=("first", "second"))


def sharded(*, hybrid: bool = False, clips: bool = False) -> None:
    """Train under FSDP2, hybrid in nodes of 4 ranks."""
    module = model()
    given = {"mesh": mesh(2, 4)} if hybrid else {}
    for layer in module:
        fully_shard(layer, **given)
    fully_shard(module, **given)
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        module(torch.ones(2, WIDTH)).square().mean().backward()
        if clips:
            norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            assert norm.full_tensor().shape == ()
        optimizer.step()


def tensor_parallel() -> None:
    """Train with layers that are cut in turn along columns and rows, in groups of 2 ranks."""
    module = model()
    plan = {str(index): (ColwiseParallel, RowwiseParallel)[index % 2]() for index in range(LAYERS)}
    parallelize_module(module, mesh(4, 2)["second"], plan)
    train(module, torch.optim.AdamW(module.parameters()))


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
        (
            operation["kind"],
            (groups[operation["group"]]["size"], groups[operation["group"]]["stride"]),
            operation["message_bytes"],
        )
        for stream in recording["streams"]
        for operation in stream["operations"]
        if operation["kind"] != "compute"
    ]


def stream_of(recording: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (found,) = (stream["operations"] for stream in recording["streams"] if stream["name"] == name)
    return found
