"""Train in four ways that no system of binsgdm describes, as a script of one's own might.

torchrun --nproc-per-node 4 examples/train_own_ways.py int8       # DDP with a hook of one's own, two messages a bucket
torchrun --nproc-per-node 4 examples/train_own_ways.py hybrid --ranks-per-node 2   # FSDP2 in nodes, copies between
torchrun --nproc-per-node 4 examples/train_own_ways.py local --inner-steps 4       # local SGD
torchrun --nproc-per-node 4 examples/train_own_ways.py zero       # ZeRO-1: DDP, sharded state of the optimizer
simnet record --nodes 4 -- python examples/train_own_ways.py int8                  # without any other rank
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

FEATURES, CLASSES, LEARNING_RATE = 64, 10, 3e-3


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=["int8", "hybrid", "local", "zero"])
    parser.add_argument("--ranks-per-node", type=int, help="of hybrid (default: LOCAL_WORLD_SIZE of torchrun)")
    parser.add_argument("--inner-steps", type=int, default=4, help="of local: steps between two averages")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--blocks", type=int, default=2, help="of two layers each")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples of each rank")
    return parser.parse_args()


def int8_gathered(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of DDP from codes of 8 bits: one message of scales, one of codes."""
    gradient, world_size = bucket.buffer(), dist.get_world_size()
    scale = gradient.abs().max().clamp(min=1e-12).reshape(1) / 127
    codes = (gradient / scale).round_().to(torch.int8)
    scales, gathered = ([torch.empty_like(one) for _ in range(world_size)] for one in (scale, codes))
    first, second = dist.all_gather(scales, scale, async_op=True), dist.all_gather(gathered, codes, async_op=True)

    def decode(_: object) -> torch.Tensor:
        first.wait()
        return sum(one * of_rank for one, of_rank in zip(gathered, scales, strict=True)) / world_size

    return second.get_future().then(decode)


class LocalSGD(torch.optim.SGD):
    """SGD on each rank alone, whose parameters are averaged after every few steps, in one message."""

    def __init__(self, parameters: Any, inner_steps: int, **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self._inner_steps, self._done = inner_steps, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Do a step, and average if it is time to."""
        loss = super().step(closure)
        self._done += 1
        if self._done % self._inner_steps == 0:
            parameters = [one for group in self.param_groups for one in group["params"]]
            mean = nn.utils.parameters_to_vector(parameters)
            dist.all_reduce(mean)
            nn.utils.vector_to_parameters(mean / dist.get_world_size(), parameters)
        return loss


def prepared(network: nn.Sequential, options: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and its optimizer for a way of training."""
    if options.way == "local":
        return network, LocalSGD(network.parameters(), options.inner_steps, lr=0.1, momentum=0.9)
    if options.way == "hybrid":
        local = options.ranks_per_node or int(os.environ["LOCAL_WORLD_SIZE"])
        mesh = init_device_mesh("cpu", (dist.get_world_size() // local, local), mesh_dim_names=("node", "local"))
        for part in (*network[1:-1], network):
            fully_shard(part, mesh=mesh)
        return network, torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    model = DistributedDataParallel(network)
    if options.way == "zero":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=LEARNING_RATE)
    model.register_comm_hook(None, int8_gathered)
    return model, torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)


def main() -> None:
    """Train, and print the accuracy on new samples."""
    options = parse()
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun: torchrun --nproc-per-node 4 examples/train_own_ways.py zero")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pairs = [[nn.ReLU(), nn.Linear(options.width, options.width)] for _ in range(2 * options.blocks)]
    blocks = [nn.Sequential(*one, *two) for one, two in zip(pairs[::2], pairs[1::2], strict=True)]
    network = nn.Sequential(nn.Linear(FEATURES, options.width), *blocks, nn.Linear(options.width, CLASSES))
    model, optimizer = prepared(network, options)

    generator = torch.Generator().manual_seed(dist.get_rank())
    truth = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(1000))
    for _ in range(options.steps):
        inputs = torch.randn(options.batch, FEATURES, generator=generator)  # put your data loader here
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), (inputs @ truth).argmax(1)).backward()
        optimizer.step()

    inputs = torch.randn(2000, FEATURES, generator=torch.Generator().manual_seed(2000))
    with torch.no_grad():  # by all ranks, since each may hold a part of every layer
        accuracy = (model(inputs).argmax(1) == (inputs @ truth).argmax(1)).float().mean().item()
    if dist.get_rank() == 0:
        print(f"{options.way} on {dist.get_world_size()} ranks: test accuracy {accuracy:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
