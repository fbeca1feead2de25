"""Join an optimizer to the other ranks: three lines in a training script."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import groups as grouping
from binsgdm.exchange.replicas import check_same_settings, check_same_tensors
from binsgdm.exchange.transport import Sent, Transport
from binsgdm.optimizers.base import OneBitOptimizer, ParamState, check_gradients
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.scheme import Average, IntraNode, Scheme, Topology
from binsgdm.optimizers.session import BYTES_PER_ELEMENT, MIB, Session
from binsgdm.overlapped import OverlappedSession

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


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
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
    **former: Any,
) -> None:
    """Let the optimizer agree with all ranks on the signs that it applies; every rank must call it.

    A DistributedDataParallel model keeps its broadcast at the start and its buffers, but from now on averages only the
    gradients of parameters that are no BinSGDM's. Without a process group the optimizer goes on alone.

    Args:
        optimizer: has all its parameters already.
        model: the DDP model, compiled or not (not its `.module`, whose gradients DDP would go on averaging); may be
            left out if gradients are local anyway and parameters equal on all ranks.
        topology: average inside nodes first, or treat all ranks alike.
        intra_node_dtype: what the ranks of a node send each other (hierarchical only).
        average: what is averaged inside a node (hierarchical only). "updates": each rank's m / b, as in the paper's
            reading here. "gradients": the ranks' gradients, of which the node then has one pair of averages, each rank
            its slice: m / b of a larger batch is steadier (docs/evidence/training.md); a rank updates only its slice.
            Such averages can be loaded only with as many ranks and the same bucket_cap_mb.
        overlap: exchange during backward instead of inside `step()`. Needs gradients that are final after backward, so
            no clipping and no GradScaler: `step()` refuses both. With gradient accumulation use `model.no_sync()`.
        bucket_cap_mb: parameters of one message, in MiB of fp32, as DDP's.
        ranks_per_node: default LOCAL_WORLD_SIZE from torchrun.
        mesh: two-dimensional device mesh (nodes, ranks of a node) instead.
        timeout: of the collectives (not with mesh, whose groups exist); a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in.
        former: arguments of former versions, which are refused.

    Raises:
        TypeError: an unknown argument.
        BinsgdmError: see the message; on all ranks alike where ranks differ in seed, step, parameters or settings.
    """
    refuse_former_arguments("attach", former)
    scheme = Scheme(topology=topology, intra_node_dtype=intra_node_dtype, average=average)
    elements = bucket_elements("attach", bucket_cap_mb)
    if not dist.is_available() or not dist.is_initialized():
        check_alone()
        return
    model = unwrapped(model)
    # A rank with an error compares its settings all the same, so that all ranks raise and none waits.
    refused = None
    try:
        check_gradients("BinSGDM", [param_state.parameter for param_state in optimizer.param_states()])
    except BinsgdmError as error:
        refused = error
    nodes = ranks_per_node or os.environ.get("LOCAL_WORLD_SIZE")
    how = {"topology": topology, "intra_node_dtype": intra_node_dtype, "average": average, "overlap": overlap}
    settings = {**how, "bucket_cap_mb": bucket_cap_mb, "ranks_per_node": nodes, **settings_to_compare(optimizer)}
    device = optimizer.param_groups[0]["params"][0].device
    check_same_settings("attach", settings, refused, device=device)
    check_same_parameters("attach", optimizer)
    groups = grouping.from_mesh(mesh) if mesh is not None else grouping.make(ranks_per_node, timeout, device)
    keep_gradients_local(model, optimizer.param_states())
    member = Transport(groups, on_sent).member()
    session = Session(member, scheme, elements)
    if overlap:
        session = OverlappedSession(
            member, scheme, elements, lambda: getattr(model, "require_backward_grad_sync", True)
        )
    # The averages of slices depend on this layout: a state of another one is refused on loading.
    slices = f"slices for {groups.ranks_per_node} ranks a node of {groups.world_size}, bucket_cap_mb={bucket_cap_mb:g}"
    join_together("attach", optimizer, session, slices if average == "gradients" else "")


def join_together(where: str, optimizer: BinSGDM, session: Session, slices: str = "") -> None:
    """Let the optimizer join a session on all ranks, or on none; every rank must call it.

    Raises:
        BinsgdmError: on all ranks, where the state of one does not fit.
    """
    refused = None
    try:
        optimizer.join(session, slices)
    except BinsgdmError as error:
        refused = error
    check_same_settings(where, {}, refused, device=optimizer.param_groups[0]["params"][0].device)


def attach_one_bit_adam(
    optimizer: OneBitAdam,
    model: torch.nn.Module | None = None,
    *,
    ranks_per_node: int | None = None,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
) -> None:
    """Let the optimizer exchange with all ranks; every rank must call it. Without a process group it goes on alone.

    Args:
        optimizer: has all its parameters already.
        model: the DistributedDataParallel model, which from now on leaves these parameters' gradients local; may be
            left out if they are local anyway and parameters equal on all ranks.
        ranks_per_node: default LOCAL_WORLD_SIZE from torchrun.
        timeout: of the collectives.
        on_sent: called with every collective that this rank takes part in.

    Raises:
        BinsgdmError: ranks that differ in parameters, settings or step, on all ranks alike; an unknown node size.
    """
    if not dist.is_available() or not dist.is_initialized():
        check_alone()
        return
    # An error is kept and compared with the other ranks' settings below, so that all ranks raise.
    refused = None
    try:
        ranks_per_node = grouping.node_size(ranks_per_node, dist.get_world_size())
        model = unwrapped(model)
    except BinsgdmError as error:
        refused = error
    device = optimizer.param_groups[0]["params"][0].device
    settings = {"ranks_per_node": ranks_per_node, **settings_to_compare(optimizer)}
    check_same_settings("attach_one_bit_adam", settings, refused, device=device)
    check_same_parameters("attach_one_bit_adam", optimizer)
    groups = grouping.make(ranks_per_node, timeout, device)
    keep_gradients_local(model, optimizer.param_states())
    optimizer.join(Transport(groups, on_sent).member())


FORMER_ARGUMENTS = {"intra": "intra_node_dtype"}


def refuse_former_arguments(where: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments that a function does not take, with the present name of those that it took once.

    Raises:
        BinsgdmError: an argument of a former version.
        TypeError: any other argument, as Python raises it.
    """
    for name, value in given.items():
        if name not in FORMER_ARGUMENTS:
            raise TypeError(f"{where}() got an unexpected keyword argument {name!r}")
        present = FORMER_ARGUMENTS[name]
        raise BinsgdmError(f"{where}: {name}={value!r}: is now {present!r}; give {present}={value!r}")


