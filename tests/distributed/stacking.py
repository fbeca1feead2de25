"""What a gloo rank trains with DDP and a compressing hook, and the same on stacked gradients in one process."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from stacked import AveragedGradients, StackedOneBitAdam, systems_of

from binsgdm.compressors.hook import compress_gradients
from binsgdm.compressors.one_bit_adam import OneBitAdam
from binsgdm.compressors.one_bit_attach import attach_one_bit_adam

WORLD_SIZE, RANKS_PER_NODE = 4, 2
STEPS = 6
SEED = 13
ONE_BIT_ADAM = {"lr": 0.01, "dense_steps": 2}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("dense", {}),
    ("qsgd", {}),
    ("ef_sign_sgd", {}),
    ("sign_sgd", {}),
    ("marsit", {"sync_period": 4}),
    ("power_sgd", {}),
    ("top_k", {"ratio": 0.1}),
    ("one_bit_adam", {}),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 3))


def loss(module: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + step))
    result: torch.Tensor = module(inputs).square().mean()
    return result


def work(rank: int, folder: str) -> None:
    """Train with every case; rank 0 leaves the final parameters in a file."""
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS_PER_NODE)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD_SIZE, timeout=timedelta(seconds=60))
    results = {str(case): train(rank, *case) for case in CASES}
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    dist.barrier()
    dist.destroy_process_group()


def train(rank: int, name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the parameters after training on this rank; one bucket, in the order of the parameters."""
    module = DistributedDataParallel(model(), find_unused_parameters=True)  # whose bucket stays as it is
    optimizer: torch.optim.Optimizer
    if name == "one_bit_adam":
        optimizer = one_bit = OneBitAdam(module.parameters(), **ONE_BIT_ADAM)
        attach_one_bit_adam(one_bit, module)
    else:
        compress_gradients(module, name, seed=SEED, **options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(module, rank, step).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


def control(name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the same from all ranks in one process."""
    module = model()
    parameters = list(module.parameters())
    stack: Any
    if name == "one_bit_adam":
        stack = StackedOneBitAdam(parameters, num_ranks=WORLD_SIZE, ranks_per_node=RANKS_PER_NODE, **ONE_BIT_ADAM)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        systems = systems_of(name, options, WORLD_SIZE)
        stack = AveragedGradients(optimizer, systems, ranks_per_node=RANKS_PER_NODE, seed=SEED)
    for step in range(STEPS):
        gradients = [gradient(module, rank, step) for rank in range(WORLD_SIZE)]
        stack.step(torch.stack(gradients))
    return [parameter.detach() for parameter in parameters]


def gradient(module: nn.Module, rank: int, step: int) -> torch.Tensor:
    module.zero_grad()
    loss(module, rank, step).backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])  # type: ignore[union-attr]
