"""An optimizer of which each worker takes steps alone: what local SGD and DiLoCo share."""

import sys
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import timedelta
from operator import is_not
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo  # as in binsgdm.optimizers.base
from torch.amp.grad_scaler import OptState

from binsgdm.comm import Protocol, consistency
from binsgdm.comm import groups as grouping
from binsgdm.comm.arguments import check_arguments
from binsgdm.comm.consistency import Alike
from binsgdm.comm.messages import refusal
from binsgdm.comm.replicas import check_same_settings, check_same_tensors, checksum_of
from binsgdm.comm.transport import Sent, Transport
from binsgdm.compressors.base import REPAIR, check_state, check_whole
from binsgdm.errors import BinsgdmError, printable, shown
from binsgdm.kernels import streams
from binsgdm.optimizers.agreement import check_alone
from binsgdm.optimizers.base import frames_to_the_user

Closure = Callable[[], Any]
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
MAX_STEP = 2**53
CHECK_EVERY = 16
"""Exchanges from one comparison of parameters and outer state to the next, where no rank has loaded a state."""
_REPAIR = "load on all ranks what they saved in the same step, and give all the same number of steps"
_CHANGED = (
    "parameters have changed since the last step, and in no step of this optimizer: an exchange would take that for "
    "training; load the state of this optimizer with the model, or wrap it after the model is loaded, or change "
    "parameters in a step hook of the inner optimizer"
)
_WRAPPER = "_binsgdm_wrapper"


