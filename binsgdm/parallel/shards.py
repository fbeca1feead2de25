"""Parameters that FSDP2 shards inside a node, and the ranks of other nodes that hold the same shard."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from binsgdm.comm import groups as grouping
from binsgdm.comm.groups import Groups
from binsgdm.comm.transport import Sent
from binsgdm.errors import BinsgdmError, shown


def groups_of(where: str, mesh: DeviceMesh) -> Groups:
    """Return the groups of a mesh.

    Raises:
        BinsgdmError: it is none, or has not two dimensions.
    """
    if not isinstance(mesh, DeviceMesh):
        raise BinsgdmError(
            f"{where}: mesh={shown(mesh)}: must be a DeviceMesh; give init_device_mesh(device, (nodes, ranks of a "
            "node))"
        )
    return grouping.from_mesh(mesh)


def of_same_shard(groups: Groups) -> Groups:
    """Return the groups of a flat exchange among the ranks that hold the same shard; all ranks step together."""
    between, local_ranks = groups.inter_node, groups.ranks_per_node
    return replace(
        groups,
        world=between,
        intra_node=between,
        rank=groups.rank // local_ranks,
        world_size=groups.world_size // local_ranks,
        ranks_per_node=1,
        ranks=groups.ranks[groups.rank % local_ranks :: local_ranks],
        # A step counts on all ranks or on none, also on those that hold other shards.
        finite_check=groups.world,
    )


def as_inter_node(on_sent: Callable[[Sent], None] | None) -> Callable[[Sent], None] | None:
    """Name the group by what it is for the cluster."""
    return on_sent and (lambda sent: on_sent(sent._replace(group="inter_node")))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, which shares its memory."""
    assert isinstance(tensor, DTensor)  # check_placements has refused anything else
    with torch.no_grad():
        own: torch.Tensor = tensor.to_local()
    return own


def check_placements(where: str, parameters: Sequence[torch.Tensor], groups: Groups) -> None:
    """Refuse parameters that are not sharded over the ranks of this node and nothing else.

    Raises:
        BinsgdmError: one is not.
    """
    first = groups.rank - groups.rank % groups.ranks_per_node
    node = list(groups.ranks[first : first + groups.ranks_per_node])
    for number, parameter in enumerate(parameters):
        if _ranks_of_shards(parameter) != node:
            raise BinsgdmError(
                f"{where}: parameter {number} has {_placed(parameter)}: must be sharded over ranks "
                f"{node}, the ranks of the node, and only there; give fully_shard the second dimension of the mesh, "
                "and make the optimizer after it"
            )


def copy_first_node(parameters: Sequence[torch.Tensor], groups: Groups) -> None:
    """Give every node the shards of the first."""
    for parameter in parameters:
        own = local(parameter)
        # A rank has an empty shard of a tensor with fewer rows than ranks, and so have the other ranks of its group.
        if own.numel():
            dist.broadcast(own, group=groups.inter_node, group_src=0)


def _ranks_of_shards(parameter: torch.Tensor) -> list[int]:
    """Return the ranks that hold the shards of a parameter; none if it is not sharded, or replicated as well."""
    if not isinstance(parameter, DTensor) or not all(isinstance(placed, Shard) for placed in parameter.placements):
        return []
    ranks: list[int] = parameter.device_mesh.mesh.tolist()
    return ranks


def _placed(parameter: torch.Tensor) -> str:
    if not isinstance(parameter, DTensor):
        return "no placements"
    return f"placements {parameter.placements} on ranks {parameter.device_mesh.mesh.tolist()}"
