"""Ends of every system in every topology, in one process, with as much state as each can have."""

from typing import Any

import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import Averager, GradientBucket, Shapes
from binsgdm.compressors.registry import SYSTEMS, make

NODES, LOCAL = 2, 2
WORLD_SIZE = NODES * LOCAL
SHAPES: Shapes = ((9, 7), (), (5,), (3, 2, 4))
NUMEL = 93
FORMS = [(name, topology) for name in SYSTEMS for topology in SYSTEMS[name].topologies]


def ends(name: str, topology: str) -> list[Averager]:
    """Return the ends of all ranks, with momentum where the system has any."""
    options: dict[str, Any] = dict(SYSTEMS[name].usual_options)
    if "momentum" in SYSTEMS[name].options and name != "random_k":
        options["momentum"] = 0.9
    if name in ("power_sgd", "grad_zip"):
        options["matrix_rank"] = 2
    return [
        make(name, rank=rank, world_size=WORLD_SIZE, ranks_per_node=LOCAL, topology=topology, **options)
        for rank in range(WORLD_SIZE)
    ]


def means(systems: list[Averager], step: int) -> list[torch.Tensor]:
    """Return what every rank gets in a step of drawn gradients."""
    generator = torch.Generator().manual_seed(step)
    protocols = [
        system.mean(
            GradientBucket(
                values=torch.randn(NUMEL, generator=generator), parameters=tuple(range(len(SHAPES))), shapes=SHAPES
            ),
            RankContext(rank=rank, world_size=WORLD_SIZE, ranks_per_node=LOCAL, seed=3, step=step),
        )
        for rank, system in enumerate(systems)
    ]
    return run_in_lockstep(protocols, LOCAL)


def states(name: str, topology: str) -> list[dict[str, Any]]:
    """Return the states of all ranks after two steps."""
    systems = ends(name, topology)
    for step in (1, 2):
        means(systems, step)
    return [system.state_dict() for system in systems]


def alike(one: Any, other: Any) -> bool:
    """Tell whether two states are equal to the bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)
