"""Join an optimizer to the other ranks: three lines in a training script."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm import groups as grouping
from binsgdm.comm.arguments import check_arguments, check_group, group_of, replicated_in
from binsgdm.comm.consistency import agreed
from binsgdm.comm.groups import Groups
from binsgdm.comm.transport import Sent, Transport
from binsgdm.optimizers.agreement import (
    bucket_elements,
    check_alone,
    check_model,
    check_optimizer,
    check_same_parameters,
    check_whole,
    settings_to_compare,
)
from binsgdm.optimizers.base import OneBitOptimizer, check_gradients, frames_to_the_user
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Average, IntraNode, Scheme, Topology
from binsgdm.parallel.local_gradients import OwnParameters, average_again, keep_gradients_local
from binsgdm.parallel.overlapped import OverlappedSession

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")


def attach(  # noqa: PLR0913
    optimizer: BinSGDM,
    model: torch.nn.Module | None = None,
    *,
    topology: Topology = "hierarchical",
    intra_node_dtype: IntraNode = "fp32",
    average: Average = "updates",
    overlap: bool = False,
    bucket_cap_mb: float = 25.0,
    ranks_per_node: int | None = None,
    mesh: "DeviceMesh | None" = None,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
) -> None:
    """Let the optimizer agree with the other ranks on the signs that it applies; each of them must call it.

    A DistributedDataParallel model keeps its broadcast at the start and its buffers, but from now on averages only the
    gradients of parameters that are no BinSGDM's. Without a process group the optimizer goes on alone.

    Args:
        optimizer: has all its parameters already.
        model: the DDP model, compiled or not (not its `.module`, whose gradients DDP would go on averaging), or a
            module of several DDP models, which together have all parameters of the optimizer; may be left out if
            gradients are local anyway and parameters equal on all ranks.
        topology: average inside nodes first, or treat all ranks alike.
        intra_node_dtype: what the ranks of a node send each other (hierarchical only).
        average: what is averaged inside a node (hierarchical only). "updates": each rank's m / b, as in the paper's
            reading here. "gradients": the ranks' gradients, of which the node then has one pair of averages, each rank
            its slice: m / b of a larger batch is steadier (docs/evidence/binsgdm.md); a rank updates only its slice.
            Such averages can be loaded only with as many ranks and the same bucket_cap_mb.
        overlap: exchange during backward instead of inside `step()`. Needs gradients that are final after backward, so
            no clipping and no GradScaler: `step()` refuses both. With gradient accumulation use `model.no_sync()`.
        bucket_cap_mb: parameters of one message, in MiB of fp32, as DDP's.
        ranks_per_node: consecutive ranks of the group that are on a node; default LOCAL_WORLD_SIZE from torchrun, of a
            part of all ranks those with equal rank // LOCAL_WORLD_SIZE.
        mesh: two-dimensional device mesh (nodes, ranks of a node) instead, of all ranks or a part of them.
        group: the ranks that exchange, which alone call; default the `process_group` of the model, else those of the
            mesh, else all.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in.

    Raises:
        BinsgdmError: see the message; on all ranks alike where ranks differ in seed, step, parameters or settings.
    """
    how = {"topology": topology, "intra_node_dtype": intra_node_dtype, "average": average, "overlap": overlap}
    nodes = 1 if topology == "flat" and ranks_per_node is None else ranks_per_node  # which then makes no difference

    def check() -> tuple[Scheme, int]:
        check_optimizer("attach", optimizer, BinSGDM)
        check_arguments(
            "attach", overlap=overlap, ranks_per_node=ranks_per_node, mesh=mesh, timeout=timeout, on_sent=on_sent
        )
        scheme = Scheme(topology=topology, intra_node_dtype=intra_node_dtype, average=average)
        return scheme, bucket_elements("attach", bucket_cap_mb)

    settings = {**how, "bucket_cap_mb": bucket_cap_mb}
    joined = _agree("attach", optimizer, model, check, settings, group, nodes, timeout, mesh)
    if joined is None:
        return
    groups, models, (scheme, elements) = joined
    transport = Transport(groups, on_sent, "BinSGDM")
    member = transport.member()
    session = Session(member, scheme, elements)
    if overlap:
        session = OverlappedSession(
            member, scheme, elements, lambda: all(replica.require_backward_grad_sync for replica in models)
        )
    # The averages of slices depend on this layout: a state of another one is refused on loading.
    slices = f"slices for {groups.ranks_per_node} ranks a node of {groups.world_size}, bucket_cap_mb={bucket_cap_mb:g}"
    join_together("attach", optimizer, session, slices if average == "gradients" else "", groups)
    take_over(optimizer, transport, models)


def attach_one_bit_adam(  # noqa: PLR0913
    optimizer: OneBitAdam,
    model: torch.nn.Module | None = None,
    *,
    ranks_per_node: int | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
) -> None:
    """Let the optimizer exchange with the other ranks; each of them must call it. Alone it goes on without a group.

    Args:
        optimizer: has all its parameters already.
        model: the DistributedDataParallel model, which from now on leaves these parameters' gradients local, as in
            `attach`; may be left out if they are local anyway and parameters equal on all ranks.
        ranks_per_node: as in `attach`.
        group: the ranks that exchange, which alone call; default the `process_group` of the model, else all.
        timeout: of the collectives.
        on_sent: called with every collective that this rank takes part in.

    Raises:
        BinsgdmError: ranks that differ in parameters, settings or step, on all ranks alike; an unknown node size.
    """
    where = "attach_one_bit_adam"

    def check() -> None:
        check_optimizer(where, optimizer, OneBitAdam)
        check_arguments(where, ranks_per_node=ranks_per_node, timeout=timeout, on_sent=on_sent)

    joined = _agree(where, optimizer, model, check, {}, group, ranks_per_node, timeout)
    if joined is None:
        return
    groups, models, _ = joined
    transport = Transport(groups, on_sent, "OneBitAdam")
    optimizer.join(transport.member())
    take_over(optimizer, transport, models)


def detach(optimizer: BinSGDM | OneBitAdam) -> None:
    """Let the optimizer work alone again; each of the ranks that it exchanged with must call it.

    From the next backward on a DistributedDataParallel model averages its gradients again, as another optimizer needs
    them (FSDP2 goes on averaging them inside a node: shard the model anew). Process groups and connections of the
    exchange are freed. An optimizer that was not attached stays as it is.

    To go on with this one in DDP, attach it again: BinSGDM's averages are those of each rank's own gradients, so steps
    that ranks take alone lead apart.

    Args:
        optimizer: that `attach`, `attach_one_bit_adam` or `attach_fsdp` was called with.

    Raises:
        BinsgdmError: no such optimizer, or a rank that did not call it.
    """
    check_optimizer("detach", optimizer, OneBitOptimizer)
    if not is_attached(optimizer):
        return
    optimizer.leave()
    _let_go(optimizer, "detach")
    if optimizer.param_groups[0]["step"] and isinstance(optimizer, BinSGDM):
        _warn_in_first_step(optimizer)


_ATTACHED = "_binsgdm_attached"
"""Attribute of an optimizer that exchanges: its transport, its models, and what it has of them."""


def is_attached(optimizer: OneBitOptimizer) -> bool:
    """Tell whether an optimizer exchanges with other ranks, and was not detached since."""
    return hasattr(optimizer, _ATTACHED)


def take_over(optimizer: OneBitOptimizer, transport: Transport, models: list[DistributedDataParallel]) -> None:
    """Keep the optimizer's gradients local, and note what `detach` has to undo."""
    if is_attached(optimizer):  # anew, with other settings
        _let_go(optimizer, "attach")
    owner = OwnParameters(
        optimizer, [param_state.parameter for param_state in optimizer.param_states()], transport.abort
    )
    keep_gradients_local(models, owner)
    setattr(optimizer, _ATTACHED, (transport, models, owner))


