"""What a gloo rank trains with DDP and a compressing hook, and the same on stacked gradients in one process."""

from pathlib import Path
from typing import Any

import torch
from small_model import RANKS_PER_NODE, WORLD_SIZE, loss, model, process_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from studies import lockstep
from studies.stacked import AveragedGradients, systems_of

STEPS = 6
SEED = 13
ONE_BIT_ADAM = {"lr": 0.01, "dense_steps": 2, "variance_floor": 0.001, "scales_momenta": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("dense", {}),
    ("qsgd", {}),
    ("ef_sign_sgd", {}),
    ("sign_sgd", {"momentum": 0.9}),
    ("marsit", {"sync_period": 4, "momentum": 0.9, "residual_decay": 0.5}),
    ("power_sgd", {}),
    ("top_k", {"ratio": 0.1, "momentum": 0.9, "warmup_steps": 2}),
    ("qsgd", {"topology": "scatter_reduce"}),
    ("ef_sign_sgd", {"topology": "hierarchical", "momentum": 0.9}),
    ("one_bit_adam", {}),
]


def work(rank: int, folder: str) -> None:
    """Train with every case; rank 0 leaves the final parameters in a file."""
    with process_group(rank, folder):
        results = {str(case): train(rank, *case) for case in CASES}
        if rank == 0:
            torch.save(results, Path(folder) / "results.pt")


def train(rank: int, name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the parameters after training on this rank; one bucket, in the order of the parameters."""
    module = DistributedDataParallel(model(), find_unused_parameters=True)  # whose bucket stays as it is
    optimizer: torch.optim.Optimizer
    if name == "one_bit_adam":
        optimizer = one_bit = OneBitAdam(module.parameters(), **ONE_BIT_ADAM)
        attach_one_bit_adam(one_bit, module)
    else:
        compress_gradients(module, name, seed=SEED, ranks_per_node=RANKS_PER_NODE, **options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(module, rank, step).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


def control(name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return the same from all ranks in one process, on one core as they: sums on several have another order."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _control(name, options)
    finally:
        torch.set_num_threads(cores)


def _control(name: str, options: dict[str, Any]) -> list[torch.Tensor]:
    module = model()
    parameters = list(module.parameters())
    stack: Any
    if name == "one_bit_adam":
        make = lockstep.one_bit_adam(**ONE_BIT_ADAM)
        stack = lockstep.LockStep(parameters, make, num_ranks=WORLD_SIZE, ranks_per_node=RANKS_PER_NODE)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        systems = systems_of(name, options, WORLD_SIZE, RANKS_PER_NODE)
        stack = AveragedGradients(optimizer, systems, ranks_per_node=RANKS_PER_NODE, seed=SEED)
    for step in range(STEPS):
        gradients = [gradient(module, rank, step) for rank in range(WORLD_SIZE)]
        stack.step(torch.stack(gradients))
    return [parameter.detach() for parameter in parameters]


def gradient(module: nn.Module, rank: int, step: int) -> torch.Tensor:
    module.zero_grad()
    loss(module, rank, step).backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])  # type: ignore[union-attr]
