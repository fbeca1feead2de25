"""What several public functions are given: arguments, and models of which some modules are DDP's."""

import numbers
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm.groups import is_world, ranks_of
from binsgdm.errors import BinsgdmError, shown

LOCAL, COMPRESSED = "_binsgdm_local_gradients", "_binsgdm_compresses"
"""Attributes of a DDP module whose communication hook `attach` has registered, or `compress_gradients`."""


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, numbers.Integral) and not isinstance(value, bool))


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "overlap": (lambda value: isinstance(value, bool), "must be True or False"),
    "ranks_per_node": (_is_count, "must be a whole number, or None"),
    "mesh": (lambda value: value is None or isinstance(value, DeviceMesh), "must be a DeviceMesh, or None"),
    "timeout": (
        lambda value: value is None or (isinstance(value, timedelta) and value > timedelta(0)),
        "must be a datetime.timedelta above 0, or None",
    ),
    "on_sent": (lambda value: value is None or callable(value), "must be a function of one argument, or None"),
}


def check_arguments(where: str, **arguments: Any) -> None:
    """Refuse arguments of another type."""
    for name, value in arguments.items():
        holds, rule = _RULES[name]
        if not holds(value):
            raise BinsgdmError(f"{where}: {name}={shown(value)}: {rule}")


def check_module(where: str, model: object) -> None:
    """Refuse what is no model."""
    if not isinstance(model, torch.nn.Module):
        raise BinsgdmError(f"{where}: model: a {type(model).__name__}: must be a torch.nn.Module; give the model")


def replicated_in(model: object) -> list[DistributedDataParallel]:
    """Return the DDP modules of a model, which may be one itself, compiled or not; none of what is no model."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def group_of(models: Sequence[DistributedDataParallel], group: object) -> dist.ProcessGroup | None:
    """Return the ranks among whom models are replicas: those of DDP, else those given; None for all ranks."""
    members = models[0].process_group if models else group
    return members if isinstance(members, dist.ProcessGroup) and not is_world(members) else None


def check_group(where: str, group: object, models: Sequence[DistributedDataParallel]) -> None:
    """Refuse an argument `group` that is no process group of this rank, or not of the ranks that DDP has."""
    if group is not None and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise BinsgdmError(
            f"{where}: group: this rank, {dist.get_rank()}, is not in it; call it on the ranks of the group alone"
        )
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise BinsgdmError(
            f"{where}: group: a {type(group).__name__}: must be a process group; give what "
            "torch.distributed.new_group(ranks) returned"
        )
    for model in models:
        wanted = group if group is not None else models[0].process_group
        if ranks_of(model.process_group) != ranks_of(wanted):
            whose = "group" if group is not None else "process_group of the first model"
            raise BinsgdmError(
                f"{where}: {whose} of ranks {ranks_of(wanted)}: must have the ranks of the model's process_group, "
                f"{ranks_of(model.process_group)}; give the same to DistributedDataParallel(process_group=...)"
            )


def check_hook(where: str, model: DistributedDataParallel, wanted: str) -> None:
    """Refuse a DDP module with a communication hook of another's than whose attribute is wanted: DDP takes only one."""
    takers = {LOCAL: "binsgdm.attach", COMPRESSED: "compress_gradients"}
    for attribute, taker in takers.items():
        if attribute != wanted and getattr(model, attribute, None) is not None:
            raise BinsgdmError(
                f"{where}: a model that {taker} was called on: must have one of both, as both take the place of DDP's "
                "averaging; wrap the module anew"
            )
    # Of its reducer, which is another in a copy of the model.
    name = model._get_ddp_logging_data().get("comm_hook", "")  # type: ignore[no-untyped-call]
    if getattr(model, wanted, None) is None and name:
        raise BinsgdmError(
            f"{where}: a model with the communication hook {name}: must have none, as DDP takes only one; wrap the "
            "module anew"
        )
