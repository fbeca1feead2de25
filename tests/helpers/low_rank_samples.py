"""What the tests of low rank start from: a bucket, matrices, and a place for a rank."""

from typing import Any

import torch

from binsgdm.comm import RankContext
from binsgdm.compressors.base import GradientBucket

SHAPES = ((16, 12), (), (0, 3), (7,), (8, 3, 2))
NAMES = ("conv", "scale", "nothing", "bias", "head")
NUMEL = 248
WHOLE = slice(192, 200)


def normal(numel: int, seed: int = 1) -> Any:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def with_spectrum(rows: int, columns: int, decay: float) -> Any:
    left, _ = torch.linalg.qr(normal(rows * columns).view(rows, columns).double())
    right, _ = torch.linalg.qr(normal(columns * columns, 2).view(columns, columns).double())
    return (left * decay ** torch.arange(columns).double() @ right.T).float()


def context(rank: int = 0, size: int = 1, step: int = 0) -> RankContext:
    return RankContext(rank=rank, world_size=size, ranks_per_node=1, seed=5, step=step)


def bucket(values: Any, names: Any = NAMES, shapes: Any = SHAPES) -> GradientBucket:
    return GradientBucket(values=values, parameters=tuple(names), shapes=tuple(shapes))


def energy(values: Any) -> float:
    return float(values.double().square().sum())
