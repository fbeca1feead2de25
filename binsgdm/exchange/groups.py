"""Process groups of a rank: all ranks, those of its node, and those with its local rank, one of each node."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from binsgdm.errors import BinsgdmError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups that this rank is in; ranks are numbered node by node.

    Attributes:
        world: all ranks that exchange.
        intra_node: the ranks of this node.
        inter_node: the ranks with this local rank, one of each node.
        finite_check: the ranks that decide together whether a step counts; None for `world`.
    """

    world: dist.ProcessGroup
    intra_node: dist.ProcessGroup
    inter_node: dist.ProcessGroup
    rank: int
    world_size: int
    ranks_per_node: int
    finite_check: dist.ProcessGroup | None = None


def make(ranks_per_node: int | None = None, timeout: timedelta | None = None) -> Groups:
    """Make groups of one's own for `ranks_per_node` consecutive ranks a node; every rank must call it.

    Args:
        ranks_per_node: default LOCAL_WORLD_SIZE, which torchrun sets.
        timeout: of their collectives; default that of torch.distributed.

    Raises:
        BinsgdmError: no process group, or a node size that is unknown or does not divide the world size.
    """
    if not dist.is_initialized():
        raise BinsgdmError("torch.distributed: not initialized: call init_process_group first")
    world_size = dist.get_world_size()
    local = node_size(ranks_per_node, world_size)
    nodes = [list(range(first, first + local)) for first in range(0, world_size, local)]
    rails = [list(range(rail, world_size, local)) for rail in range(local)]
    return Groups(
        world=dist.new_group(timeout=timeout),
        intra_node=dist.new_subgroups_by_enumeration(nodes, timeout=timeout)[0],  # type: ignore[no-untyped-call]
        inter_node=dist.new_subgroups_by_enumeration(rails, timeout=timeout)[0],  # type: ignore[no-untyped-call]
        rank=dist.get_rank(),
        world_size=world_size,
        ranks_per_node=local,
    )


def from_mesh(mesh: "DeviceMesh") -> Groups:
    """Take the groups of a two-dimensional mesh, nodes first: init_device_mesh(device, (nodes, ranks_per_node)).

    Raises:
        BinsgdmError: the mesh is not two-dimensional, not of all ranks, or not numbered node by node.
    """
    if mesh.ndim != 2:
        raise BinsgdmError(f"mesh: {mesh.ndim} dimensions: must have two, nodes and ranks of a node")
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(dist.get_world_size())):
        raise BinsgdmError(f"mesh: ranks {ranks}: must be all ranks, node by node")
    return Groups(
        world=dist.new_group(),
        intra_node=mesh.get_group(1),
        inter_node=mesh.get_group(0),
        rank=dist.get_rank(),
        world_size=len(ranks),
        ranks_per_node=int(mesh.mesh.shape[1]),
    )


def node_size(given: int | None, world_size: int, default: int | None = None) -> int:
    """Return the ranks of a node: as given, else from torchrun, else the default.

    Raises:
        BinsgdmError: none of them is known, or it is no number that divides the world size.
    """
    name = "ranks_per_node" if given is not None else "LOCAL_WORLD_SIZE"
    text = given if given is not None else os.environ.get("LOCAL_WORLD_SIZE", default)
    if text is None:
        raise BinsgdmError(
            "ranks_per_node: not given and LOCAL_WORLD_SIZE is not set: give it, or launch with torchrun"
        )
    try:
        local = int(text)
    except ValueError:
        local = 0
    if local < 1 or world_size % local:
        raise BinsgdmError(f"{name}: {text!r}: must divide the world size {world_size}; give the ranks of one node")
    return local
