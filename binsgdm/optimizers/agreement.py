"""What all ranks must have alike: arguments, settings and model when an optimizer joins them, settings in each step."""

import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm import Member, Protocol, consistency
from binsgdm.comm.arguments import LOCAL, check_hook
from binsgdm.comm.consistency import check_same_tensors
from binsgdm.errors import BinsgdmError, shown
from binsgdm.optimizers.base import OneBitOptimizer

MIB = 2**20
BYTES_PER_ELEMENT = 4
_OF_NO_GROUP = ("params", "seed", "step", "saved_by", "residual_layout")  # compared once, or each rank's own


def check_optimizer(where: str, optimizer: object, kind: type[Any]) -> None:
    """Refuse what is no optimizer of this kind."""
    if not isinstance(optimizer, kind):
        wanted = "BinSGDM or OneBitAdam" if kind is OneBitOptimizer else kind.__name__
        raise BinsgdmError(
            f"{where}: optimizer: a {type(optimizer).__name__}: must be a {wanted}; attach takes a BinSGDM, "
            "attach_one_bit_adam a OneBitAdam, and for others DDP averages gradients"
        )


def bucket_elements(where: str, bucket_cap_mb: float) -> int:
    """Return the elements of a message of `bucket_cap_mb` MiB of fp32."""
    is_number = isinstance(bucket_cap_mb, numbers.Real) and not isinstance(bucket_cap_mb, bool)
    if not is_number or not 0 < bucket_cap_mb < math.inf:
        raise BinsgdmError(
            f"{where}: bucket_cap_mb={shown(bucket_cap_mb)}: must be above 0, and finite; PyTorch's default is 25"
        )
    return max(1, int(bucket_cap_mb * MIB / BYTES_PER_ELEMENT))


def check_alone(where: str) -> None:
    """Refuse to go on alone where there are other ranks."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BinsgdmError(
            f"{where}: WORLD_SIZE is above 1, but there is no process group: call init_process_group first"
        )


def check_model(
    where: str, model: object, replicated: Sequence[DistributedDataParallel], optimizer: OneBitOptimizer
) -> None:
    """Refuse a model, of these DDP modules, whose gradients DDP would go on averaging beside the optimizer."""
    if model is None:  # gradients are local anyway
        return
    _check_modules(where, model)
    if not replicated:
        if dist.get_world_size() == 1:  # a script that wraps only where there are other ranks
            return
        raise BinsgdmError(
            f"{where}: model: a {type(model).__name__}: must be the DistributedDataParallel model, not its .module, "
            "whose gradients DDP would go on averaging; leave it out if gradients are local anyway"
        )
    for module in replicated:
        check_hook(where, module, LOCAL)
    its_own = {id(parameter) for module in replicated for parameter in module.parameters()}
    for number, param_state in enumerate(optimizer.param_states()):
        if id(param_state.parameter) not in its_own:
            raise BinsgdmError(
                f"{where}: model: it does not have parameter {number} of the optimizer: must have all of them; give "
                "the model that the optimizer was made for (of several, torch.nn.ModuleList([one, other]))"
            )


def _check_modules(where: str, model: object) -> None:
    """Refuse what is no model, FSDP1, and layers whose gradients cannot be exchanged."""
    if not isinstance(model, torch.nn.Module):
        raise BinsgdmError(
            f"{where}: model: a {type(model).__name__}: must be a DistributedDataParallel model, or None; give the "
            "model"
        )
    for path, module in model.named_modules():
        # An embedding's: its gradients would be sparse, which only backward would tell.
        if getattr(module, "sparse", False) is True:
            raise BinsgdmError(f"{where}: {path}: sparse gradients: must be dense; build it with sparse=False")
        if type(module).__name__ == "FullyShardedDataParallel":
            raise BinsgdmError(
                f"{where}: FullyShardedDataParallel (FSDP1) is not supported: use fully_shard and attach_fsdp"
            )


def check_whole(where: str, optimizer: OneBitOptimizer) -> None:
    """Refuse parameters of which each rank holds a shard."""
    if any(hasattr(param_state.parameter, "to_local") for param_state in optimizer.param_states()):
        raise BinsgdmError(
            f"{where}: sharded parameters (DTensor): must be whole on every rank, as in DDP; call binsgdm.attach_fsdp"
        )


def check_same_parameters(where: str, optimizer: OneBitOptimizer, group: dist.ProcessGroup | None = None) -> None:
    """Compare the parameters of all ranks; raise on each of them if any differs."""
    named = [
        (f"parameter {number}", param_state.parameter) for number, param_state in enumerate(optimizer.param_states())
    ]
    check_same_tensors(where, named, "wrap the model in DistributedDataParallel, or broadcast them first", group)


def settings_to_compare(optimizer: OneBitOptimizer) -> dict[str, Any]:
    """Return by name what must be the same on all ranks: settings, step, and what the parameters are."""
    first = optimizer.param_groups[0]
    compared: dict[str, Any] = {name: first[name] for name in ("seed", "step") if name in first}
    for number, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name not in _OF_NO_GROUP}
        # lr may be a tensor.
        compared |= {
            f"{name} of group {number}": float(value) if isinstance(value, int | float | torch.Tensor) else value
            for name, value in settings.items()
        }
    parameters = list(enumerate(param_state.parameter for param_state in optimizer.param_states()))
    compared |= {f"shape of parameter {number}": tuple(parameter.shape) for number, parameter in parameters}
    for number, parameter in parameters:
        compared[f"dtype of parameter {number}"] = str(parameter.dtype)
        compared[f"requires_grad of parameter {number}"] = parameter.requires_grad
    return compared


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One rank's terms of one step.

    Attributes:
        names: of the settings of each group that must be alike on all ranks.
        facts: what else must be, by name.
        refused: why this rank cannot take the step.
    """

    where: str
    groups: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    facts: Mapping[str, Any] = field(default_factory=dict)
    refused: BinsgdmError | None = None

    def pair(self) -> bytes:
        """Return the checksum of all that the host knows, and its complement."""
        # What lies on a GPU is mixed into the pair there, unread by the host.
        values = [
            0.0 if is_on_gpu(value) else plain(value) for group in self.groups for value in map(group.get, self.names)
        ]
        return consistency.pair((values, *self.facts.items()))

    def settings_on_gpu(self) -> list[torch.Tensor]:
        """Return the settings that the host would have to wait for."""
        return [group[name] for group in self.groups for name in self.names if is_on_gpu(group.get(name))]

    def refusal_of_gpu(self) -> BinsgdmError | None:
        """Return what is wrong with the settings that the host has to wait for."""
        for group in self.groups:
            for name in self.names:
                value = group.get(name)
                if is_on_gpu(value) and not (math.isfinite(float(value)) and value >= 0):
                    return BinsgdmError(f"{self.where}: {name}: {value!r}: must be 0 or more, and finite")
        return None

    def refuse_together(self, member: Member, device: torch.device) -> Protocol:
        """Raise on all ranks alike why they cannot take the step, as a protocol."""
        settings = {
            f"{name} of group {number}": plain(group.get(name))
            for number, group in enumerate(self.groups)
            for name in self.names
        }
        return consistency.refuse_together(
            self.where, member, {**settings, **self.facts}, refused=self.refused, device=device
        )


def is_on_gpu(value: object) -> TypeGuard[torch.Tensor]:
    """Tell whether a setting is a tensor that the host would have to wait for."""
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def plain(value: Any) -> Any:
    """Return a setting as a number where it is one, so that equal ones are alike, else as a text."""
    if isinstance(value, str) or value is None:
        return value
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return repr(value)  # put there by mistake: ranks compare how it looks
