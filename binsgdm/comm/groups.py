"""Process groups of a rank: all ranks, those of its node, and those with its local rank, one of each node."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


RECORDING = "recording"
"""Backend of the groups in which one process stands for all ranks: it answers as if each sent what this one does."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups that this rank is in; its ranks are numbered from 0, node by node, whatever their global ranks are.

    Attributes:
        world: all ranks that exchange, which may be a part of all that there are.
        intra_node: the ranks of this node.
        inter_node: the ranks with this local rank, one of each node.
        rank: position of this rank in `world`.
        ranks: global ranks in the order of positions.
        made: the groups that were made for this exchange alone, which ends with them.
        finite_check: the ranks that decide together whether a step counts; None for `world`.
        uses_nccl: NCCL carries what is exchanged.
        timeout: over NCCL, for how long a rank waits for the others before it gives up.
        is_recorded: one process stands for all ranks, so that nothing can differ.
    """

    world: dist.ProcessGroup
    intra_node: dist.ProcessGroup
    inter_node: dist.ProcessGroup
    rank: int
    world_size: int
    ranks_per_node: int
    ranks: tuple[int, ...] = ()
    made: tuple[dist.ProcessGroup, ...] = ()
    finite_check: dist.ProcessGroup | None = None
    uses_nccl: bool = False
    timeout: timedelta = NCCL_TIMEOUT
    is_recorded: bool = False

    @property
    def global_rank(self) -> int:
        """This rank among all that there are, as sentences name it."""
        return self.ranks[self.rank] if self.ranks else self.rank

    @property
    def all_that_step(self) -> dist.ProcessGroup:
        """The ranks that step together."""
        return self.finite_check or self.world

    @property
    def are_connected(self) -> bool:
        """Tell whether gloo connects this rank to others: over NCCL, no collective fails by itself."""
        return not self.uses_nccl and dist.get_world_size(self.all_that_step) > 1

    @property
    def distinct(self) -> list[dist.ProcessGroup]:
        """Every group once, in the order in which communicators are made."""
        return list(dict.fromkeys((self.all_that_step, self.world, self.intra_node, self.inter_node)))


def make(
    ranks_per_node: int | None = None,
    timeout: timedelta | None = None,
    device: torch.device | None = None,
    group: dist.ProcessGroup | None = None,
) -> Groups:
    """Make groups of one's own for `ranks_per_node` consecutive ranks a node; every rank of `group` must call it.

    Args:
        ranks_per_node: see `node_size`.
        timeout: of their collectives; default that of torch.distributed, over NCCL that of the process group.
        device: of the tensors that will be exchanged, whose communicators are made now; None where nothing may wait.
        group: the ranks that exchange, of which this is one; default all. The other ranks need not call.
    """
    if not dist.is_initialized():
        raise BinsgdmError("torch.distributed: not initialized: call init_process_group first")
    ranks, local = ranks_of(group), node_size(ranks_per_node, group)
    if device is not None and len(ranks) > 1:
        check_backend(device, group)
    return _made(ranks, local, [group], timeout, device, is_of_all=is_world(group))


def _made(  # noqa: PLR0913
    ranks: Sequence[int],
    local: int,
    parents: Sequence[dist.ProcessGroup | None],
    timeout: timedelta | None,
    device: torch.device | None,
    *,
    is_of_all: bool,
) -> Groups:
    """Make the groups of ranks of which `local` consecutive ones are a node, inside groups that exist."""
    first = parents[0]
    over_nccl = "nccl" in dist.get_backend_config(first) if device is None else is_nccl(first, device)
    if over_nccl:
        timeout = timeout or min(map(timeout_of, parents))
    limit = timeout + WATCHDOG_GRACE if over_nccl and timeout is not None else timeout
    nodes = [ranks[start : start + local] for start in range(0, len(ranks), local)]
    layouts = ([ranks], nodes, [ranks[rail::local] for rail in range(local)])
    # After a restart the store may hold addresses of ranks that are gone, under the names that torch gives groups.
    if is_of_all and _attempt() == "0":
        groups = [
            dist.new_subgroups_by_enumeration([list(part) for part in layout], timeout=limit)[0]  # type: ignore[no-untyped-call]
            for layout in layouts
        ]
    else:
        # Only the ranks of a group have to call; torch.distributed may have ranks that exchange nothing.
        groups, backend = [], dist.get_backend_config(first)
        name = f"binsgdm/{_agreed_number(parents, device)}"
        for number, layout in enumerate(layouts):
            members = next(list(part) for part in layout if dist.get_rank() in part)
            with _named(f"{name}/{number}/{members[0]}"):
                groups.append(dist.new_group(members, timeout=limit, backend=backend, use_local_synchronization=True))
    made = Groups(
        world=groups[0],
        intra_node=groups[1],
        inter_node=groups[2],
        rank=list(ranks).index(dist.get_rank()),
        world_size=len(ranks),
        ranks_per_node=local,
        ranks=tuple(ranks),
        made=tuple(groups),
        uses_nccl=over_nccl,
        timeout=timeout or NCCL_TIMEOUT,  # which gloo has no use for
        is_recorded=RECORDING in dist.get_backend_config(first),
    )
    if device is not None:
        make_communicators(made, device)
    return made


def store_key(*parts: object) -> str:
    """Return a key in the store of torch.distributed, which torchrun keeps from one start of the ranks to the next."""
    return "/".join(map(str, ("binsgdm", _attempt(), *parts)))


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def is_world(group: dist.ProcessGroup | None) -> bool:
    """Tell whether a group is the one that init_process_group has made, of all ranks."""
    return group is None or group is dist.group.WORLD


def ranks_of(group: dist.ProcessGroup | None) -> list[int]:
    """Return the global ranks of a group (default all) in ascending order, so that those of a node are neighbours."""
    if group is None or is_world(group):
        return list(range(dist.get_world_size()))
    return sorted(dist.get_process_group_ranks(group))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Let the next group that only its members make have this name in the store, and a communicator of its own."""
    c10d: Any = dist.distributed_c10d
    world: Any = dist.group.WORLD
    # torch names such a group by how many groups this process has, which need not be the same on all of its ranks: they
    # would wait for each other under different names. And that name comes again once groups were destroyed, with the
    # addresses of the old one.
    naming, c10d._process_group_name = c10d._process_group_name, lambda *_, **__: name
    # With a device bound to it, NCCL would split the communicator of all ranks, for which all have to come.
    device, is_bound = getattr(world, "bound_device_id", None), bool(getattr(world, "bound_device_id", None))
    try:
        if is_bound:
            world.bound_device_id = None
        yield
    finally:
        c10d._process_group_name = naming
        if is_bound:
            world.bound_device_id = device


