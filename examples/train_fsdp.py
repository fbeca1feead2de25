"""Train sharded parameters (FSDP2) with BinSGDM: sharded inside a node, 1-bit signs between nodes.

torchrun --nproc-per-node 4 examples/train_fsdp.py --ranks-per-node 2     # one host plays two nodes of two ranks
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import binsgdm

FEATURES, CLASSES = 64, 10


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks-per-node", type=int, help="(default: LOCAL_WORLD_SIZE of torchrun)")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="samples of each rank")
    return parser.parse_args()


def batches(seed: int, size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels that a matrix, the same for every seed, tells apart; put your data loader here."""
    matrix = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(seed))
    return inputs.to(device), (inputs @ matrix).argmax(1).to(device)


def main() -> None:
    """Train, and print the accuracy on samples that were not trained on."""
    options = parse()
    if "RANK" not in os.environ:
        raise SystemExit(
            "start it with torchrun: torchrun --nproc-per-node 4 examples/train_fsdp.py --ranks-per-node 2"
        )
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local = options.ranks_per_node or int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh(device.type, (world_size // local, local), mesh_dim_names=("node", "local"))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES)).to(device)
    # FSDP2 gets the ranks of one node only, so that it sends nothing between nodes: BinSGDM does.
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["local"])
    fully_shard(model, mesh=mesh["local"])
    optimizer = binsgdm.BinSGDM(model.parameters(), lr=options.lr)
    binsgdm.attach_fsdp(optimizer, mesh)
    for step in range(options.steps):
        inputs, labels = batches(1 + step * world_size + rank, options.batch, device)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    inputs, labels = batches(10**6, 2000, device)
    with torch.no_grad():  # by all ranks, since each holds a part of every layer
        accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    if rank == 0:
        print(f"FSDP2 on {world_size // local} nodes of {local}: test accuracy {accuracy:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
