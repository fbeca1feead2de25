"""Train a small convolutional network on scikit-learn's handwritten digits with BinSGDM or Adam.

python examples/train_digits.py                               # alone
torchrun --nproc-per-node 4 examples/train_digits.py          # gloo on CPU, NCCL where every rank has a GPU
"""

import argparse
from typing import Any

import torch
import training
from sklearn.datasets import load_digits
from torch import nn

PARTS = {"train": slice(0, 900), "validation": slice(900, 1260), "test": slice(1260, 1797)}
"""Of the 1797 images, in an order drawn once."""

parse = training.flags(__doc__, steps=300, batch=64, lr={"binsgdm": 4e-3, "adam": 7e-3}, beta=0.95)


def data(part: str, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 1, 8, 8) in [0, 1] and labels (N) of a part of the set."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))[PARTS[part]]
    images = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
    return images.to(device), torch.tensor(digits.target)[order].to(device)


def convolutions() -> nn.Module:
    """Return two convolutions with pooling and two linear layers, 38 thousand parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train once; return the options and the evaluations."""
    return training.train_on_images(options, device, network=convolutions, data=data)


if __name__ == "__main__":
    with training.ranks() as device:
        train(parse(), device)
