"""Process groups as lists of ranks, and their shape: size and stride of groups that tile the world."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from simnet.core import files
from simnet.core.bounded_types import MAX_RANKS
from simnet.core.errors import SimnetError, did_you_mean, shown
from simnet.strategies.step_file import RecordedGroup

Ranks = tuple[int, ...]
_REPAIR = "a step has groups of one size, evenly spaced, that tile the world"


class WorldShape(Struct, frozen=True, kw_only=True):
    """How many nodes, and how many ranks in each."""

    num_nodes: int
    ranks_per_node: int

    @property
    def size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node


def world_shape(
    num_nodes: int | None, ranks_per_node: int | None, world_size: int | None, gpus: int | None, where: str
) -> WorldShape:
    """Return the shape of the world from what the user and the trace say.

    Args:
        num_nodes: as given, or None.
        ranks_per_node: as given, or None.
        world_size: ranks that the trace tells, or None.
        gpus: GPUs of a node that the trace tells, or None.
        where: how messages call the trace.

    Raises:
        SimnetError: they say too little, or contradict each other.
    """
    if world_size == 1:
        num_nodes, ranks_per_node = num_nodes or 1, ranks_per_node or 1
    if ranks_per_node is None and gpus and world_size and num_nodes is None:
        ranks_per_node = min(gpus, world_size)
    if world_size is not None:
        num_nodes = num_nodes or (world_size // ranks_per_node if ranks_per_node else None)
        ranks_per_node = ranks_per_node or (world_size // num_nodes if num_nodes else None)
    if not num_nodes or not ranks_per_node:
        tells = "a trace does not say" if world_size is None else f"the trace has {world_size} ranks and does not say"
        option = "--nodes N --ranks-per-node G" if world_size is None else "--ranks-per-node G"
        raise SimnetError(f"{where}: {tells} on how many nodes they are; add {option}")
    found = WorldShape(num_nodes=num_nodes, ranks_per_node=ranks_per_node)
    if world_size is not None and found.size != world_size:
        raise SimnetError(
            f"{where}: {num_nodes} nodes of {ranks_per_node} ranks: the trace has {world_size} ranks; "
            "give --nodes and --ranks-per-node whose product is that"
        )
    if found.size > MAX_RANKS:
        raise SimnetError(f"{where}: {num_nodes} nodes of {ranks_per_node} ranks: at most {MAX_RANKS} ranks")
    return found


def shape_of(ranks: Sequence[int], name: str, world: WorldShape, where: str) -> RecordedGroup:
    """Return the shape of a process group.

    Raises:
        SimnetError: the ranks are not evenly spaced, or groups of their shape do not tile the world.
    """
    ordered = sorted(ranks)
    stride = ordered[1] - ordered[0] if len(ordered) > 1 else 1
    is_even = ordered == list(range(ordered[0], ordered[0] + stride * len(ordered), stride)) if stride else False
    place = f"{where}: process group {name!r}: ranks {shown(list(ranks))}"
    if not is_even:
        raise SimnetError(f"{place}: not evenly spaced: {_REPAIR}")
    if ordered[-1] >= world.size:
        raise SimnetError(f"{place}: there are {world.size} ranks; give other --nodes and --ranks-per-node")
    block = stride * len(ordered)
    # Of a tiling, the first rank of each group stands in the first `stride` places of a block.
    if world.size % block or ordered[0] % block >= stride:
        raise SimnetError(f"{place}: do not tile {world.num_nodes} x {world.ranks_per_node} ranks: {_REPAIR}")
    return RecordedGroup(name=name, size=len(ordered), stride=stride)


def members(group: RecordedGroup, rank: int) -> Ranks:
    """Return the ranks of the group of a shape that a rank is in."""
    block = group.size * group.stride
    first = rank // block * block + rank % group.stride
    return tuple(range(first, first + block, group.stride))


def of_dimensions(involved: Sequence[bool], world: WorldShape, where: str) -> Ranks:
    """Return the ranks of rank 0's group along dimensions of the network: ranks of a node first, then nodes.

    Raises:
        SimnetError: the network has further dimensions, along some of which the group does not reach.
    """
    sizes = (world.ranks_per_node, world.num_nodes)
    if all(involved):
        return tuple(range(world.size))
    if len(involved) > len(sizes) or not any(involved):
        raise SimnetError(
            f"{where}: involved_dim: {shown(list(involved))}: must say for ranks in a node and for nodes, two values, "
            "which of both a collective spans; give pg_name to the nodes, and --comm-groups"
        )
    if involved[0]:
        return tuple(range(world.ranks_per_node))
    return tuple(range(0, world.size, world.ranks_per_node))


def read_comm_groups(path: Path) -> Mapping[str, Ranks]:
    """Read ASTRA-sim's file of communicator groups: the ranks of each, by its number.

    Raises:
        SimnetError: it cannot be read, or is none.
    """
    where = files.label(path)
    data = files.read_json(path, unique=False)
    if not isinstance(data, dict):
        raise SimnetError(
            f"{where}: {type(data).__name__}: must hold one object, from names of groups to lists of ranks"
        )
    for name, ranks in data.items():
        check_ranks(ranks, f"{where}: {name}")
    return {name: tuple(ranks) for name, ranks in data.items()}


def check_ranks(ranks: object, where: str) -> None:
    """Check that a value is a list of ranks, each once.

    Raises:
        SimnetError: it is none.
    """
    is_list = isinstance(ranks, list) and bool(ranks)
    if not is_list or not all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in ranks):  # type: ignore[attr-defined]
        raise SimnetError(f"{where}: {shown(ranks)}: must be a list of ranks, such as [0, 1]")
    if len(set(ranks)) < len(ranks):  # type: ignore[call-overload, arg-type]
        raise SimnetError(f"{where}: {shown(ranks)}: names a rank twice; drop one of both")


def find(groups: Mapping[str, Ranks], name: str, where: str) -> Ranks:
    """Return the ranks of a group by its name.

    Raises:
        SimnetError: it is not known.
    """
    if name not in groups:
        raise SimnetError(
            f"{where}: pg_name: {name!r}: its ranks are not in the trace; give them with --comm-groups FILE."
            f"{did_you_mean(name, groups)}"
        )
    return groups[name]
