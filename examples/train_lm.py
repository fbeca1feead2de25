"""Train a small transformer to predict the next character of Python's standard library, with BinSGDM or Adam.

python examples/train_lm.py                               # alone
torchrun --nproc-per-node 4 examples/train_lm.py          # gloo on CPU, NCCL where every rank has a GPU
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import training
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import binsgdm

NUM_CHARACTERS = 128  # ASCII; others are dropped
CONTEXT = 64
WIDTH = 64
PARTS = {"train": (0, 800_000), "validation": (800_000, 900_000), "test": (900_000, 1_000_000)}
"""In characters of the text."""
EVALUATED_WINDOWS = 200

parse = training.flags(__doc__, steps=300, batch=16, lr={"binsgdm": 8e-3, "adam": 9e-3}, beta=0.9)


def text(part: str) -> torch.Tensor:
    """Return a part of the first million characters of the standard library's top-level modules, by file name."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    characters = b"".join(file.read_text("utf-8").encode("ascii", "ignore") for file in files)
    begin, end = PARTS[part]
    return torch.frombuffer(bytearray(characters[begin:end]), dtype=torch.uint8).long()


class Transformer(nn.Module):
    """Two causal layers of width 64, 121 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(NUM_CHARACTERS, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, NUM_CHARACTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, context, character) of the next character."""
        hidden = self.characters(characters) + self.positions.weight
        return self.head(self.layers(hidden, mask=self.mask, is_causal=True))


def loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Return nats per character over windows (batch, context + 1)."""
    return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train once; return the options and the evaluations."""
    torch.manual_seed(options.seed)
    network = Transformer().to(device)
    model: nn.Module = network
    if torch.distributed.is_initialized():
        model = DistributedDataParallel(network)
    optimizer = training.optimizer_of(options, model)
    windows = text("train").to(device).unfold(0, CONTEXT + 1, 1)
    held = text(options.split).to(device).unfold(0, CONTEXT + 1, CONTEXT + 1)[:EVALUATED_WINDOWS]

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return loss(model, windows[batch])

    def evaluate() -> dict[str, float]:
        return {"loss": loss(network, held).item()}

    curve = training.fit(
        options, model=model, optimizer=optimizer, loss_of=loss_of, num_samples=len(windows), evaluate=evaluate
    )
    binsgdm.check_replicas(model)
    return training.report(options, curve)


if __name__ == "__main__":
    with training.ranks() as device:
        train(parse(), device)
