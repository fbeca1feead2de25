"""A small model that four gloo ranks train, and the ranks' process group."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from tests.helpers.launch import join

WORLD_SIZE, RANKS_PER_NODE = 4, 2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 3))


def loss(module: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + step))
    result: torch.Tensor = module(inputs).square().mean()
    return result


@contextmanager
def process_group(rank: int, folder: str) -> Iterator[None]:
    """Take part as one of the ranks; all leave together."""
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS_PER_NODE)
    join(rank, WORLD_SIZE, folder)
    yield
    dist.barrier()
    dist.destroy_process_group()
