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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from binsgdm.comm import Member, Protocol, RankContext
from binsgdm.comm.arguments import check_arguments
from binsgdm.comm.groups import Groups
from binsgdm.comm.replicas import check_same_settings
from binsgdm.comm.transport import Sent, Transport
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import Kernels
from binsgdm.kernels.random import Key, RandomStream
from binsgdm.optimizers.agreement import bucket_elements, check_optimizer, settings_to_compare
from binsgdm.optimizers.base import Flag, ParamState
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.residuals import NAMES
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from binsgdm.parallel import shards
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
    refused, groups, elements, settings, device = None, None, 0, {}, None
    try:
        groups = shards.groups_of(_WHERE, mesh, timeout)
        check_optimizer("attach_fsdp", optimizer, BinSGDM)
        check_arguments("attach_fsdp", timeout=timeout, on_sent=on_sent)
        elements = bucket_elements("attach_fsdp", bucket_cap_mb)
        device = optimizer.param_groups[0]["params"][0].device
        shards.check_placements(_WHERE, _parameters(optimizer), groups)
        settings = {"bucket_cap_mb": bucket_cap_mb, **settings_to_compare(optimizer)}
    except BinsgdmError as error:  # which all ranks are to raise, so that none waits
        refused = error
    check_same_settings("attach_fsdp", settings, refused, None if groups is None else groups.world, device)
    if groups is None:
        raise AssertionError("check_same_settings raises what this rank refused")
    shards.copy_first_node(_parameters(optimizer), groups)
    # To its flat exchange each node is one rank: FSDP2 has averaged the gradients inside the node already.
    transport = Transport(shards.of_same_shard(groups), shards.as_inter_node(on_sent), "BinSGDM")
    join_together("attach_fsdp", optimizer, ShardedSession(groups, elements, transport), "", groups)
    take_over(optimizer, transport, [])
    shards.let_step_alone(_WHERE, optimizer, groups, _takes_part)


def _takes_part(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, BinSGDM) and is_attached(optimizer)  # or one in its place after a checkpoint


@dataclass(frozen=True, kw_only=True)
class ShardContext(RankContext):
    """A rank among the ranks that hold the same shard, one a node; draws are keyed by its rank among all ranks."""

    global_rank: int

    def key(self, stream: RandomStream) -> Key:
        """Return the key of this rank's draws, which no other shard shares."""
        return replace(super().key(stream), rank=self.global_rank)


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
        self._global_rank, self._ranks_per_node = groups.rank, groups.ranks_per_node
        self._all_that_step = shards.among_all(groups, transport)

    @property
    def layout(self) -> str:
        """In words, which elements this rank rounds where; what rounding lost belongs to it."""
        return f"shard of rank {self._global_rank}, {self._ranks_per_node} a node, {super().layout}"

    def reset(self, param_states: Sequence[ParamState], context: RankContext, kernels: Kernels) -> None:
        """Begin, or start over with other state."""
        self._parameters = [param_state.parameter for param_state in param_states]
        shard_context = ShardContext(**vars(context), global_rank=self._global_rank)
        super().reset([_local_state(param_state) for param_state in param_states], shard_context, kernels)
        for param_state, local in zip(param_states, self.param_states, strict=True):
            for name in NAMES.values():
                param_state.state.pop(name, None)
            param_state.state.update({name: local.state[name] for name in NAMES.values() if name in local.state})

    @property
    def all_that_step(self) -> Member:
        """This rank among all, also those with other shards."""
        return self._all_that_step

    def step_protocol(self, step: int, *, skip: Flag, refused: BinsgdmError | None = None) -> Protocol:
        """Exchange every bucket of the shard, agree with all ranks whether the step counts, and apply."""
        for parameter, param_state in zip(self._parameters, self.param_states, strict=True):
            # FSDP2 reallocates and moves its tensors between steps (resharding, CPU offload): views must be taken anew.
            _point_to_shard(param_state.parameter, parameter)
        has_moved = yield from super().step_protocol(step, skip=skip, refused=refused)
        for param_state in self.param_states:
            param_state.parameter.grad = None  # or zero_grad could not free it
        return has_moved

    def _compared_parameters(self) -> Sequence[torch.Tensor]:
        return ()  # FSDP2 gives its shards other memory between steps


def _local_state(param_state: ParamState) -> ParamState:
    # Averages are sharded as their parameter; residuals are this rank's own, plain tensors.
    state = {name: shards.local(v) if isinstance(v, DTensor) else v for name, v in param_state.state.items()}
    return ParamState(parameter=shards.local(param_state.parameter).detach(), group=param_state.group, state=state)


def _parameters(optimizer: BinSGDM) -> list[torch.Tensor]:
    return [param_state.parameter for param_state in optimizer.param_states()]


def _point_to_shard(local: torch.Tensor, parameter: torch.Tensor) -> None:
    """Give a plain tensor the values and the gradient of a parameter's shard; FSDP may have moved either."""
    local.data = shards.local(parameter)
    local.requires_grad_(parameter.requires_grad)
    local.grad = None if parameter.grad is None else shards.local(parameter.grad)
