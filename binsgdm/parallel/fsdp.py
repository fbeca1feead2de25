"""Join an optimizer of sharded parameters (FSDP2) to the other nodes.

FSDP2 shards over the ranks of a node and averages gradients there (its reduce-scatter); between nodes, each
rank exchanges the signs of its own shard with the ranks that hold the same shard. So parameters, gradients and
averages are all sharded, and what leaves a node is the one bit an element of the hierarchical 1-bit all-reduce.

mesh = init_device_mesh("cuda", (nodes, ranks_per_node), mesh_dim_names=("node", "local"))
for layer in model.layers:
    fully_shard(layer, mesh=mesh["local"])
fully_shard(model, mesh=mesh["local"])
optimizer = binsgdm.BinSGDM(model.parameters(), lr=7e-4)
attach_fsdp(optimizer, mesh)
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

from binsgdm.comm import Member, Protocol, RankContext
from binsgdm.comm.arguments import check_arguments
from binsgdm.comm.consistency import agreed
from binsgdm.comm.groups import Groups, from_mesh
from binsgdm.comm.transport import Sent, Transport
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import Kernels
from binsgdm.kernels.keys import Key, RandomStream
from binsgdm.optimizers.agreement import bucket_elements, check_optimizer, settings_to_compare
from binsgdm.optimizers.base import Flag, ParamState
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.residuals import NAMES
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from binsgdm.parallel.ddp import is_attached, join_together, take_over

_WHERE = "attach_fsdp"


def attach_fsdp(
    optimizer: BinSGDM,
    mesh: DeviceMesh,
    *,
    bucket_cap_mb: float = 25.0,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
) -> None:
    """Let the optimizer agree with the other nodes on the signs of its shards; every rank must call it.

    The parameters of the first node are broadcast to the others, which FSDP2 does not do. The averages m and b are
    sharded as their parameters are. Works with MixedPrecisionPolicy, set_requires_gradient_sync and clip_grad_norm_,
    which clips by the norm of the node.

    Args:
        optimizer: made after fully_shard, with all its parameters.
        mesh: two dimensions, (nodes, ranks of a node), of all ranks or a part of them, which alone call; fully_shard
            was given its second dimension.
        bucket_cap_mb: elements of a shard that travel as one message, in MiB of fp32.
        timeout: of the collectives between nodes; a rank that is gone is noticed after it.
        on_sent: called with every collective between nodes that this rank takes part in.

    Raises:
        BinsgdmError: a mesh of another form, a parameter that is not sharded over its second dimension and nothing
            else, or, on all ranks alike, ranks that differ in seed, step or parameters.
    """
    with agreed(_WHERE) as call:
        groups = groups_of(_WHERE, mesh, timeout)
        call.group = groups.world
        check_optimizer(_WHERE, optimizer, BinSGDM)
        check_arguments(_WHERE, timeout=timeout, on_sent=on_sent)
        elements = bucket_elements(_WHERE, bucket_cap_mb)
        parameters = [param_state.parameter for param_state in optimizer.param_states()]
        call.device = parameters[0].device
        check_placements(_WHERE, parameters, groups)
        call.settings = {"bucket_cap_mb": bucket_cap_mb, **settings_to_compare(optimizer)}
    copy_first_node(parameters, groups)
    transport = transport_between_nodes(groups, on_sent, "BinSGDM")
    join_together(_WHERE, optimizer, ShardedSession(groups, elements, transport), "", groups)
    take_over(optimizer, transport, [])
    # Or one in its place after a checkpoint.
    let_step_alone(_WHERE, optimizer, groups, lambda other: isinstance(other, BinSGDM) and is_attached(other))


# Copies of a model that is sharded inside a node, whatever they exchange


def groups_of(where: str, mesh: DeviceMesh, timeout: timedelta | None = None) -> Groups:
    """Make groups as those of a mesh, with a timeout of their own."""
    if not isinstance(mesh, DeviceMesh):
        raise BinsgdmError(
            f"{where}: mesh={shown(mesh)}: must be a DeviceMesh; give init_device_mesh(device, (nodes, ranks of a "
            "node))"
        )
    # What is no time is refused when all ranks have come here, who make the groups together.
    is_time = isinstance(timeout, timedelta) and timeout > timedelta(0)
    return from_mesh(mesh, timeout=timeout if is_time else None)


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


def transport_between_nodes(groups: Groups, on_sent: Callable[[Sent], None] | None, where: str) -> Transport:
    """Return what carries messages among the ranks that hold the same shard, whose group is named for the cluster.

    To such a flat exchange each node is one rank: FSDP2 has averaged the gradients inside the node already.
    """
    note_sent = on_sent and (lambda sent: on_sent(sent._replace(group="inter_node")))
    return Transport(of_same_shard(groups), note_sent, where)


@dataclass(frozen=True, kw_only=True)
class ShardContext(RankContext):
    """A rank among those that hold the same shard, one a node; no two shards share draws.

    Attributes:
        shard: which shard it holds.
        num_shards: of a copy of the model.
    """

    shard: int
    num_shards: int

    def key_of(self, rank: int, stream: RandomStream) -> Key:
        """Return the key of another rank's draws: by its position among all ranks."""
        return super().key_of(rank * self.num_shards + self.shard, stream)


