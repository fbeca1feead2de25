"""Train in one of the ways that teams choose between: torchrun ... studies/lab/alternative_ways.py fsdp."""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from binsgdm.parallel.ddp_hook import compress_gradients

FEATURES, CLASSES, LEARNING_RATE = 64, 10, 1e-3


class Blocks(nn.Module):
    """Blocks of two layers between two layers of the root."""

    def __init__(self, width: int, num_blocks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(FEATURES, width), nn.Linear(width, CLASSES)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(num_blocks)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Go through all layers."""
        values = self.first(inputs)
        for block in self.blocks:
            values = block(values)
        logits: torch.Tensor = self.head(values)
        return logits


class Averaged(torch.optim.Adam):
    """Adam on each rank alone; torch averages all parameters after every few steps."""

    def __init__(self, parameters: Any, inner_steps: int) -> None:
        super().__init__(parameters, lr=LEARNING_RATE)
        self._averager = PeriodicModelAverager(period=inner_steps)

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self._averager.average_parameters(iter([one for group in self.param_groups for one in group["params"]]))
        return loss


def prepared(network: Blocks, options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    if options.way == "local_sgd":
        return network, Averaged(network.parameters(), options.inner_steps)
    if options.way in ("fsdp", "hsdp"):
        local, world_size = int(os.environ["LOCAL_WORLD_SIZE"]), dist.get_world_size()
        shape = (world_size,) if options.way == "fsdp" else (world_size // local, local)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("node", "local")[-len(shape) :])
        for part in (*network.blocks, network):
            fully_shard(part, mesh=mesh)
        return network, torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    model = DistributedDataParallel(network)
    if options.way == "zero1":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=LEARNING_RATE)
    if options.way == "int8":
        compress_gradients(model, "byte_grad", topology="scatter_reduce")
    return model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)


def main() -> None:
    """Train on random samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["ddp", "fsdp", "hsdp", "zero1", "local_sgd", "int8"])
    parser.add_argument("--inner-steps", type=int, default=4, help="of local_sgd")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples of each rank")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    model, optimizer = prepared(Blocks(options.width, options.blocks), options)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(options.steps):
        inputs = torch.randn(options.batch, FEATURES, generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), inputs[:, :CLASSES].argmax(1)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
