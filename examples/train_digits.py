"""Train a small convolutional network on scikit-learn's handwritten digits with BinSGDM or Adam.

pip install scikit-learn
python examples/train_digits.py                               # one process
torchrun --nproc-per-node 4 examples/train_digits.py          # gloo on CPU, NCCL where every rank has a GPU
"""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import binsgdm

# Of the 1797 images, in an order drawn once.
PARTS = {"train": slice(0, 900), "validation": slice(900, 1260), "test": slice(1260, 1797)}


def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 1, 8, 8) in [0, 1] and labels (N) of a part of the set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))[PARTS[part]]
    images = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
    return images, torch.tensor(digits.target)[order]


def convolutions() -> nn.Module:
    """Return two convolutions with pooling and two linear layers, 38 thousand parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", choices=["binsgdm", "adam"], default="binsgdm")
    parser.add_argument("--lr", type=float, help="at the start; falls to 0 along a cosine (default 5e-3, Adam 7e-3)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64, help="images of all ranks together")
    parser.add_argument("--ranks-per-node", type=int, help="(default: LOCAL_WORLD_SIZE of torchrun)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.lr = options.lr or (5e-3 if options.optimizer == "binsgdm" else 7e-3)
    return options


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
