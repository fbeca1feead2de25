"""Optimizers of which each worker takes steps alone, with an exchange after some of them: local SGD and DiLoCo."""

import sys
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import timedelta
from operator import is_not
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo  # as in binsgdm.optimizers.base
from torch.amp.grad_scaler import OptState

from binsgdm.comm import GroupName, Member, Protocol, consistency
from binsgdm.comm import groups as grouping
from binsgdm.comm.arguments import check_arguments
from binsgdm.comm.consistency import Alike, check_same_settings, check_same_tensors, checksum_of, comparable
from binsgdm.comm.messages import refusal
from binsgdm.comm.thread import CommunicationThread
from binsgdm.comm.transport import Sent, Transport
from binsgdm.compressors.base import REPAIR, check_choice, check_state, check_whole
from binsgdm.errors import BinsgdmError, printable, shown
from binsgdm.kernels import streams
from binsgdm.kernels.interface import FLOATS
from binsgdm.optimizers.agreement import check_alone
from binsgdm.optimizers.base import frames_to_the_user
from binsgdm.optimizers.outer_steps import WIRE_DTYPES, Fragment, OuterSettings, OuterSteps, Workers, averaged

MAX_STEP = 2**53
CHECK_EVERY = 16
"""Exchanges from one comparison of parameters and outer state to the next, where no rank has loaded a state."""
_REPAIR = "load on all ranks what they saved in the same step, and give all the same number of steps"
_CHANGED = (
    "parameters have changed since the last step, and in no step of this optimizer: an exchange would take that for "
    "training; load the state of this optimizer with the model, or wrap it after the model is loaded, or change "
    "parameters in a step hook of the inner optimizer"
)
_REGROUPED = (
    "parameters of the inner optimizer have changed, and would never be exchanged; make the optimizer with all of "
    "them, and wrap it anew"
)
_WRAPPER = "_binsgdm_wrapper"