def shard_context(context: RankContext, groups: Groups) -> ShardContext:
    """Return the context of this rank in an exchange among those that hold its shard."""
    num_shards = groups.ranks_per_node
    return ShardContext(**vars(context), shard=groups.rank % num_shards, num_shards=num_shards)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a DTensor, which shares its memory."""
    assert isinstance(tensor, DTensor)  # check_placements has refused anything else
    with torch.no_grad():
        shard: torch.Tensor = tensor.to_local()
    return shard


def check_placements(where: str, parameters: Sequence[torch.Tensor], groups: Groups) -> None:
    """Refuse parameters that are not sharded over the ranks of this node and nothing else."""
    node = _node(groups)
    for number, parameter in enumerate(parameters):
        if _ranks_of_shards(parameter) != node:
            placed = "no placements"
            if isinstance(parameter, DTensor):
                placed = f"placements {parameter.placements} on ranks {parameter.device_mesh.mesh.tolist()}"
            raise BinsgdmError(
                f"{where}: parameter {number} has {placed}: must be sharded over ranks "
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
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    exchanged, node = set(map(id, parameters)), _node(groups)

    def check(other: torch.optim.Optimizer, *_: object) -> None:
        exchanging = known()
        if takes_part(other) or (exchanging is not None and not takes_part(exchanging)):
            return
        stepped = [parameter for group in other.param_groups for parameter in group["params"]]
        if any(id(parameter) in exchanged for parameter in stepped) or (
            exchanging is not None and any(_ranks_of_shards(parameter) == node for parameter in stepped)
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
        shard = local(parameter)
        # A rank has an empty shard of a tensor with fewer rows than ranks, and so have the other ranks of its group.
        if shard.numel():
            dist.broadcast(shard, group=groups.inter_node, group_src=0)


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


class ShardedSession(Session):
    """All nodes, each rank with its shard; those that hold the same shard exchange its signs.

    Args:
        groups: of this rank.
        bucket_elements: of a shard, of one message.
        transport: among the ranks that hold the same shard.
    """

    compared_in = "inter_node"

    def __init__(self, groups: Groups, bucket_elements: int, transport: Transport) -> None:
        super().__init__(transport.member(), Scheme(topology="flat"), bucket_elements)
        self._whole = groups
        self._all_that_step = transport.member(groups)

    @property
    def layout(self) -> str:
        """In words, which elements this rank rounds where; what rounding lost belongs to it."""
        return f"shard of rank {self._whole.rank}, {self._whole.ranks_per_node} a node, {super().layout}"

    def reset(self, param_states: Sequence[ParamState], context: RankContext, kernels: Kernels) -> None:
        """Begin, or start over with other state."""
        self._parameters = [param_state.parameter for param_state in param_states]
        local_states = [_local_state(param_state) for param_state in param_states]
        super().reset(local_states, shard_context(context, self._whole), kernels)
        for param_state, local_state in zip(param_states, self.param_states, strict=True):
            for name in NAMES.values():
                param_state.state.pop(name, None)
            param_state.state.update(
                {name: local_state.state[name] for name in NAMES.values() if name in local_state.state}
            )

    @property
    def all_that_step(self) -> Member:
        """This rank among all, also those with other shards."""
        return self._all_that_step

    def step_protocol(self, step: int, *, skip: Flag, refused: BinsgdmError | None = None) -> Protocol:
        """Exchange every bucket of the shard, agree with all ranks whether the step counts, and apply."""
        for parameter, param_state in zip(self._parameters, self.param_states, strict=True):
            # FSDP2 reallocates and moves its tensors between steps (resharding, CPU offload): views must be taken anew.
            shard = param_state.parameter
            shard.data = local(parameter)
            shard.requires_grad_(parameter.requires_grad)
            shard.grad = None if parameter.grad is None else local(parameter.grad)
        has_moved = yield from super().step_protocol(step, skip=skip, refused=refused)
        for param_state in self.param_states:
            param_state.parameter.grad = None  # or zero_grad could not free it
        return has_moved

    def _compared_parameters(self) -> Sequence[torch.Tensor]:
        return ()  # FSDP2 gives its shards other memory between steps


def _local_state(param_state: ParamState) -> ParamState:
    # Averages are sharded as their parameter; residuals are this rank's own, plain tensors.
    state = {name: local(v) if isinstance(v, DTensor) else v for name, v in param_state.state.items()}
    return ParamState(parameter=local(param_state.parameter).detach(), group=param_state.group, state=state)
