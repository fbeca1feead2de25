"""What both 1-bit optimizers share: checks, fp32 state, steps as protocols, skipped steps, copies, checkpoints."""

import math
import numbers
import sys
import warnings
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler now

from binsgdm.comm import Member, Protocol, RankContext, refusal
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import streams, zeros
from binsgdm.kernels.interface import FLOATS
from binsgdm.optimizers.saved_state import check_averages, check_count, check_form, check_mapping

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]
Flag = bool | torch.Tensor  # a bool scalar on the device where the host does not know it yet
FORMAT = 1  # version of the content of `state_dict`
_HOOKS = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")


@dataclass(frozen=True, kw_only=True)
class ParamState:
    """A parameter, the group that it is in, and its optimizer state."""

    parameter: torch.Tensor
    group: dict[str, Any]
    state: dict[str, Any]


class OneBitOptimizer(torch.optim.Optimizer):
    """An optimizer for gradients that stay local to their rank, whose step is a protocol with the other ranks.

    A step in which any gradient of any rank is not finite moves no parameter and is not counted, on all ranks alike.

    Attributes:
        title, source: as its paper names it, and the paper.
        averages: names of the fp32 tensors that it keeps of each parameter.
        not_finite: in words, what makes a step be skipped.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    wire_format: ClassVar[str]
    averages: ClassVar[tuple[str, ...]]
    not_finite: ClassVar[str] = "is not finite"

    # What torch.amp.GradScaler looks for: the optimizer unscales, and all ranks decide together.
    _step_supports_amp_scaling = True

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._must_attach = False  # true of a copy of one that exchanges, whose ranks know nothing of it
        # Step, skipped steps and format stand in the parameter groups, which torch saves and loads; attributes of an
        # optimizer are not saved.
        with self._named("params"):
            super().__init__(params, defaults | {"step": 0, "num_skipped": 0, "format": FORMAT})

    @property
    @abstractmethod
    def member(self) -> Member:
        """Which of the ranks this is, alone until it is attached, and who carries its messages."""

    @abstractmethod
    def leave(self) -> None:
        """Take steps alone again (`binsgdm.detach` calls it)."""

    @abstractmethod
    def step_protocol(self) -> Protocol:
        """Take one step as a protocol, which returns whether parameters moved (a bool scalar, alike on all ranks).

        For a driver that runs all ranks; `step` is for everybody else.
        """

    @abstractmethod
    def rules(self, group: dict[str, Any]) -> Mapping[str, tuple[bool, str]]:
        """Return by name whether a setting of a group of parameters may be what it is, and what it must be."""

    # torch.compile leaves it alone: its kernels are compiled, and operations fused anew would round otherwise.
    @_disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step.

        Returns:
            What the closure returned.

        Raises:
            BinsgdmError: a gradient that cannot be exchanged, a failed exchange, or a CUDA graph that is captured.
        """
        streams.check_not_captured(self._name, self._device, "the host reads in each step whether it counts")
        if closure is not None and not callable(closure):
            raise BinsgdmError(f"{self._name}: step: closure: a {type(closure).__name__}: must be a function, or None")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.member.run_protocol(self.step_protocol())
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, checked; they start with empty averages."""
        with self._named("params"):
            super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
        except BinsgdmError:
            # torch has added the group already; an optimizer must not keep a group that it refuses.
            self.param_groups.pop()
            raise
        for parameter in group["params"]:
            # At once and not in the first step, so that a checkpoint loads into an optimizer that has not stepped.
            self.state[parameter] = {name: empty_average(parameter) for name in self.averages}

    def param_states(self) -> list[ParamState]:
        """Return every parameter with its group and state, in the order in which they were given."""
        return [
            ParamState(parameter=parameter, group=group, state=self.state[parameter])
            for group in self.param_groups
            for parameter in group["params"]
        ]

    def rank_context(self) -> RankContext:
        """Return this rank's context in the coming step."""
        return self.member.context(seed=self.param_groups[0].get("seed", 0), step=self.coming_step)

    @property
    def num_skipped(self) -> int:
        """How many steps so far were skipped on all ranks."""
        return int(self.param_groups[0].get("num_skipped", 0))

    @property
    def coming_step(self) -> int:
        """The number of the next step, from 1; one that is skipped is not counted."""
        return int(self.param_groups[0]["step"]) + 1

    def check_attached(self) -> None:
        """Refuse a copy that its original's ranks know nothing of."""
        if self._must_attach:
            raise BinsgdmError(f"{self._name}: a copy of an attached optimizer; attach the copy on all ranks")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load averages and step; a resumed run goes on bit for bit. Every rank must save and load its own state.

        Raises:
            BinsgdmError: a state of another format, or of parameters of other shapes, or damaged. Nothing is loaded
                then, and the ranks that this one is attached to are told, whose next step raises.
        """
        try:
            check_mapping(state_dict)
            state_dict = dict(state_dict)  # hooks may change it, and it is the caller's
            for hook in self._optimizer_load_state_dict_pre_hooks.values():
                if (changed := hook(self, state_dict)) is not None:
                    state_dict = changed
            self._load(state_dict)
        except BinsgdmError as error:
            if self.member.run is not None and self.member.world_size > 1:
                # It would not take the next step, in which the others would wait.
                self.member.run(refusal(error))
            raise
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _load(self, state_dict: dict[str, Any]) -> None:
        """Load what the hooks have left, or refuse it and load nothing."""
        self._take(state_dict, self._checked_state(state_dict))

    def _take(self, state_dict: dict[str, Any], saved: Sequence[Mapping[str, Any]]) -> None:
        """Load a state that was checked, with its states of the parameters in order."""
        # Hooks are called around this: torch would call those after it with averages of the parameters' dtype.
        hooks = {name: vars(self)[name] for name in _HOOKS}
        vars(self).update({name: OrderedDict() for name in _HOOKS})
        try:
            # torch refuses keys that it does not know; a subclass may have added some.
            super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        finally:
            vars(self).update(hooks)
        for param_state, state in zip(self.param_states(), saved, strict=True):
            for name in self.averages:  # torch casts them to the parameter's dtype; they are fp32 always
                self.state[param_state.parameter][name] = empty_average(param_state.parameter).copy_(state[name])

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has: all but the ranks that it exchanged with."""
        must_attach = self._must_attach or self.member.world_size > 1
        return {**super().__getstate__(), "_must_attach": must_attach}

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = self.param_groups[0]["params"][0].device
        return device

    def _set_all(self, name: str, value: Any) -> None:
        """Set what all groups of parameters have alike."""
        for group in self.param_groups:
            group[name] = value

    def _scaler_saw_inf(self) -> Flag:
        """Tell whether a GradScaler saw gradients that are not finite."""
        flag: torch.Tensor | None = getattr(self, "found_inf", None)
        if flag is None:
            return False
        if "cpu" in (flag.device.type, self._device.type):
            return bool(flag)
        # It stays on the GPU: the host learns it with the flags of all ranks.
        return flag.to(self._device, non_blocking=True).reshape(()) != 0

    def _note_skipped(self, step: int, *, expected: Flag) -> None:
        """Count a step that moved nothing; warn of the first that no GradScaler on this rank knows of."""
        if not self.num_skipped and not bool(expected):
            warnings.warn(
                f"{self._name}: step {step} was skipped on all ranks: a gradient {self.not_finite} on one of them; "
                "more are counted in optimizer.num_skipped",
                stacklevel=frames_to_the_user(),
            )
        self._set_all("num_skipped", self.num_skipped + 1)

    @contextmanager
    def _named(self, argument: str) -> Iterator[None]:
        """Let what torch refuses name this class and the argument."""
        try:
            yield
        except (TypeError, ValueError, KeyError) as error:
            raise BinsgdmError(
                f"{self._name}: {argument}: must be tensors, or groups of them (dictionaries with 'params'), as of "
                f"model.parameters(): {' '.join(str(error).split())}"
            ) from error

    def _check_group(self, group: dict[str, Any]) -> None:
        if len(set(map(id, group["params"]))) < len(group["params"]):
            raise BinsgdmError(f"{self._name}: params: the same parameter twice: must be there once; leave one out")
        self._check_settings(group)
        for parameter in group["params"]:
            if parameter.dtype not in FLOATS:
                raise BinsgdmError(
                    f"{self._name}: a parameter of {parameter.dtype}: must be float32, bfloat16 or float16; give "
                    "others to another optimizer"
                )

    def _check_settings(self, group: dict[str, Any]) -> None:
        for name, (holds, rule) in self.rules(group).items():
            if not holds:
                raise BinsgdmError(f"{self._name}: {name}: {shown(group[name])}: {rule}")

    def _checked_state(self, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the saved states in the order of the parameters, or refuse."""
        check_form(state_dict, [len(group["params"]) for group in self.param_groups])
        groups = state_dict["param_groups"]
        formats = {group.get("format") for group in groups}
        if formats != {FORMAT}:
            versions = sorted(map(str, formats))
            raise BinsgdmError(f"load_state_dict: format {versions}: this version reads format {FORMAT}")
        for group in groups:
            check_count("step", group.get("step"))
            check_count("num_skipped", group.get("num_skipped", 0))
        saved = [state_dict["state"].get(number, {}) for group in groups for number in group["params"]]
        for number, (param_state, state) in enumerate(zip(self.param_states(), saved, strict=True)):
            check_averages(number, self.averages, state, param_state.parameter.shape)
        return saved


def check_residuals_kept(where: str, layout: str, saved: Sequence[Mapping[str, Any]], names: Iterable[str]) -> None:
    """Refuse a state that has lost its residuals: some checkpoints take only what the optimizer that loads has."""
    if not any(name in state for state in saved for name in names):
        raise BinsgdmError(
            f"{where}: load_state_dict: a state of {layout} without its residuals: must have them; save and load each "
            "rank's state_dict() as torch.save writes it, or set 'residual_layout' to '' in all param_groups of the "
            "state to begin with new ones"
        )


def is_decay(weight_decay: Any, lr: Any) -> bool:
    """Tell whether weights that decay keep their signs: whether lr times weight_decay is at most 1."""
    return is_finite_from_0(weight_decay) and is_finite_from_0(lr) and float(lr) * float(weight_decay) <= 1


def is_finite_from_0(value: Any) -> bool:
    """Tell whether a setting is a number of 0 or more."""
    if isinstance(value, torch.Tensor) and value.dtype != torch.bool and value.numel() == 1:
        value = value.item()
    # numpy's own numbers are not all registered as numbers.
    is_number = isinstance(value, numbers.Real | np.number) and not isinstance(value, bool)
    try:
        return is_number and math.isfinite(value) and bool(value >= 0)
    except (TypeError, OverflowError):
        return False


def empty_average(parameter: torch.Tensor) -> torch.Tensor:
    """Return zeros for an average, sharded if the parameter is."""
    # A DTensor of FSDP2: the average is sharded as its parameter is.
    if hasattr(parameter, "to_local"):
        return torch.zeros_like(parameter, dtype=torch.float32)
    return zeros(parameter.numel(), parameter.device).view(parameter.shape)


def copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors to others of the same shapes, in one launch a pair of dtypes."""
    pairs = list(zip(targets, sources, strict=True))
    dtypes = [(target.dtype, source.dtype) for target, source in pairs]
    # Dtype by dtype: on a GPU, PyTorch before 2.11 takes all targets for tensors of the first one's dtype.
    for wanted in dict.fromkeys(dtypes):
        some = [pair for pair, both in zip(pairs, dtypes, strict=True) if both == wanted]
        torch._foreach_copy_([target for target, _ in some], [source for _, source in some])


def check_gradients(where: str, parameters: Sequence[torch.Tensor]) -> None:
    """Refuse gradients that cannot be laid out flat, and parameters without values or on different devices."""
    pairs = [(parameter, gradient) for parameter in parameters if (gradient := parameter.grad) is not None]
    trained, gradients = ([pair[which] for pair in pairs] for which in (0, 1))
    # Looked at in every step, for every parameter: what nearly all are, first.
    is_usual = (
        set(map(attrgetter("layout"), gradients)) <= {torch.strided}
        and set(map(attrgetter("dtype"), gradients)).issubset(FLOATS)
        and all(map(torch.Tensor.is_same_size, gradients, trained))
        and not any(map(attrgetter("is_meta"), trained))
    )
    if not is_usual:
        for parameter, gradient in pairs:
            check_gradient(where, parameter, gradient)
    if all(map(attrgetter("is_cpu"), parameters)):
        return
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1:
        raise BinsgdmError(f"{where}: parameters on {', '.join(sorted(map(str, devices)))}: must be on one device")


def check_gradient(where: str, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Refuse a gradient that cannot be laid out flat, or is of a parameter without values."""
    if parameter.is_meta:
        raise BinsgdmError(
            f"{where}: a parameter on meta: must have values; give the model some with to_empty() and load_state_dict()"
        )
    if gradient.is_sparse or gradient.is_complex():
        kind = "sparse" if gradient.is_sparse else "complex"
        raise BinsgdmError(
            f"{where}: a {kind} gradient of shape {tuple(gradient.shape)}: must be dense and real; set sparse=False or "
            "give this parameter to another optimizer"
        )
    if gradient.shape != parameter.shape or gradient.dtype not in FLOATS:
        raise BinsgdmError(
            f"{where}: a gradient of {gradient.dtype} and shape {tuple(gradient.shape)} for a parameter of shape "
            f"{tuple(parameter.shape)}: must be of that shape, in float32, bfloat16 or float16"
        )


def frames_to_the_user() -> int:
    """Return how many frames lie between a warning and whoever called `step`: those of this package and of torch."""
    # A fixed stacklevel would be wrong: `step` is wrapped by torch, by lr schedulers and by GradScaler.
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("binsgdm.", "torch.")):
        depth, frame = depth + 1, frame.f_back
    return depth
