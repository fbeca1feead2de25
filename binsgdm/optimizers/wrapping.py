"""An optimizer of which each worker takes steps alone: what local SGD and DiLoCo share."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo  # as in binsgdm.optimizers.base

from binsgdm.comm import groups as grouping
from binsgdm.comm.arguments import check_arguments
from binsgdm.comm.replicas import check_same_settings, check_same_tensors
from binsgdm.comm.transport import Sent, Transport
from binsgdm.compressors.base import REPAIR, check_state, check_whole
from binsgdm.errors import BinsgdmError, printable, shown
from binsgdm.kernels import streams
from binsgdm.optimizers.agreement import check_alone

Closure = Callable[[], Any]
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
MAX_STEP = 2**53


class LocalStepsOptimizer(torch.optim.Optimizer):
    """An optimizer of torch whose steps are each worker's own, with an exchange after some of them.

    `param_groups` and `state` are those of the inner optimizer, so that schedulers of the learning rate work. A
    GradScaler leaves unscaling to it: a step that one worker skips counts as a step, since all workers exchange after
    the same number of them.

    Args:
        optimizer: the inner one, with parameters that are equal on all ranks.
        settings: what all ranks must be given alike.
        refused: why this rank cannot go on.
        group: the ranks that exchange; default all.
        ranks_per_worker: consecutive ranks of them that train as one worker.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in.

    Raises:
        BinsgdmError: no optimizer of torch, parameters that cannot be exchanged, or ranks that differ in anything; on
            all ranks.
    """

    # torch's GradScaler then hands over scale and found_inf, and calls step also where gradients are not finite.
    _step_supports_amp_scaling = True

    def __init__(  # noqa: PLR0913
        self,
        optimizer: torch.optim.Optimizer,
        settings: Mapping[str, Any],
        refused: BinsgdmError | None,
        *,
        group: dist.ProcessGroup | None,
        ranks_per_worker: int | None,
        timeout: timedelta | None,
        on_sent: Callable[[Sent], None] | None,
    ) -> None:
        self._where = type(self).__name__
        if not dist.is_initialized():
            check_alone(self._where)
            raise BinsgdmError(f"{self._where}: torch.distributed: not initialized: call init_process_group first")
        parameters: list[torch.Tensor] = []
        size = 1
        try:
            if refused is not None:
                raise refused
            check_arguments(self._where, timeout=timeout, on_sent=on_sent)
            parameters = _parameters_of(self._where, optimizer)
            size = 1 if ranks_per_worker == 1 else grouping.node_size(ranks_per_worker, group)
        except BinsgdmError as error:
            refused = error
        device = parameters[0].device if parameters else None
        compared = {**settings, "ranks_per_worker": size, "optimizer": type(optimizer).__name__}
        check_same_settings(self._where, compared, refused, group, device)
        named = [(f"parameter {number}", one) for number, one in enumerate(parameters)]
        check_same_tensors(self._where, named, "broadcast them first, or build the model from one seed", group)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.inner = optimizer
        self.parameters, self._settings = parameters, {name: shown(value) for name, value in settings.items()}
        self.num_steps = 0
        self._follow_inner()
        self._transport = Transport(grouping.make(size, timeout, device, group), on_sent, self._where)
        self._member = self._transport.member()

    def _follow_inner(self) -> None:
        self.param_groups, self.state, self.defaults = (
            self.inner.param_groups,
            self.inner.state,
            self.inner.defaults,
        )

    # A compiled step would count and exchange as in the step in which it was compiled.
    @_disable_dynamo
    def step(self, closure: Closure | None = None) -> Any:
        """Take a step of the inner optimizer, and exchange if it is time to; every rank must call it as often.

        Args:
            closure: as of the inner optimizer.

        Returns:
            What the inner optimizer returns; None for a step that a GradScaler skips.

        Raises:
            BinsgdmError: an exchange failed, or gives parameters that are not finite; on all ranks. Or a CUDA graph is
                captured.
        """
        if self.parameters:
            why = "the host counts steps to know when to exchange"
            streams.check_not_captured(self._where, self.parameters[0].device, why)
        loss = self._inner_step(closure)
        self.num_steps += 1
        with torch.no_grad():
            self._after_step()
        return loss

    def _inner_step(self, closure: Closure | None) -> Any:
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        has_infinity, factor = _as_numbers(found_inf, scale)
        if has_infinity:
            return None
        if factor is not None:
            gradients = [one.grad for one in self.parameters if one.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / factor)
        return self.inner.step() if closure is None else self.inner.step(closure)

    @abstractmethod
    def _after_step(self) -> None:
        """Exchange, if it is time to."""

    @abstractmethod
    def _outer_state(self) -> dict[str, Any]:
        """Return a copy of what is this wrapper's own."""

    @abstractmethod
    def _load_outer_state(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `_outer_state` returned."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do as the inner optimizer."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse parameters that come later.

        Raises:
            BinsgdmError: always, but while it is made.
        """
        if hasattr(self, "inner"):
            raise BinsgdmError(
                f"{self._where}: add_param_group: parameters are those of the start; make the optimizer with all of "
                "them, and wrap it anew"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state, also between two exchanges; each rank saves its own, beside its own model."""
        return {
            "inner": deepcopy(self.inner.state_dict()),
            "num_steps": self.num_steps,
            "settings": dict(self._settings),
            "outer": self._outer_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on this rank; every rank must, between the same steps.

        The model is loaded after the optimizer is wrapped, since workers differ between two exchanges.

        Raises:
            BinsgdmError: it is no such state, or of other settings; then nothing is taken.
        """
        where = f"{self._where}: load_state_dict"
        check_state(where, state_dict, ("inner", "num_steps", "settings", "outer"))
        check_whole(f"{where}: num_steps", state_dict["num_steps"], low=0, high=MAX_STEP)
        saved = state_dict["settings"]
        if not isinstance(saved, Mapping) or saved != self._settings:
            other = [name for name in self._settings if not isinstance(saved, Mapping) or _differs(name, saved, self)]
            raise BinsgdmError(
                f"{where}: a state of {printable(', '.join(other))} other than given: must be the same; wrap the "
                "optimizer as the run that was saved"
            )
        try:
            former = self.inner.state_dict()
            self.inner.load_state_dict(state_dict["inner"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BinsgdmError(f"{where}: the inner state does not fit the optimizer ({error}); {REPAIR}") from error
        try:
            self._load_outer_state(state_dict["outer"])
        except BinsgdmError:
            self.inner.load_state_dict(former)
            raise
        finally:
            self._follow_inner()
        self.num_steps = state_dict["num_steps"]

    def close(self) -> None:
        """End the exchange with the other ranks, each of which must call it; parameters stay as they are."""
        self._transport.close(f"{self._where}: close")


def _as_numbers(*given: torch.Tensor | None) -> list[float | None]:
    """Return tensors of one element as numbers, read together: on a GPU the host waits for each read."""
    there = [one.reshape(()).to(torch.float32) for one in given if one is not None]
    read = iter(torch.stack(there).tolist() if there else ())
    return [None if one is None else next(read) for one in given]


def _differs(name: str, saved: Mapping[str, Any], own: LocalStepsOptimizer) -> bool:
    return saved.get(name) != own._settings[name]


def _parameters_of(where: str, optimizer: object) -> list[torch.Tensor]:
    """Return the parameters of an optimizer.

    Raises:
        BinsgdmError: it is none, or has parameters that cannot be exchanged.
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, LocalStepsOptimizer):
        raise BinsgdmError(
            f"{where}: optimizer: a {type(optimizer).__name__}: must be an optimizer of torch that is not wrapped; "
            "give such as torch.optim.AdamW(model.parameters())"
        )
    found: list[torch.Tensor] = [one for group in optimizer.param_groups for one in group["params"]]
    for number, one in enumerate(found):
        if hasattr(one, "to_local"):
            raise BinsgdmError(
                f"{where}: parameter {number}: sharded (DTensor): must be whole on every rank; use DDP in each worker"
            )
    kinds = sorted({f"{one.dtype} on {one.device}" for one in found})
    if len(kinds) != 1 or found[0].dtype not in FORMATS:
        raise BinsgdmError(
            f"{where}: parameters of {', '.join(kinds)}: must be of one of float32, bfloat16 and float16, on one "
            "device; convert or move the model"
        )
    return found
