"""What is learned: networks and data of the examples, with the batch and the steps of each study."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn

from examples import train_digits, train_lm, train_mnist

Trial = dict[str, Any]
"""What is searched: an optimizer and its settings, lr among them."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A network, its data, and how long it is trained.

    Attributes:
        network: returns a new one, without state that samples share.
        data: returns inputs and targets of "train", "validation" or "test".
        classes: number of values that a label, or a character, can have.
        batch: samples of all ranks together.
    """

    title: str
    network: Callable[[], nn.Module]
    data: Callable[[str], tuple[torch.Tensor, torch.Tensor]]
    classes: int
    unit: str
    batch: int
    steps: int = 120
    evaluate_every: int = 10
    has_accuracy: bool = True

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network().parameters())

    def dense_steps(self, trial: Trial) -> int:
        """Return the number of uncompressed steps with which a trial of 1-bit Adam begins."""
        return max(1, round(trial["dense_share"] * self.steps))

    def is_evaluated(self, step: int) -> bool:
        """Whether the held-out loss is computed after this step."""
        return step % self.evaluate_every == 0 or step == self.steps


@lru_cache
def _windows(part: str, num_evaluated: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return characters and their successors: all windows for training, else the first that do not overlap."""
    size = train_lm.CONTEXT + 1
    windows = train_lm.text(part).unfold(0, size, 1 if part == "train" else size)
    windows = windows if part == "train" else windows[:num_evaluated]
    return windows[:, :-1], windows[:, 1:]


CHARACTERS = Task(
    title="Characters",
    network=train_lm.Transformer,
    data=partial(_windows, num_evaluated=100),
    classes=train_lm.NUM_CHARACTERS,
    unit="nats per character",
    batch=16,
    has_accuracy=False,
)
MNIST = Task(
    title="MNIST, 5,000 images",
    network=train_mnist.convolutions,
    data=lru_cache(train_mnist.load),
    classes=10,
    unit="nats per image",
    batch=64,
)
DIGITS = replace(MNIST, title="Digits", network=train_digits.convolutions, data=lru_cache(train_digits.load))
LM = replace(CHARACTERS, data=partial(_windows, num_evaluated=200), steps=300, evaluate_every=30)

TASKS: dict[str, dict[str, Task]] = {
    "margins": {
        "characters_300": LM,
        "characters_1000": replace(LM, steps=1000, evaluate_every=100),
        "characters_2000": replace(LM, steps=2000, evaluate_every=200),
        "gpt": replace(
            LM,
            title="Characters, 10.8 M",
            network=partial(train_lm.Transformer, width=384, num_layers=6, num_heads=6),
            evaluate_every=50,
        ),
        "digits": replace(DIGITS, steps=300, evaluate_every=30),
        "mnist": replace(MNIST, steps=300, evaluate_every=30),
    },
    "systems": {"characters": CHARACTERS, "mnist_5k": MNIST, "digits": DIGITS},
}
"""By study and name."""
