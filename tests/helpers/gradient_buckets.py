"""Buckets of gradients, and what the ends of a system make of them in one process."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket
from binsgdm.kernels.random import Key

SHAPES = ((16, 12), (), (0, 3), (7,), (8, 3, 2))
NAMES = ("conv", "scale", "nothing", "bias", "head")
NUMEL = 248
KEY = Key(seed=5, step=2, rank=1)


def normal(numel: int = NUMEL, seed: int = 1) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def energy(values: torch.Tensor) -> float:
    return float(values.double().square().sum())


def there_and_back(compressor: Any, values: torch.Tensor, shapes: Any = None, key: Key = KEY) -> torch.Tensor:
    """Return what is delivered of values, by default of one tensor."""
    shapes = shapes or ((values.numel(),),)
    found: torch.Tensor = compressor.decompress(compressor.compress(values, shapes, key), shapes, key)
    return found


def context(rank: int = 0, size: int = 1, step: int = 0, ranks_per_node: int = 1) -> RankContext:
    return RankContext(rank=rank, world_size=size, ranks_per_node=ranks_per_node, seed=3, step=step)


def bucket(values: torch.Tensor, shapes: Any = SHAPES, names: Any = NAMES) -> GradientBucket:
    return GradientBucket(values=values, parameters=tuple(names)[: len(shapes)], shapes=tuple(shapes))


def means_of(
    ends: Sequence[Any],
    gradients: Sequence[torch.Tensor],
    step: int = 0,
    shapes: Any = SHAPES,
    names: Any = NAMES,
    ranks_per_node: int = 1,
    on_sent: Callable[[int, Any], object] | None = None,
) -> list[Any]:
    """Return what each rank makes of the gradients of all."""
    talks = [
        end.mean(bucket(values, shapes, names), context(rank, len(ends), step, ranks_per_node))
        for rank, (end, values) in enumerate(zip(ends, gradients, strict=True))
    ]
    return run_in_lockstep(talks, ranks_per_node, on_sent)


def with_spectrum(rows: int, columns: int, decay: float) -> torch.Tensor:
    """Return a matrix whose singular values fall by a factor."""
    left, _ = torch.linalg.qr(normal(rows * columns).view(rows, columns).double())
    right, _ = torch.linalg.qr(normal(columns * columns, 2).view(columns, columns).double())
    return (left * decay ** torch.arange(columns).double() @ right.T).float()
