"""Parameters that FSDP2 shards inside a node, and the ranks of other nodes that hold the same shard."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

from binsgdm.comm import Member
from binsgdm.comm import groups as grouping
from binsgdm.comm.groups import Groups
from binsgdm.comm.transport import Sent, Transport
from binsgdm.errors import BinsgdmError, shown


def groups_of(where: str, mesh: DeviceMesh, timeout: timedelta | None = None) -> Groups:
    """Make groups as those of a mesh, with a timeout of their own."""
    if not isinstance(mesh, DeviceMesh):
        raise BinsgdmError(
            f"{where}: mesh={shown(mesh)}: must be a DeviceMesh; give init_device_mesh(device, (nodes, ranks of a "
            "node))"
        )
    # What is no time is refused when all ranks have come here, who make the groups together.
    is_time = isinstance(timeout, timedelta) and timeout > timedelta(0)
    return grouping.from_mesh(mesh, timeout=timeout if is_time else None)


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


def among_all(groups: Groups, transport: Transport) -> Member:
    """Return this rank among all that step together, also those with other shards."""
    return Member(
        rank=groups.rank,
        world_size=groups.world_size,
        ranks_per_node=groups.ranks_per_node,
        ranks=groups.ranks,
        stands_for_all=transport.stands_for_all,
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
    """Refuse parameters that are not sharded over the ranks of this node and nothing else."""
    node = _node(groups)
    for number, parameter in enumerate(parameters):
        if _ranks_of_shards(parameter) != node:
            raise BinsgdmError(
                f"{where}: parameter {number} has {_placed(parameter)}: must be sharded over ranks "
                f"{node}, the ranks of the node, and only there; give fully_shard the second dimension of the mesh, "
                "and make the optimizer after it"
            )


def let_step_alone(
    where: str,
    optimizer: torch.optim.Optimizer,
    groups: Groups,
    takes_part: Callable[[torch.optim.Optimizer], bool],
) -> None:
    """Let no optimizer that exchanges nothing step this one's parameters, or others of the same node's shards.

    FSDP2 averages gradients inside a node only, so nodes would go on apart.
    """
    known = weakref.ref(optimizer)
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    own, node = set(map(id, parameters)), _node(groups)

    def check(other: torch.optim.Optimizer, *_: object) -> None:
        exchanging = known()
        if takes_part(other) or (exchanging is not None and not takes_part(exchanging)):
            return
        stepped = [one for group in other.param_groups for one in group["params"]]
        if any(id(one) in own for one in stepped) or (
            exchanging is not None and any(_ranks_of_shards(one) == node for one in stepped)
        ):
            raise BinsgdmError(
                f"{where}: step() of a {type(other).__name__} on parameters that are exchanged, or are sharded in the "
                f"same nodes: it exchanges nothing, so nodes would end differently; call {where} on it, too, or shard "
                "the model anew, fully_shard(model, mesh=mesh) with both dimensions"
            )

    handle = register_optimizer_step_pre_hook(check)
    # Not with the optimizer, whose name a script may give to the next one.
    weakref.finalize(parameters[0], handle.remove)


def copy_first_node(parameters: Sequence[torch.Tensor], groups: Groups) -> None:
    """Give every node the shards of the first."""
    for parameter in parameters:
        own = local(parameter)
        # A rank has an empty shard of a tensor with fewer rows than ranks, and so have the other ranks of its group.
        if own.numel():
            dist.broadcast(own, group=groups.inter_node, group_src=0)


def _node(groups: Groups) -> list[int]:
    """Return the global ranks of this rank's node."""
    first = groups.rank - groups.rank % groups.ranks_per_node
    return list(groups.ranks[first : first + groups.ranks_per_node])


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
