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
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import binsgdm

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
    torch.manual_seed(options.seed)
    model = network = convolutions().to(device)
    if torch.distributed.is_initialized():
        model = DistributedDataParallel(network)
    optimizer = training.optimizer_of(options, model)
    images, labels = data("train", device)
    held_images, held_labels = data(options.split, device)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images[batch]), labels[batch])

    def evaluate() -> dict[str, float]:
        scores = network(held_images)
        accuracy = (scores.argmax(1) == held_labels).float().mean()
        return {"accuracy": accuracy.item(), "loss": functional.cross_entropy(scores, held_labels).item()}

    curve = training.fit(
        options, model=model, optimizer=optimizer, loss_of=loss_of, num_samples=len(images), evaluate=evaluate
    )
    binsgdm.check_replicas(model)
    return training.report(options, curve)


if __name__ == "__main__":
    with training.ranks() as device:
        train(parse(), device)