class LocalStepsOptimizer(torch.optim.Optimizer):
    """An optimizer of torch whose steps are each worker's own, with an exchange after some of them.

    `param_groups` and `state` are those of the inner optimizer, so that schedulers of the learning rate work. A
    GradScaler leaves unscaling to it: a step that one worker skips counts as a step, since all workers exchange after
    the same number of them.

    Before an exchange all ranks compare, in one message of a few bytes, which step they are at; at the first one, after
    a state was loaded, and at every 16th, outer state and parameters, too. A recording leaves these messages out.

    Its `settings` are what all ranks must be given alike, and `refused` is why this rank cannot go on, which all hear.
    The other arguments are as `DiLoCo` has them.
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
        named = [(f"parameter {number}", parameter) for number, parameter in enumerate(parameters)]
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
        """Refuse to be copied or pickled: a copy would share the process groups."""
        raise BinsgdmError(
            f"{self._where}: cannot be copied: the other ranks know nothing of the copy; wrap a copy of the inner "
            "optimizer on all ranks, or save state_dict()"
        )

    def _follow_inner(self) -> None:
        inner = self.inner
        # The same objects: schedulers change the groups of the wrapper, and the inner optimizer steps by them.
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults

    # A compiled step would count and exchange as in the step in which it was compiled.
    @_disable_dynamo
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
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
        self._is_stepping = True  # the inner optimizer refuses steps that do not come from here
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
        parameters = [parameter for group in self.inner.param_groups for parameter in group["params"]]
        if len(parameters) != len(self.parameters) or any(map(is_not, parameters, self.parameters)):
            sentence = _REGROUPED
        # What was written again at the start, such as by DDP when it wraps a model, may be what it was.
        elif self._versions not in (None, self._versions_now()) and (
            self.num_steps or int(checksum_of(self.parameters).item()) != self._sum_at_start
        ):
            sentence = _CHANGED
        else:
            return
        error = BinsgdmError(f"{self._where}: {sentence}")
        self._transport.abort(str(error))
        raise error

    def _versions_now(self) -> list[int]:
        return [parameter._version for parameter in self.parameters]  # counted up by every write in place

    def _inner_step(self, closure: Callable[[], Any] | None) -> Any:
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        # Read together: on a GPU the host waits for each read.
        scalars = [scalar.reshape(()).to(torch.float32) for scalar in (found_inf, scale) if scalar is not None]
        read = torch.stack(scalars).tolist() if scalars else []
        if found_inf is not None and read[0]:
            # It counts as a step: all workers exchange after the same number of them.
            return None
        if scale is not None and not _is_unscaled(self.inner):
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / read[-1])
        return self.inner.step() if closure is None else self.inner.step(closure)

    @abstractmethod
    def _after_step(self) -> None:
        """Exchange, if it is time to."""

    def _check_ranks(self, event: int) -> None:
        """Compare with all ranks what is about to be exchanged, before it is.

        Raises:
            BinsgdmError: on all ranks, where they differ.
        """
        if self._member.world_size == 1 or self._member.stands_for_all:
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
        # Seldom more than this: the rest reads all parameters.
        if not rows[:, -1].any():
            return rows
        identity = member.rank, int(checksum_of(self.parameters).item())
        numbers = [*(Alike(name="", value=number, group=None) for number in identity), *self._held_alike()]
        of_all = yield from consistency.check_alike(where, numbers, member, device, _REPAIR)
        ranks, sums = ({*column} for column in of_all[:, :2].T.tolist())
        is_of_others = len(ranks) == member.world_size > member.ranks_per_node
        if is_of_others and len(sums) == 1 and sums != {self._sum_at_start}:
            warnings.warn(
                f"{where}: all workers have the same parameters before an exchange: their gradients seem to be "
                "averaged in every step, which saves nothing; wrap no model of all ranks in DistributedDataParallel, "
                "and give workers different data",
                stacklevel=frames_to_the_user(),
            )
        return of_all

    def _held_alike(self) -> list[Alike]:
        """Return what ranks of a group have alike."""
        return []

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do as the inner optimizer."""
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse parameters that come later than those it is made with."""
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
        state = {"num_inner_states": None, **state_dict} if isinstance(state_dict, Mapping) else state_dict
        check_state(where, state, ("inner", "num_inner_states", "num_steps", "settings", "outer"))
        check_whole(f"{where}: num_steps", state_dict["num_steps"], low=0, high=MAX_STEP)
        saved = state_dict["settings"]
        if not isinstance(saved, Mapping) or saved != self._settings:
            theirs = saved if isinstance(saved, Mapping) else {}
            other = [name for name, value in self._settings.items() if theirs.get(name) != value]
            raise BinsgdmError(
                f"{where}: a state of {printable(', '.join(other))} other than given: must be the same; wrap the "
                "optimizer as the run that was saved"
            )
        wanted = state["num_inner_states"]  # which former versions did not save
        try:
            if wanted is not None and len(state_dict["inner"]["state"]) != wanted:
                raise BinsgdmError(f"{where}: an inner state of other than {wanted} parameters; {REPAIR}")
            former = self.inner.state_dict()  # to go back to where the outer state is refused
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

    def _outer_state(self) -> dict[str, Any]:
        """Return a copy of what is this wrapper's own."""
        return {}

    def _load_outer_state(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `_outer_state` returned."""
        check_state(f"{self._where}: outer state", state, ())

    def close(self) -> None:
        """End the exchange with the other ranks, each of which must call it; parameters stay as they are."""
        self._transport.close(f"{self._where}: close")


class LocalSGD(LocalStepsOptimizer):
    """Any optimizer whose parameters are averaged over all ranks after every few steps.

    A worker is a rank with a plain module, or the ranks of a node with a DDP module over the node's process group.

    Args:
        optimizer: of torch, with parameters that are equal on all ranks; its state is each worker's own.
        inner_steps: steps between two averages.
        wire_dtype: number format in which parameters travel: "fp32" or "bf16".
        group: the ranks that average; default all.
        timeout: of the collectives.
        on_sent: called with every collective that this rank takes part in.

    Raises:
        BinsgdmError: no optimizer of torch, a value out of range, or ranks that differ; on all ranks.

    Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019, https://arxiv.org/abs/1805.09767, with
    any optimizer; Lin et al., ICLR 2020, https://arxiv.org/abs/1808.07217, with nodes as workers.

    Example:
        optimizer = binsgdm.LocalSGD(torch.optim.AdamW(model.parameters()), inner_steps=8)
    """

    def __init__(  # noqa: PLR0913
        self,
        optimizer: torch.optim.Optimizer,
        inner_steps: int = 8,
        *,
        wire_dtype: Literal["fp32", "bf16"] = "fp32",
        group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        on_sent: Callable[[Sent], None] | None = None,
    ) -> None:
        refused = None
        try:
            check_whole("LocalSGD: inner_steps", inner_steps, low=1)
            check_choice("LocalSGD: wire_dtype", wire_dtype, tuple(WIRE_DTYPES))
        except BinsgdmError as error:
            refused = error
        settings = {"inner_steps": inner_steps, "wire_dtype": wire_dtype}
        super().__init__(
            optimizer, settings, refused, group=group, ranks_per_worker=1, timeout=timeout, on_sent=on_sent
        )
        self._inner_steps, self._wire_dtype = inner_steps, wire_dtype

    def _after_step(self) -> None:
        if self.num_steps % self._inner_steps == 0:
            # Before anything is sent: a rank at another step would average what does not belong together.
            self._check_ranks(event=0)
            self._transport.run(averaged(self.parameters, self._wire_dtype, self._member.world_size))


class _PendingMean:
    """An exchange that has begun, beside inner steps on a thread of its own; or one whose mean is known."""

    def __init__(self, fragment: Fragment, mean: torch.Tensor | None = None) -> None:
        self.fragment, self._mean = fragment, mean
        self._thread: CommunicationThread[Callable[[], torch.Tensor]] | None = None

    def start(self, mean: Callable[[], torch.Tensor], abort: Callable[[str], None], stream: streams.Stream) -> None:
        """Let it begin beside inner steps."""
        self._thread = CommunicationThread(
            "binsgdm-outer", self.fragment.outer.device, self._run, lambda _, error: abort(str(error)), stream
        )
        self._thread.submit(mean)

    def _run(self, mean: Callable[[], torch.Tensor]) -> None:
        self._mean = mean()

    def mean(self) -> torch.Tensor:
        """Wait for the mean, and return it."""
        if self._thread is not None:
            self._thread.finish()
            self._thread = None
        if self._mean is None:
            raise AssertionError("finish raises what failed")
        return self._mean


class DiLoCo(LocalStepsOptimizer):
    """Any optimizer in each worker, and an outer SGD with momentum between workers after many inner steps.

    The pseudo-gradient of a worker is how far it went from the outer parameters. Its mean over workers takes the outer
    parameters one step on, and workers start anew from those. Outer parameters and momentum take 8 bytes a parameter,
    shared by the ranks of a worker; error feedback of a compressed exchange up to 8 more. What is no parameter, such as
    the statistics of batch norm, is each worker's own.

    Args:
        optimizer: the inner one, of torch, with parameters that are equal on all ranks; its state is each worker's own.
        inner_steps: steps of a worker between two exchanges of the same parameters.
        outer_lr: learning rate of the outer SGD.
        outer_momentum: its momentum, in [0, 1).
        nesterov: whether that is Nesterov's.
        exchange: "fp32" or "bf16" all-reduce the pseudo-gradients; "int8", "fp8" (of 8 bits) and "one_bit" (with error
            feedback) compress them, and so does any name in `binsgdm.SYSTEMS`.
        fragments: parts of the parameters, exchanged in turn at different steps of a period.
        overlap_steps: inner steps that hide an exchange, after which its result is applied.
        local_share: of a worker's own parameters in the mix with the outer ones then; by default 0.5.
        workers: "rank" lets each rank train alone. With "node" the ranks of a node are one worker: give parameters of a
            DDP module over the node's process group.
        ranks_per_worker: with "node", its ranks; default LOCAL_WORLD_SIZE from torchrun.
        seed: of the draws of an exchange, the same on all ranks.
        group: the ranks that exchange; default all.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in, from the thread that exchanges.
        options: of the system that compresses, such as bits=4.

    Raises:
        BinsgdmError: no optimizer of torch, a value out of range, or ranks that differ; on all ranks.

    Source: see `binsgdm.optimizers.outer_steps.OuterSteps`.

    Example:
        optimizer = binsgdm.DiLoCo(torch.optim.AdamW(model.parameters()), inner_steps=50, exchange="one_bit")
    """

    def __init__(  # noqa: PLR0913
        self,
        optimizer: torch.optim.Optimizer,
        inner_steps: int = 50,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        exchange: str = "fp32",
        fragments: int = 1,
        overlap_steps: int = 0,
        local_share: float | None = None,
        workers: Workers = "rank",
        ranks_per_worker: int | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        on_sent: Callable[[Sent], None] | None = None,
        **options: Any,
    ) -> None:
        chosen: dict[str, Any] = {
            "inner_steps": inner_steps, "outer_lr": outer_lr, "outer_momentum": outer_momentum, "nesterov": nesterov,
            "exchange": exchange, "fragments": fragments, "overlap_steps": overlap_steps, "local_share": local_share,
            "workers": workers, "seed": seed,
        }  # fmt: skip
        refused, settings = None, OuterSettings()
        try:
            settings = OuterSettings(**chosen, options=options)
            if workers == "rank" and ranks_per_worker is not None:
                raise BinsgdmError(
                    f"DiLoCo: ranks_per_worker: {ranks_per_worker!r}: has no effect with workers='rank'; give "
                    "workers='node'"
                )
            # A trial on one element, for what only the system itself refuses, while all ranks can still raise.
            OuterSteps([torch.zeros(1)] * fragments, settings, Member())
        except BinsgdmError as error:
            refused = error
        super().__init__(
            optimizer,
            {**chosen, **options},
            refused,
            group=group,
            ranks_per_worker=1 if workers == "rank" else ranks_per_worker,
            timeout=timeout,
            on_sent=on_sent,
        )
        self._stream: streams.Stream = None
        self._pending: _PendingMean | None = None
        self.outer = OuterSteps(self.parameters, settings, self._member)
        self._overlaps = settings.overlap_steps > 0

    def _after_step(self) -> None:
        # With fragments an exchange never starts where another ends: overlap_steps is below the steps between them.
        if (fragment := self.outer.starting(self.num_steps)) is not None:
            self._check_ranks(2 * fragment.number)
            self._start(fragment)
        if (ending := self.outer.ending(self.num_steps)) is None:
            return
        pending, self._pending = self._pending, None
        mean = None if pending is None else pending.mean()
        if self._overlaps:
            self._check_ranks(-1 if pending is None else 2 * ending.number + 1)
        if pending is not None and mean is not None:
            self._transport.run(self.outer.finish(pending.fragment, mean))

    def _held_alike(self) -> list[Alike]:
        state = [tensor for fragment in self.outer.fragments for tensor in (fragment.outer, fragment.momentum)]
        common = consistency.number_of(comparable(self.outer.system.common_values()))
        # The ranks of a worker share the outer state: those at the same place in it hold the same.
        held: list[tuple[str, int, GroupName]] = [
            ("parameters", int(checksum_of(self.parameters).item()), "intra_node"),
            ("outer parameters and momentum", int(checksum_of(state).item()), "inter_node"),
            ("state of the exchange", common, "inter_node"),
        ]
        return [Alike(name=name, value=value, group=group, is_checksum=True) for name, value, group in held]

    def _start(self, fragment: Fragment) -> None:
        bucket, step = fragment.pseudo_gradient(), self.num_steps

        def mean() -> torch.Tensor:
            average = self._transport.run(self.outer.mean(fragment, bucket, step))
            # Over NCCL the host reads soon what was carried, and would wait for a rank that is gone for ever.
            self._transport.wait("the mean of pseudo-gradients")
            return average

        if not self._overlaps:
            self._pending = _PendingMean(fragment, mean())
            return
        self._stream = self._stream or streams.of(fragment.outer.device).make()
        self._pending = _PendingMean(fragment)
        self._pending.start(mean, self._transport.abort, self._stream)

    def _outer_state(self) -> dict[str, Any]:
        pending = self._pending
        saved = None if pending is None else {"fragment": pending.fragment.number, "mean": pending.mean().clone()}
        return self.outer.state_dict() | {"pending": saved}

    def _load_outer_state(self, state: Mapping[str, Any]) -> None:
        check_state("DiLoCo: outer state", state, ("fragments", "system", "pending"))
        if self._pending is not None:
            self._pending.mean()  # in which other ranks take part
        saved, pending = state["pending"], None
        if saved is not None:
            check_state("DiLoCo: pending exchange of the state", saved, ("fragment", "mean"))
            number, count = saved["fragment"], len(self.outer.fragments)
            if not isinstance(number, int) or number not in range(count):
                raise BinsgdmError(
                    f"DiLoCo: a pending exchange of fragment {number!r}: must be below {count}; {REPAIR}"
                )
            fragment = self.outer.fragments[number]
            pending = _PendingMean(fragment, fragment.of_slice("mean of the state", saved["mean"]))
        self.outer.load_state_dict({name: value for name, value in state.items() if name != "pending"})
        self._pending = pending

    def close(self) -> None:
        """Wait for an exchange that has begun, and do as `LocalStepsOptimizer.close`."""
        if self._pending is not None:
            self._pending.mean()
        super().close()


def _refuse_own_steps(inner: torch.optim.Optimizer, wrapper: LocalStepsOptimizer) -> None:
    """Let an optimizer take steps in its wrapper alone: others would never be exchanged."""
    # One hook, however often it is wrapped: it asks for the last wrapper.
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


def _parameters_of(where: str, optimizer: object) -> list[torch.Tensor]:
    """Return the parameters of an optimizer."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, LocalStepsOptimizer):
        raise BinsgdmError(
            f"{where}: optimizer: a {type(optimizer).__name__}: must be an optimizer of torch that is not wrapped; "
            "give such as torch.optim.AdamW(model.parameters())"
        )
    parameters: list[torch.Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        if hasattr(parameter, "to_local"):
            raise BinsgdmError(
                f"{where}: parameter {number}: sharded (DTensor): must be whole on every rank; use DDP in each worker"
            )
    kinds = sorted({f"{parameter.dtype} on {parameter.device}" for parameter in parameters})
    if len(kinds) != 1 or parameters[0].dtype not in FLOATS:
        raise BinsgdmError(
            f"{where}: parameters of {', '.join(kinds)}: must be of one of float32, bfloat16 and float16, on one "
            "device; convert or move the model"
        )
    return parameters