def _agreed_number(groups: Sequence[dist.ProcessGroup | None], device: torch.device | None) -> int:
    """Return a number that no other call returns, alike on all ranks of a group, or of a mesh's two, nodes first."""
    # The first position of each group has it from the group before, and the very first from the store.
    is_first = all(ranks_in_order(group)[0] == dist.get_rank() for group in groups)
    number = dist.distributed_c10d._get_default_store().add("binsgdm/groups", 1) if is_first else 0
    on = torch.device("cpu") if "gloo" in backend_of(groups[0], torch.device("cpu")) else device
    shared = torch.tensor([number], device=on or torch.device("cuda"))
    for group in groups:
        dist.broadcast(shared, src=ranks_in_order(group)[0], group=group)
    return int(shared)


def ranks_in_order(group: dist.ProcessGroup | None) -> list[int]:
    """Return the global ranks of a group (default all) in the order of torch's positions in it."""
    return ranks_of(None) if group is None else dist.get_process_group_ranks(group)


def from_mesh(mesh: "DeviceMesh", group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> Groups:
    """Make groups as those of a two-dimensional mesh, nodes first: init_device_mesh(device, (nodes, ranks_per_node)).

    Groups of one's own: an exchange that ends closes its connections, and those of the mesh are the user's.

    Args:
        mesh: of all ranks or of a part of them; every rank of it must call.
        group: whose ranks it must have; default any.
        timeout: of the collectives; default as of `make`, over NCCL the shorter one of the mesh's groups.
    """
    check_mesh(mesh, group)
    device, parents = torch.device(mesh.device_type), (mesh.get_group(0), mesh.get_group(1))
    check_backend(device, parents[0])
    ranks = mesh.mesh.flatten().tolist()
    return _made(ranks, int(mesh.mesh.shape[1]), parents, timeout, device, is_of_all=ranks == ranks_of(None))


def check_mesh(mesh: "DeviceMesh", group: dist.ProcessGroup | None = None) -> None:
    """Refuse a mesh that says nothing of nodes."""
    if mesh.ndim != 2:
        raise BinsgdmError(f"mesh: {mesh.ndim} dimensions: must have two, nodes and ranks of a node")
    ranks = mesh.mesh.flatten().tolist()
    if group is not None and set(ranks) != set(ranks_of(group)):
        raise BinsgdmError(f"mesh: ranks {ranks}: must be those of the process group, {ranks_of(group)}, node by node")
    if ranks != sorted(ranks):
        raise BinsgdmError(f"mesh: ranks {ranks}: must be in ascending order, node by node")
    if dist.get_rank() not in ranks:
        raise BinsgdmError(f"mesh: ranks {ranks}: must have this rank, {dist.get_rank()}; call it on these ranks alone")


def release(groups: Groups) -> None:
    """Free what was made for an exchange, after its last message on all ranks."""
    for group in groups.made:
        dist.destroy_process_group(group)


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Return the name of the backend that carries tensors of a kind of device in a group; empty if none does."""
    # Such as "cpu:gloo,cuda:nccl".
    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).split(","))
    return {kind: backend for kind, _, backend in pairs}.get(device.type, "")


def is_nccl(group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Tell whether NCCL carries these tensors: calls return at once, and none fails if a rank is gone."""
    return "nccl" in backend_of(group, device)


def check_backend(device: torch.device, group: dist.ProcessGroup | None = None) -> None:
    """Refuse tensors that no backend of a group (default all ranks') carries, or gloo on a GPU, without all-to-all."""
    backend = backend_of(group, device)
    if not backend or (backend == "gloo" and device.type == "cuda"):
        raise BinsgdmError(
            f"torch.distributed: tensors on {device.type}: the process group {dist.get_backend_config(group)!r} must "
            "carry them; move the model, or call init_process_group without a backend, which takes the right one for "
            "each device"
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


def node_size(ranks_per_node: int | None, group: dist.ProcessGroup | None = None, default: int | None = None) -> int:
    """Return how many consecutive ranks of a group are on a node.

    Args:
        ranks_per_node: if not None, the answer.
        group: default all ranks. Of a part of them, those with equal global rank // LOCAL_WORLD_SIZE are on a node.
        default: where neither `ranks_per_node` nor LOCAL_WORLD_SIZE (of torchrun) is known.
    """
    ranks = ranks_of(group)
    name = "ranks_per_node" if ranks_per_node is not None else "LOCAL_WORLD_SIZE"
    of_all_ranks = os.environ.get("LOCAL_WORLD_SIZE")
    text = next((value for value in (ranks_per_node, of_all_ranks, default) if value is not None), None)
    if text is None:
        raise BinsgdmError(
            "ranks_per_node: not given and LOCAL_WORLD_SIZE is not set: give it, or launch with torchrun"
        )
    try:
        local = int(text)
    except ValueError:
        local = 0
    if ranks_per_node is None and of_all_ranks is not None and len(ranks) < dist.get_world_size() and local >= 1:
        counts = Counter(rank // local for rank in ranks)
        if len(set(counts.values())) > 1:
            raise BinsgdmError(
                f"LOCAL_WORLD_SIZE: {local}: the group's ranks {ranks} are {list(counts.values())} on their nodes: "
                "must be as many on each; give ranks_per_node=1, or a group with as many ranks of each node"
            )
        return next(iter(counts.values()))
    if local < 1 or len(ranks) % local:
        whose = "world" if len(ranks) == dist.get_world_size() else "group"
        raise BinsgdmError(f"{name}: {text!r}: must divide the {whose} size {len(ranks)}; give the ranks of one node")
    return local
