"""The three tasks on which all systems are compared."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import train_digits
import train_lm
import train_mnist
from torch import nn

CPU = torch.device("cpu")
EVALUATED_WINDOWS = 100
"""Of the characters, in a row from the start of the held-out part."""

Trial = dict[str, Any]
"""What is searched: an optimizer and its lr, and for some systems an option of theirs."""
Data = Callable[[str], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learned.

    Attributes:
        title: for people.
        network: returns a new one, without state that samples share.
        data: returns inputs and targets of "train", "validation" or "test".
        classes: that a sample, or a character, may be of.
        unit: of the held-out loss.
        batch: samples of all ranks together.
        steps: of a training.
        every: steps from one evaluation to the next.
        has_accuracy: whether it is evaluated too.
    """

    title: str
    network: Callable[[], nn.Module]
    data: Data
    classes: int
    unit: str
    batch: int
    steps: int
    every: int = 10
    has_accuracy: bool = True

    def dense_steps(self, trial: Trial) -> int:
        """Return how many steps a trial of 1-bit Adam begins with that are not compressed."""
        return max(1, round(trial["dense_share"] * self.steps))


@lru_cache
def _windows(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return characters, and those that follow them: all windows for training, some that do not overlap otherwise."""
    is_train, size = part == "train", train_lm.CONTEXT + 1
    windows = train_lm.text(part).unfold(0, size, 1 if is_train else size)
    windows = windows if is_train else windows[:EVALUATED_WINDOWS]
    return windows[:, :-1], windows[:, 1:]


TASKS = {
    "characters": Task(
        title="Characters",
        network=train_lm.Transformer,
        data=_windows,
        classes=train_lm.NUM_CHARACTERS,
        unit="nats per character",
        batch=16,
        steps=120,
        has_accuracy=False,
    ),
    "mnist_5k": Task(
        title="MNIST, 5,000 images",
        network=train_mnist.convolutions,
        data=lambda part: train_mnist.data(part, CPU),
        classes=10,
        unit="nats per image",
        batch=64,
        steps=120,
    ),
    "digits": Task(
        title="Digits",
        network=train_digits.convolutions,
        data=lru_cache(lambda part: train_digits.data(part, CPU)),
        classes=10,
        unit="nats per image",
        batch=64,
        steps=120,
    ),
}
