"""Join 1-bit Adam to the other ranks of a training script."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from binsgdm import ddp, groups
from binsgdm.errors import BinsgdmError
from binsgdm.replicas import agree, compare
from binsgdm.systems.one_bit_adam import Member, OneBitAdam
from binsgdm.transport import Sent, Transport


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
        ddp.check_alone()
        return
    refused = None
    try:
        ranks_per_node = groups.node_size(ranks_per_node, dist.get_world_size())
        model = ddp.unwrapped(model)
    except BinsgdmError as error:
        refused = error
    agree("attach_one_bit_adam", _settings(optimizer) | {"ranks_per_node": ranks_per_node}, refused)
    named = [(f"parameter {number}", slot.parameter) for number, slot in enumerate(optimizer.slots())]
    compare("attach_one_bit_adam", named, "wrap the model in DistributedDataParallel, or broadcast them first")
    own = groups.make(ranks_per_node, timeout)
    ddp.keep_gradients_local(model, optimizer.slots())
    run = Transport(own, on_sent).run
    optimizer.join(Member(rank=own.rank, world_size=own.world_size, ranks_per_node=own.ranks_per_node, run=run))


def _settings(optimizer: OneBitAdam) -> dict[str, Any]:
    """Return by name what must be the same on all ranks."""
    groups_of = list(enumerate(optimizer.param_groups))
    found = {f"{key} of group {i}": str(v) for i, g in groups_of for key, v in g.items() if key != "params"}
    return found | {f"params of group {i}": _described(g["params"]) for i, g in groups_of}


def _described(parameters: Sequence[torch.Tensor]) -> str:
    return str([(tuple(parameter.shape), str(parameter.dtype), parameter.requires_grad) for parameter in parameters])