def bucket_elements(where: str, bucket_cap_mb: float) -> int:
    """Return the elements of a message of `bucket_cap_mb` MiB of fp32.

    Raises:
        BinsgdmError: none.
    """
    if bucket_cap_mb <= 0:
        raise BinsgdmError(f"{where}: bucket_cap_mb={bucket_cap_mb!r}: must be above 0; PyTorch's default is 25")
    return max(1, int(bucket_cap_mb * MIB / BYTES_PER_ELEMENT))


def check_alone() -> None:
    """Refuse to go on alone where there are other ranks."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BinsgdmError(
            "attach: WORLD_SIZE is above 1, but there is no process group: call init_process_group first"
        )


def unwrapped(model: torch.nn.Module | None) -> torch.nn.Module | None:
    """Return what torch.compile has wrapped; refuse FSDP1, whose ranks hold different parameters."""
    # torch.compile hides the DDP module in this attribute.
    model = getattr(model, "_orig_mod", model)
    if model is not None and any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise BinsgdmError("attach: FullyShardedDataParallel (FSDP1) is not supported: use fully_shard and attach_fsdp")
    return model


def keep_gradients_local(model: torch.nn.Module | None, param_states: Sequence[ParamState]) -> None:
    """Register a communication hook that leaves an optimizer's gradients alone; DDP keeps the rest of its duties.

    The hook stays as long as the model. Gradients of no such optimizer are averaged, as without it.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    state = getattr(model, _HOOK_STATE, None)
    if state is None:
        state = _HookState(own=set(), group=model.process_group)
        setattr(model, _HOOK_STATE, state)
        # DDP still broadcasts parameters and buffers, and averages the gradients of other optimizers; only what it
        # would do with these gradients is replaced. One hook for all optimizers of a model, since DDP takes only one.
        model.register_comm_hook(state, _average_foreign)
    state.own.update(param_state.parameter for param_state in param_states)


_HOOK_STATE = "_binsgdm_hook_state"


@dataclass(frozen=True)
class _HookState:
    own: set[torch.Tensor]
    group: dist.ProcessGroup


def _average_foreign(
    state: _HookState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:
    """Hand the bucket back, with the gradients of other optimizers' parameters averaged over all ranks."""
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    foreign = [gradient for parameter, gradient in pairs if parameter not in state.own]
    if not foreign:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    # Divided before the sum, as DDP does, so that a sum of large gradients does not overflow.
    flat = torch.cat([gradient.reshape(-1) for gradient in foreign]) / state.group.size()
    done = dist.all_reduce(flat, group=state.group, async_op=True).get_future()

    # DDP expects the whole bucket back, so averages are copied into it once they have arrived.
    def copy_back(averaged: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        values = averaged.value()[0]
        for gradient, part in zip(foreign, torch.split(values, [g.numel() for g in foreign]), strict=True):
            gradient.copy_(part.view_as(gradient))
        buffer: torch.Tensor = bucket.buffer()
        return buffer

    averaged: torch.futures.Future[torch.Tensor] = done.then(copy_back)
    return averaged


def check_same_parameters(where: str, optimizer: OneBitOptimizer) -> None:
    """Compare the parameters of all ranks.

    Raises:
        BinsgdmError: on every rank, if any differs.
    """
    named = [
        (f"parameter {number}", param_state.parameter) for number, param_state in enumerate(optimizer.param_states())
    ]
    check_same_tensors(where, named, "wrap the model in DistributedDataParallel, or broadcast them first")


_OF_NO_GROUP = ("params", "seed", "step", "residual_layout")  # compared once, or each rank's own


def settings_to_compare(optimizer: OneBitOptimizer) -> dict[str, Any]:
    """Return by name what must be the same on all ranks: settings, step, and what the parameters are."""
    first = optimizer.param_groups[0]
    found: dict[str, Any] = {name: first[name] for name in ("seed", "step") if name in first}
    for number, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name not in _OF_NO_GROUP}
        found |= {f"{name} of group {number}": _plain(value) for name, value in settings.items()}
    for number, param_state in enumerate(optimizer.param_states()):
        found[f"shape of parameter {number}"] = tuple(param_state.parameter.shape)
    for number, param_state in enumerate(optimizer.param_states()):
        found[f"dtype of parameter {number}"] = str(param_state.parameter.dtype)
        found[f"requires_grad of parameter {number}"] = param_state.parameter.requires_grad
    return found


def _plain(value: Any) -> Any:
    """Return a setting as a number where it is one: lr may be a tensor."""
    return float(value) if isinstance(value, int | float | torch.Tensor) else value
