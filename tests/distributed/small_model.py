"""A small model that four gloo ranks train."""

import torch
from torch import nn

WORLD_SIZE, RANKS_PER_NODE = 4, 2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 3))


def loss(module: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + step))
    result: torch.Tensor = module(inputs).square().mean()
    return result