def _let_go(optimizer: OneBitOptimizer, where: str) -> None:
    transport, models, owner = vars(optimizer).pop(_ATTACHED)
    average_again(models, owner)
    transport.close(where)


def _warn_in_first_step(optimizer: BinSGDM) -> None:
    """Warn once of steps that ranks take alone with averages that differ."""
    has_stepped = False

    def warn(*_: Any) -> None:
        nonlocal has_stepped
        is_first, has_stepped = not has_stepped, True  # a hook cannot remove itself: torch walks over all of them
        if is_first and not is_attached(optimizer):
            warnings.warn(
                "BinSGDM: a step after detach, on averages of this rank's own gradients: ranks of one model end "
                "differently; attach it again on all ranks, or make a new optimizer",
                stacklevel=frames_to_the_user(),
            )

    optimizer.register_step_pre_hook(warn)


def _agree(  # noqa: PLR0913, PLR0917
    name: str,
    optimizer: OneBitOptimizer,
    model: torch.nn.Module | None,
    check: Callable[[], T],
    settings: dict[str, Any],
    group: dist.ProcessGroup | None,
    ranks_per_node: int | None,
    timeout: timedelta | None,
    mesh: "DeviceMesh | None" = None,
) -> tuple[Groups, list[DistributedDataParallel], T] | None:
    """Check on all ranks what they were given, and make their groups; None without a process group.

    What `check` looks at is returned, too, with the DDP modules of the model; `settings` must be alike on all ranks
    beside those of the optimizer. A mesh takes the place of `ranks_per_node`.
    """
    if not dist.is_available() or not dist.is_initialized():
        check()
        check_alone(name)
        return None
    # Before anything is checked: a rank that refuses must know in which group to say so.
    models, groups = replicated_in(model), None
    with agreed(name) as call:
        call.group = group_of(models, group)
        checked = check()
        parameters = [param_state.parameter for param_state in optimizer.param_states()]
        call.device = parameters[0].device
        check_whole(name, optimizer)
        check_group(name, group, models)
        check_model(name, model, models, optimizer)
        check_gradients(type(optimizer).__name__, parameters)
        call.settings = dict(settings)
        if mesh is not None:
            grouping.check_mesh(mesh, call.group)
            if call.group is None and mesh.size() < dist.get_world_size():  # only now is there a group to compare in
                groups = grouping.from_mesh(mesh, timeout=timeout)
                call.group = groups.world
        else:
            call.settings["ranks_per_node"] = grouping.node_size(ranks_per_node, call.group)
        call.settings |= settings_to_compare(optimizer)
    check_same_parameters(name, optimizer, call.group)
    if groups is None and mesh is not None:
        groups = grouping.from_mesh(mesh, call.group, timeout)
    return groups or grouping.make(ranks_per_node, timeout, call.device, call.group), models, checked


def join_together(name: str, optimizer: BinSGDM, session: Session, slices: str, groups: Groups) -> None:
    """Let the optimizer join a session on all ranks, or on none, where the state of one does not fit."""
    with agreed(name) as call:
        call.group, call.device = groups.all_that_step, optimizer.param_groups[0]["params"][0].device
        optimizer.join(session, slices)
