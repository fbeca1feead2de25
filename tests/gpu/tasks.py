"""Two small tasks that are learned in seconds and need no data but Python's: characters, and patterns in noise."""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED = 0
NUM_CHARACTERS, CONTEXT, WIDTH, HEADS = 128, 64, 64, 4  # ASCII; other characters are left out
NUM_READ = 200_000
NUM_PATTERNS, SIDE, NOISE = 10, 16, 1.5


@dataclass(frozen=True, kw_only=True)
class SmallTask:
    """A network and its data.

    Attributes:
        name: for people.
        lr: at which BinSGDM learns it.
        batch: samples.
        network: returns a new one.
        sample: returns inputs and targets of so many samples, from a generator.
    """

    name: str
    lr: float
    batch: int
    network: Callable[[], nn.Module]
    sample: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]

    def build(self, device: torch.device) -> nn.Module:
        """Return the network, the same on every device."""
        torch.manual_seed(SEED)
        return self.network().to(device)

    def batch_of(self, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, the same on every device."""
        inputs, targets = self.sample(self.batch, torch.Generator().manual_seed(step))
        return inputs.to(device), targets.to(device)


class CharacterModel(nn.Module):
    """One causal layer of attention and one of width 256; without a fused kernel, whose backward may sum at random."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(NUM_CHARACTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attend, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, NUM_CHARACTERS)
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT).triu(1).bool(), persistent=False)

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores (batch x context, character) of the next character."""
        first, second, last = self.norms
        hidden = self.characters(characters) + self.positions.weight
        hidden = hidden + self.join(self._attention(first(hidden)))
        hidden = hidden + self.narrow(functional.gelu(self.wide(second(hidden))))
        scores: Tensor = self.head(last(hidden)).flatten(0, 1)
        return scores

    def _attention(self, hidden: Tensor) -> Tensor:
        batch = len(hidden)
        q, k, v = self.attend(hidden).view(batch, CONTEXT, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        weights = scores.masked_fill(self.get_buffer("future"), float("-inf")).softmax(-1)
        joined: Tensor = (weights @ v).transpose(1, 2).reshape(batch, CONTEXT, WIDTH)
        return joined


@lru_cache
def _text() -> Tensor:
    """Return the first characters of the standard library's top-level modules, by file name."""
    found = b""
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found += file.read_bytes().decode("utf-8", "ignore").encode("ascii", "ignore")
        if len(found) > NUM_READ:
            break
    return torch.frombuffer(bytearray(found[:NUM_READ]), dtype=torch.uint8).long()


def _windows(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    text = _text()
    starts = torch.randint(len(text) - CONTEXT, (samples, 1), generator=generator)
    places = starts + torch.arange(CONTEXT + 1)
    return text[places[:, :-1]], text[places[:, 1:]].flatten()


def _convolutions() -> nn.Module:
    """Return three convolutions and a linear layer; without pooling, whose backward may sum at random."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, 2, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * (SIDE // 4) ** 2, NUM_PATTERNS),
    )


def _patterns(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return ten fixed images under noise, and which each is."""
    images = torch.randn(NUM_PATTERNS, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED))
    labels = torch.randint(NUM_PATTERNS, (samples,), generator=generator)
    return images[labels] + NOISE * torch.randn(samples, 1, SIDE, SIDE, generator=generator), labels


TASKS = (
    SmallTask(name="characters", lr=4e-3, batch=16, network=CharacterModel, sample=_windows),
    SmallTask(name="patterns", lr=2e-3, batch=64, network=_convolutions, sample=_patterns),
)