class LocalStepsOptimizer(torch.optim.Optimizer):
    """An optimizer of torch whose steps are each worker's own, with an exchange after some of them.

    `param_groups` and `state` are those of the inner optimizer, so that schedulers of the learning rate work. A
    GradScaler leaves unscaling to it: a step that one worker skips counts as a step, since all workers exchange after
    the same number of them.

    Before an exchange all ranks compare, in one message of a few bytes, which step they are at; at the first one, after
    a state was loaded, and at every 16th, outer state and parameters, too. A recording leaves these messages out.

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
        self._sum_at_start = int(checksum_of(self.parameters).item())
        self._versions: list[int] | None = self._versions_now()  # None where whatever they are was loaded
        self._is_new, self._is_stepping, self._num_exchanges = True, False, 0
        _refuse_own_steps(optimizer, self)

    def __reduce_ex__(self, protocol: object) -> Any:
        """Refuse to be copied or pickled: a copy would share the process groups.

        Raises:
            BinsgdmError: always.
        """
        raise BinsgdmError(
            f"{self._where}: cannot be copied: the other ranks know nothing of the copy; wrap a copy of the inner "
            "optimizer on all ranks, or save state_dict()"
        )

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

        Returns:
            What the inner optimizer returns; None for a step that a GradScaler skips.

        Raises:
            BinsgdmError: an exchange failed, or gives parameters that are not finite; on all ranks. Or a CUDA graph is
                captured.
        """
        why = "the host counts steps to know when to exchange"
        streams.check_not_captured(self._where, self.parameters[0].device, why)
        self._check_since_last_step()
        self._is_stepping = True
        try:
            loss = self._inner_step(closure)
        finally:
            self._is_stepping = False
        self.num_steps += 1
        with torch.no_grad():
            self._after_step()
        self._versions = self._versions_now()
        return loss

    def _check_since_last_step(self) -> None:
        """Refuse what was changed behind this wrapper, on this rank, and let the others know."""
        sentence = None
        given = [one for group in self.inner.param_groups for one in group["params"]]
        if len(given) != len(self.parameters) or any(map(is_not, given, self.parameters)):
            sentence = (
                "parameters of the inner optimizer have changed, and would never be exchanged; make the optimizer with "
                "all of them, and wrap it anew"
            )
        # What was written again at the start, such as by DDP when it wraps a model, may be what it was.
        elif self._versions not in (None, self._versions_now()) and (
            self.num_steps or int(checksum_of(self.parameters).item()) != self._sum_at_start
        ):
            sentence = _CHANGED
        if sentence is not None:
            error = BinsgdmError(f"{self._where}: {sentence}")
            self._transport.abort(str(error))
            raise error

    def _versions_now(self) -> list[int]:
        return [one._version for one in self.parameters]

    def _check_ranks(self, event: int) -> None:
        """Compare with all ranks what is about to be exchanged, before it is.

        Raises:
            BinsgdmError: on all ranks, where they differ.
        """
        if self._member.world_size == 1 or self._member.stands_for_all():
            return
        self._transport.run(self._comparison(event))
        self._is_new = False
        self._num_exchanges += 1

    def _comparison(self, event: int) -> Protocol:
        where, member, device = f"{self._where}: step {self.num_steps}", self._member, self.parameters[0].device
        is_due = self._is_new or self._num_exchanges % CHECK_EVERY == 0
        numbers = [
            Alike(name="step", value=self.num_steps),
            Alike(name="event of the step", value=event),
            Alike(name="", value=int(is_due), group=None),
        ]
        rows = yield from consistency.check_alike(where, numbers, member, device, _REPAIR)
        if not rows[:, -1].any():
            return rows
        mine = member.rank, int(checksum_of(self.parameters).item())
        own = [*(Alike(name="", value=one, group=None) for one in mine), *self._held_alike()]
        found = yield from consistency.check_alike(where, own, member, device, _REPAIR)
        ranks, sums = ({*column} for column in found[:, :2].T.tolist())
        is_of_others = len(ranks) == member.world_size > member.ranks_per_node
        if is_of_others and len(sums) == 1 and sums != {self._sum_at_start}:
            warnings.warn(
                f"{where}: all workers have the same parameters before an exchange: their gradients seem to be "
                "averaged in every step, which saves nothing; wrap no model of all ranks in DistributedDataParallel, "
                "and give workers different data",
                stacklevel=frames_to_the_user(),
            )
        return found

    def _held_alike(self) -> list[Alike]:
        """Return what ranks of a group have alike."""
        return []

    def _inner_step(self, closure: Closure | None) -> Any:
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        has_infinity, factor = _as_numbers(found_inf, scale)
        if has_infinity:
            return None
        if factor is not None and not _is_unscaled(self.inner):
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
        inner = deepcopy(self.inner.state_dict())
        return {
            "inner": inner,
            "num_inner_states": len(inner["state"]),
            "num_steps": self.num_steps,
            "settings": dict(self._settings),
            "outer": self._outer_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on this rank; every rank must, between the same steps.

        The model is loaded after the optimizer is wrapped, since workers differ between two exchanges.

        Raises:
            BinsgdmError: it is no such state, or of other settings; then nothing is taken, and the other ranks hear of
                it in their next exchange.
        """
        try:
            self._load(state_dict)
        except BinsgdmError as error:
            self._transport.run(refusal(error))  # which raises it

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        where = f"{self._where}: load_state_dict"
        given = {"num_inner_states": None, **state_dict} if isinstance(state_dict, Mapping) else state_dict
        check_state(where, given, ("inner", "num_inner_states", "num_steps", "settings", "outer"))
        check_whole(f"{where}: num_steps", state_dict["num_steps"], low=0, high=MAX_STEP)
        saved = state_dict["settings"]
        if not isinstance(saved, Mapping) or saved != self._settings:
            other = [name for name in self._settings if not isinstance(saved, Mapping) or _differs(name, saved, self)]
            raise BinsgdmError(
                f"{where}: a state of {printable(', '.join(other))} other than given: must be the same; wrap the "
                "optimizer as the run that was saved"
            )
        wanted = given["num_inner_states"]  # which former versions did not save
        try:
            if wanted is not None and len(state_dict["inner"]["state"]) != wanted:
                raise BinsgdmError(f"{where}: an inner state of other than {wanted} parameters; {REPAIR}")
            former = self.inner.state_dict()
            self.inner.load_state_dict(deepcopy(state_dict["inner"]))
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
        self._is_new, self._versions = True, None

    def close(self) -> None:
        """End the exchange with the other ranks, each of which must call it; parameters stay as they are."""
        self._transport.close(f"{self._where}: close")


def _refuse_own_steps(inner: torch.optim.Optimizer, wrapper: LocalStepsOptimizer) -> None:
    """Let an optimizer take steps in its wrapper alone: others would never be exchanged."""
    is_known = hasattr(inner, _WRAPPER)
    setattr(inner, _WRAPPER, weakref.ref(wrapper))  # the last one that wrapped it
    if is_known:
        return

    def check(stepping: torch.optim.Optimizer, *_: object) -> None:
        known: LocalStepsOptimizer | None = getattr(stepping, _WRAPPER)()
        if known is not None and known._transport.is_open and not known._is_stepping:
            raise BinsgdmError(
                f"{known._where}: a step of the inner optimizer by itself, which is never exchanged; call step() of "
                "the wrapper, or close() it before"
            )

    inner.register_step_pre_hook(check)


def _is_unscaled(inner: torch.optim.Optimizer) -> bool:
    """Tell whether the GradScaler that takes this step was called to unscale the inner optimizer's gradients."""
    frame = sys._getframe(1)
    while frame is not None:  # a GradScaler hands over its scale, but not itself
        scaler = frame.f_locals.get("self")
        if isinstance(scaler, torch.amp.GradScaler):
            known = scaler._per_optimizer_states.get(id(inner))
            return known is not None and known["stage"] is OptState.UNSCALED
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _as_numbers(*given: torch.Tensor | None) -> list[float | None]:
    """Return tensors of one element as numbers, read together: on a GPU the host waits for each read."""
    there = [one.reshape(()).to(torch.float32) for one in given if one is not None]
    read = iter(torch.stack(there).tolist() if there else ())
    return [None if one is None else next(read) for one in given]


def _differs(name: str, saved: Mapping[str, Any], own: LocalStepsOptimizer) -> bool:
    return saved.get(name) != own._settings[name]


def _parameters_of(where: str, optimizer: object) -> list[torch.Tensor]:
    """Return the parameters of an optimizer."""
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
