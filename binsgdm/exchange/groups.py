"""Process groups of a rank: all ranks, those of its node, and those with its local rank, one of each node."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


NCCL_TIMEOUT = timedelta(minutes=10)  # PyTorch's default for NCCL, where a group does not say its own
# PyTorch's watchdog ends the process at the timeout of a group, without a sentence of ours: it gets this much more.
WATCHDOG_GRACE = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups that this rank is in; ranks are numbered node by node.

    Attributes:
        world: all ranks that exchange.
        intra_node: the ranks of this node.
        inter_node: the ranks with this local rank, one of each node.
        finite_check: the ranks that decide together whether a step counts; None for `world`.
        uses_nccl: NCCL carries what is exchanged.
        timeout: over NCCL, for how long a rank waits for the others before it gives up.
    """

    world: dist.ProcessGroup
    intra_node: dist.ProcessGroup
    inter_node: dist.ProcessGroup
    rank: int
    world_size: int
    ranks_per_node: int
    finite_check: dist.ProcessGroup | None = None
    uses_nccl: bool = False
    timeout: timedelta = NCCL_TIMEOUT

    @property
    def all_that_step(self) -> dist.ProcessGroup:
        """The ranks that step together."""
        return self.finite_check or self.world

    @property
    def distinct(self) -> list[dist.ProcessGroup]:
        """Every group once, in the order in which communicators are made."""
        return list(dict.fromkeys((self.all_that_step, self.world, self.intra_node, self.inter_node)))


def make(
    ranks_per_node: int | None = None, timeout: timedelta | None = None, device: torch.device | None = None
) -> Groups:
    """Make groups of one's own for `ranks_per_node` consecutive ranks a node; every rank must call it.

    Args:
        ranks_per_node: default LOCAL_WORLD_SIZE, which torchrun sets.
        timeout: of their collectives; default that of torch.distributed, over NCCL that of the process group.
        device: of the tensors that will be exchanged, whose communicators are made now; None where nothing may wait.

    Raises:
        BinsgdmError: no process group, or none for the device; or a node size that is unknown or does not divide the
            world size.
    """
    if not dist.is_initialized():
        raise BinsgdmError("torch.distributed: not initialized: call init_process_group first")
    world_size = dist.get_world_size()
    local = node_size(ranks_per_node, world_size)
    if device is not None and world_size > 1:
        check_backend(device)
    over_nccl = "nccl" in dist.get_backend_config() if device is None else is_nccl(None, device)
    limit = timeout
    if over_nccl:
        timeout = timeout or timeout_of(None)
        limit = timeout + WATCHDOG_GRACE
    nodes = [list(range(first, first + local)) for first in range(0, world_size, local)]
    rails = [list(range(rail, world_size, local)) for rail in range(local)]
    groups = Groups(
        world=dist.new_group(timeout=limit),
        intra_node=dist.new_subgroups_by_enumeration(nodes, timeout=limit)[0],  # type: ignore[no-untyped-call]
        inter_node=dist.new_subgroups_by_enumeration(rails, timeout=limit)[0],  # type: ignore[no-untyped-call]
        rank=dist.get_rank(),
        world_size=world_size,
        ranks_per_node=local,
        uses_nccl=over_nccl,
        timeout=timeout or NCCL_TIMEOUT,  # which gloo has no use for
    )
    if device is not None:
        make_communicators(groups, device)
    return groups


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
    device = torch.device(mesh.device_type)
    check_backend(device)
    limit = min(timeout_of(mesh.get_group(number)) for number in range(2))
    groups = Groups(
        world=dist.new_group(),
        intra_node=mesh.get_group(1),
        inter_node=mesh.get_group(0),
        rank=dist.get_rank(),
        world_size=len(ranks),
        ranks_per_node=int(mesh.mesh.shape[1]),
        uses_nccl=is_nccl(None, device),
        timeout=max(limit - WATCHDOG_GRACE, limit / 2),  # before PyTorch ends the process
    )
    make_communicators(groups, device)
    return groups


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Return the name of the backend that carries tensors of a kind of device in a group; empty if none does."""
    # Such as "cpu:gloo,cuda:nccl".
    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).split(","))
    return {kind: backend for kind, _, backend in pairs}.get(device.type, "")


def is_nccl(group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Tell whether NCCL carries these tensors: calls return at once, and none fails if a rank is gone."""
    return "nccl" in backend_of(group, device)


def check_backend(device: torch.device) -> None:
    """Refuse tensors that no backend of the process group carries.

    Raises:
        BinsgdmError: none does, or gloo, which has no all-to-all on a GPU.
    """
    backend = backend_of(None, device)
    if not backend or (backend == "gloo" and device.type == "cuda"):
        raise BinsgdmError(
            f"torch.distributed: tensors on {device.type}: the process group {dist.get_backend_config()!r} must carry "
            "them; move the model, or call init_process_group without a backend, which takes the right one for each "
            "device"
        )


def timeout_of(group: dist.ProcessGroup | None) -> timedelta:
    """Return after which time NCCL's collectives of a group (default all ranks) fail."""
    try:
        options: Any = (group or dist.group.WORLD)._get_backend(torch.device("cuda")).options  # type: ignore[union-attr]
        timeout: timedelta = options._timeout
    except (AttributeError, RuntimeError):  # no public name for it, nor any for a backend that is not NCCL
        return NCCL_TIMEOUT
    return timeout


def make_communicators(groups: Groups, device: torch.device) -> None:
    """Make the communicators of NCCL now, one after the other in the same order on all ranks.

    NCCL makes the communicator of a group in its first collective, and its connections in the first of each kind, for
    which all of its ranks have to come. Left to the first backward, that would be a thread of ours beside DDP's own
    collectives.
    """
    for group in groups.distinct:
        size = dist.get_world_size(group)
        if is_nccl(group, device) and size > 1:
            sent, received = torch.zeros(size, device=device), torch.zeros(size, device=device)
            dist.all_reduce(sent, group=group)
            dist.all_to_all_single(received, sent, group=group)
            dist.all_gather(list(torch.split(received, 1)), sent[:1], group=group)


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
