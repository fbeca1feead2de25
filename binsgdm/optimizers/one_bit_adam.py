"""1-bit Adam as a torch.optim.Optimizer, for gradients that stay local to their rank."""

import warnings
from collections.abc import Generator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter, is_
from typing import Any, Literal

import torch

from binsgdm.comm import AllGather, Member, Message, Protocol, RankContext, consistency
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import zeros
from binsgdm.kernels.host_tensors import upload
from binsgdm.optimizers import one_bit_adam_cpu, saved_state
from binsgdm.optimizers.agreement import Terms
from binsgdm.optimizers.base import (
    Flag,
    OneBitOptimizer,
    Params,
    check_gradients,
    check_residuals_kept,
    frames_to_the_user,
    is_decay,
    is_finite_from_0,
)
from binsgdm.optimizers.one_bit_adam_cpu import CpuPasses
from binsgdm.optimizers.one_bit_adam_plain import (
    AVERAGES,
    FlatSlice,
    MomentumResiduals,
    PlainPasses,
    Topology,
    freeze,
    frozen_means,
    is_stable,
    padded_numel,
    variance_norm,
)
from binsgdm.optimizers.residuals import ResidualViews, View, check_flat, drop
from binsgdm.optimizers.saved_state import check_average, check_count

_REFUSED = 2  # flag of a rank that cannot take a step; 1 is that of a step that all ranks skip


class OneBitAdam(OneBitOptimizer):
    """Adam whose momentum, after a dense stage, is averaged over ranks with one bit an element.

    Dense stage: Adam with decoupled weight decay, on gradients averaged in fp32. Then the variance v stays as it is,
    every rank adds its own gradient to the common momentum, and what all ranks go on with is the 1-bit average of these
    (`binsgdm.optimizers.one_bit_momentum`). All momenta travel as one vector. Gradients stay local: do not average
    them (`attach_one_bit_adam` sees to that in DDP); `clip_grad_norm_` clips each rank's own.

    A step in which any gradient of any rank is not finite, or is 2^63 or more (its square would not be), moves nothing,
    changes no state and is not counted, on all ranks alike; `num_skipped` counts such steps. A parameter that has no
    gradient on any rank is left alone; where some ranks have one, it counts as 0 on the others. Works with
    `torch.amp.GradScaler`, gradient accumulation and lr schedulers.

    An element that had no gradient in the whole dense stage has v = 0, and no gradient moves it any more; its momentum
    stays 0, since v could only be made up. So let the dense stage see all data that matters (rare embedding rows).
    An element whose gradients there were tiny gets a tiny v, and then the magnitude of its whole chunk: it moves by
    many times lr at once. `variance_floor` bounds that.

    Args:
        params: parameters, or groups with their own lr, betas, eps, weight_decay or variance_floor; fp32, bf16 or fp16,
            state in fp32.
        lr: learning rate, >= 0.
        betas: decays of momentum and variance, in [0, 1).
        eps: added to the root of v, > 0.
        weight_decay: decoupled, as in AdamW, >= 0.
        variance_floor: part of its tensor's mean v, in [0, 1], to which a smaller v is raised at the end of the dense
            stage; 0 for none. v = 0 stays 0.
        scales_momenta: whether each tensor's momentum is divided, while it is exchanged, by its root mean square at the
            end of the dense stage, so that a chunk's one magnitude suits all tensors in it.
        dense_steps: steps of the dense stage, >= 1; or "variance": until the 1-norm of v, corrected for its bias, is
            between 0.96 and 1 / 0.96 of that 1 / (1 - beta2) steps before, looked at as often. End it no sooner than
            the lr warm-up: a step of lr / sqrt(v) is only as good as v.
        topology: "flat" sends one bit between all ranks; "hierarchical" averages in the node in fp32 first.
        maximize: steps go up the gradient.

    Raises:
        BinsgdmError: a value out of range, or a parameter of another dtype.

    Source: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed", ICML
    2021; the criterion of its experiments, with the threshold that this project has of it (0.96).
    Differs: bias corrections as in Adam, that of v frozen with it (the paper and DeepSpeed have none), so that a short
    dense stage makes no jump; decoupled weight decay (the paper has none); a criterion from both sides, since a growing
    variance is not stable either, on the corrected norm, since from zeros the other always grows; v = 0 as above.
    DeepSpeed's OnebitAdam: only a fixed freeze_step; one exchange a parameter in fp32; scale and masks as in
    `one_bit_momentum`; it drops the residuals on loading a checkpoint, kept here; it needs its engine, with cupy or
    MPI, fp16, and gradients that its engine stops averaging.
    scales_momenta: Li, Awan, Tang, Rajbhandari and He, "1-bit LAMB: communication efficient large-scale large-batch
    training with LAMB's convergence speed", HiPC 2022 (arXiv:2104.06069), its scaling of momenta before compression.
    Differs: the root mean square itself, where theirs is relative to the mean over tensors, which a sign does not see.
    variance_floor: this project's own. The paper has Adam's eps, one number for tensors of any scale; DeepSpeed
    asks for masks, which help where v is 0.
    """

    title = "1-bit Adam"
    source = "Tang et al., ICML 2021"
    wire_format = "1 bit per element of the momentum to its owner, 1 bit of the mean to all, an fp32 scale per chunk"
    averages = AVERAGES
    not_finite = "is not finite (or 2^63 or more)"

    def __init__(  # noqa: PLR0913 - as torch's optimizers take theirs
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        variance_floor: float = 0.0,
        scales_momenta: bool = False,
        dense_steps: int | Literal["variance"] = "variance",
        topology: Topology = "flat",
        maximize: bool = False,
    ) -> None:
        _check_stage(dense_steps, topology)
        self._residuals: KeptResiduals | None = None
        self._member = Member()
        self._slices: list[FlatSlice] = []
        self._seen: list[object] = []  # what `_slices` was made of
        self._numels: list[int] = []
        self._passes: PlainPasses | CpuPasses | None = None
        self._comparisons = consistency.ComparisonSchedule()
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "variance_floor": variance_floor}
        stage = {"dense_steps": dense_steps, "topology": topology, **_BEGIN}
        super().__init__(params, hyper | stage | {"scales_momenta": scales_momenta, "maximize": maximize})

    @property
    def is_dense(self) -> bool:
        """Tell whether the next step is one of the dense stage."""
        return not self.param_groups[0]["dense_end"]

    @property
    def member(self) -> Member:
        """Which of the ranks this is, alone until it is attached, and who carries its messages."""
        return self._member

    def join(self, member: Member) -> None:
        """Take part in an exchange as one of its ranks (`attach_one_bit_adam` does)."""
        self._member = member
        self._must_attach = False
        self._comparisons = consistency.ComparisonSchedule()
        if one_bit_adam_cpu.is_used_on(self._device):
            self._compile()

    def leave(self) -> None:
        """Take steps alone again, with residuals of 0 (`binsgdm.detach` calls it)."""
        self._member = Member()
        self._forget_residuals()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, checked, before the first step and before the optimizer joins others."""
        # The flat order of all parameters is what residuals and chunks are cut by.
        if self.param_groups and (self.param_groups[0].get("step") or self._member.world_size > 1):
            raise BinsgdmError("OneBitAdam: add_param_group after the first step; add all parameters before")
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.state[parameter] |= {"step": 0, "variance_step": 0, "momentum_scale": 1.0}

    @torch.no_grad()
    def step_protocol(self) -> Protocol:
        """Take one step as a protocol; see `OneBitOptimizer.step_protocol`."""
        self.check_attached()
        slices, context, refused = self.slices(), self.rank_context(), None
        parameters = [segment.parameter for segment in slices]
        try:
            for group in self.param_groups:
                self._check_settings(group)
            self._check_averages(slices)
            residuals = None if self.is_dense else self._residuals_here(context)
            passes = self._passes_of(slices)
            check_gradients(self._name, [parameter for parameter in parameters if parameter.requires_grad])
            gradients = [parameter.grad if parameter.requires_grad else None for parameter in parameters]
            is_sent = residuals is None and context.world_size > 1
            passes.read_gradients(gradients, getattr(self, "grad_scale", None), is_sent=is_sent)
            expected = self._scaler_saw_inf()
            own_flags = finite_check_flags(
                [gradient is not None for gradient in gradients], passes.are_small, expected, self._device
            )
        except BinsgdmError as error:
            if context.world_size == 1:
                raise
            # Take part in the first collective before raising: the other ranks are already waiting in it.
            refused, own_flags = error, upload([_REFUSED, *[0] * len(slices)], torch.uint8, self._device)
        stop, has_gradient = yield from self._agree(own_flags, context, refused)
        if stop:
            self._note_skipped(context.step, expected=expected)
            return torch.tensor(False, device="cpu")
        moving = [segment for segment, has in zip(slices, has_gradient, strict=True) if has]
        if residuals is None:
            yield from passes.dense_step(moving, context)
        else:
            yield from passes.compressed_step(moving, residuals.flat, context, self.param_groups[0]["topology"])
        # What the step itself has written is no change to be compared.
        self._comparisons.note(parameters)
        self._set_all("step", context.step)
        if residuals is None:
            # After the step, whose gradient the frozen variance is to hold.
            yield from self._end_dense_stage_if_due(context)
        return torch.tensor(True, device="cpu")

    def slices(self) -> list[FlatSlice]:
        """Return all parameters in the flat order, which are looked up anew only where something was replaced."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        # By identity, in every step: cheaper than slices made anew, and it sees whatever was replaced.
        seen = [*self.param_groups, *parameters, *self.state, *self.state.values()]
        numels = list(map(torch.Tensor.numel, parameters))
        if numels != self._numels or len(seen) != len(self._seen) or not all(map(is_, seen, self._seen)):
            ends = list(accumulate(numels))
            self._slices = [
                FlatSlice(param_state.parameter, param_state.group, param_state.state, end - numel, end, number)
                for number, (param_state, numel, end) in enumerate(zip(self.param_states(), numels, ends, strict=True))
            ]
            self._seen, self._numels = seen, numels
        return self._slices

    def _passes_of(self, slices: list[FlatSlice]) -> PlainPasses | CpuPasses:
        """Return what computes a step of these parameters here."""
        kind = CpuPasses if one_bit_adam_cpu.is_used_on(self._device) else PlainPasses
        passes = self._passes
        if type(passes) is not kind or passes.slices is not slices or passes.world_size != self._member.world_size:
            if kind is CpuPasses:
                self._compile()
            self._passes = passes = kind(slices, self._member.world_size)
        return passes

    def _check_averages(self, slices: Sequence[FlatSlice]) -> None:
        """Refuse a state that was emptied: what is left of it, such as the step, would not fit new averages."""
        for name in AVERAGES:
            averages = [segment.state.get(name) for segment in slices]
            for segment, average in zip(slices, averages, strict=True):
                if average is None or average.numel() != segment.end - segment.start:
                    raise BinsgdmError(
                        f"OneBitAdam: parameter {segment.number}: a state without {' and '.join(AVERAGES)}: must keep "
                        "them, of its shape; load a state_dict, or make a new optimizer"
                    )

    def _agree(
        self, own_flags: torch.Tensor, context: RankContext, refused: BinsgdmError | None
    ) -> Generator[Message, torch.Tensor, tuple[bool, Sequence[int]]]:
        """Return whether the step must not count, and which parameters had a gradient on some rank.

        Raises:
            BinsgdmError: on all ranks, where one cannot take the step, or ranks differ in what must be alike.
        """
        if self._member.world_size == 1:
            stop, *has_gradient = own_flags.tolist()
            return bool(stop), has_gradient
        where = f"OneBitAdam: step {context.step}"
        terms = Terms(where=where, groups=self.param_groups, names=COMMON, refused=refused)
        appended = terms.pair() + (
            consistency.IS_NEW
            if self._comparisons.is_due(map(attrgetter("parameter"), self._slices))
            else consistency.NO_PAIR
        )
        pairs = upload(list(appended), torch.uint8, own_flags.device)
        if on_gpu := terms.settings_on_gpu():
            consistency.mix_in(pairs, 0, on_gpu)
        flags = yield AllGather(group="world", sent=torch.cat([own_flags, pairs]), is_read_by_host=True)
        # The one wait of a step for the device: the greatest flags of all ranks.
        stop, *rest = flags.amax(dim=0).tolist()
        has_gradient, both = rest[: -2 * consistency.PAIR_BYTES], rest[-2 * consistency.PAIR_BYTES :]
        if stop == _REFUSED or consistency.differ(both[: consistency.PAIR_BYTES]):
            self._comparisons.invalidate()
            yield from terms.refuse_together(self._member, self._device)
        if any(both[consistency.PAIR_BYTES :]):
            self._comparisons.invalidate()
            yield from consistency.check_tensors_alike(where, self._common(), self._member, self._device, _REPAIR)
            self._comparisons.compared()
        return bool(stop), has_gradient

    def _common(self) -> dict[str, torch.Tensor]:
        """Return by name what must be equal on all ranks, once a state was loaded."""
        return {
            f"{name} of parameter {number}": segment.parameter if name == "values" else segment.state[name]
            for number, segment in enumerate(self._slices)
            for name in ("values", *self.averages)
        }

    def rules(self, group: dict[str, Any]) -> Mapping[str, tuple[bool, str]]:
        """Return by name whether a setting may be what it is, and what it must be."""
        if any(hasattr(parameter, "to_local") for parameter in group["params"]):
            raise BinsgdmError("OneBitAdam: sharded parameters (DTensor): must be whole on every rank, as in DDP")
        return {
            "lr": (is_finite_from_0(group["lr"]), "must be 0 or more, and finite"),
            "betas": (_are_betas(group["betas"]), "must be two numbers, both in [0, 1)"),
            "eps": (is_finite_from_0(group["eps"]) and group["eps"] > 0, "must be a number above 0, and finite"),
            "weight_decay": (is_decay(group["weight_decay"], group["lr"]), "must be 0 or more, and at most 1 / lr"),
            "variance_floor": (
                is_finite_from_0(group["variance_floor"]) and group["variance_floor"] <= 1,
                "must be a number in [0, 1]; give 0 for none, or 0.001",
            ),
            "scales_momenta": (isinstance(group["scales_momenta"], bool), "must be True or False"),
            "maximize": (isinstance(group["maximize"], bool), "must be True or False"),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load averages, stage and residuals; a resumed run goes on bit for bit.

        With state_dict["residuals"] set to None a frozen run goes on with residuals of 0, on any number of ranks.

        Raises:
            BinsgdmError: a state of another format, or of parameters of other shapes, or with values that no run has.
                Nothing is loaded then, and the other ranks are told.
        """
        super().load_state_dict(state_dict)

    def _load(self, state_dict: dict[str, Any]) -> None:
        _check_form(state_dict, self.param_groups)
        begins_anew = "residuals" in state_dict
        loaded = _without_residuals(state_dict) if begins_anew else state_dict
        saved = self._checked_state(loaded)
        self._take(loaded, saved)
        self._residuals = None
        self._comparisons.invalidate()
        for param_state, state in zip(self.param_states(), saved, strict=True):
            for name in NAMES.values():  # torch casts them to the parameter's dtype
                param_state.state.pop(name, None)
                if name in state:
                    param_state.state[name] = state[name].to(device=self._device, dtype=torch.float32, copy=True)
        has_compressed = self.param_groups[0]["step"] > self.param_groups[0]["dense_end"] > 0
        if has_compressed and not begins_anew and not _have_residuals(saved):
            warnings.warn(
                "OneBitAdam: a state of the compression stage without residuals: they begin with 0, and the run goes "
                "on, but not bit for bit; every rank must save and load its own state",
                stacklevel=frames_to_the_user(),
            )

    def _checked_state(self, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
        saved = super()._checked_state(state_dict)
        for group in state_dict["param_groups"]:
            self._check_settings(group | {"params": []})
            _check_stage(group["dense_steps"], group["topology"])
        _check_groups(state_dict["param_groups"])
        for number, state in enumerate(saved):
            _check_state(number, state, state_dict["param_groups"][0]["step"])
        if layout := state_dict["param_groups"][0]["residual_layout"]:
            check_residuals_kept(self._name, layout, saved, NAMES.values())
        return saved

    def __getstate__(self) -> dict[str, Any]:
        # A copy finds its residuals in its state.
        return {
            **super().__getstate__(),
            "_residuals": None,
            "_slices": [],
            "_seen": [],
            "_numels": [],
            "_passes": None,
            "_member": Member(),
            "_comparisons": consistency.ComparisonSchedule(),
        }

    def _compile(self) -> None:
        dtypes = frozenset(parameter.dtype for group in self.param_groups for parameter in group["params"])
        one_bit_adam_cpu.compile_for(dtypes)

    def _end_dense_stage_if_due(self, context: RankContext) -> Protocol:
        """End the dense stage if this was its last step; all ranks take the numbers of rank 0."""
        group = self.param_groups[0]
        if group["dense_steps"] != "variance":
            if context.step >= group["dense_steps"]:
                yield from self._end_dense_stage(context)
            return torch.empty(0)
        # 1 / (1 - beta2) in whole steps: how far apart the norms are that the criterion compares.
        if context.step % max(1, round(1 / (1 - group["betas"][1]))):
            return torch.empty(0)
        norms = yield AllGather(group="world", sent=variance_norm(self._slices), is_read_by_host=True)
        # Sums in fp64 may differ in the last bit between GPUs; all ranks must end the dense stage in the same step.
        norm, before = float(norms[0]), group["variance_norm"]
        if is_stable(norm, before):
            yield from self._end_dense_stage(context)
        self._set_all("variance_norm", norm)
        return norms

    def _end_dense_stage(self, context: RankContext) -> Protocol:
        """Freeze the variance, raised to its floor, and the scales of the momenta."""
        self._set_all("dense_end", context.step)
        if not any(group["variance_floor"] or group["scales_momenta"] for group in self.param_groups):
            return torch.empty(0)
        # As above: a floor or a scale that differs in its last bit would let parameters of ranks drift apart.
        means = yield AllGather(group="world", sent=frozen_means(self._slices), is_read_by_host=True)
        freeze(self._slices, means[0])
        return means

    def _residuals_here(self, context: RankContext) -> "KeptResiduals":
        """Return the residuals of this rank, made when first asked for; refuse those of another rank."""
        topology = self.param_groups[0]["topology"]
        nodes = "" if topology == "flat" else f", {context.ranks_per_node} a node"
        # A rank and its exchange: residuals of any other would be another rank's loss.
        here = f"rank {context.rank} of {context.world_size}, {topology}{nodes}"
        if self._residuals is not None and self._residuals.are_in_place and self._residuals.layout == here:
            return self._residuals
        states = [segment.state for segment in self._slices]
        saved = self.param_groups[0]["residual_layout"]
        if _have_residuals(states) and saved != here:
            raise BinsgdmError(f"OneBitAdam: residuals of {saved or 'nobody'}: this is {here}: {_OWN_STATE}")
        extents = _extents(padded_numel(sum(self._numels), context.world_size), context, topology)
        self._residuals = KeptResiduals(states, self._numels, extents, here, self._device)
        self._set_all("residual_layout", here)
        return self._residuals

    def _forget_residuals(self) -> None:
        self._residuals = None
        drop([param_state.state for param_state in self.param_states()], NAMES.values())
        self._set_all("residual_layout", "")


COMMON = (
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "variance_floor",
    "scales_momenta",
    "maximize",
    "dense_steps",
    "topology",
    "dense_end",
    "variance_norm",
    "step",
    "num_skipped",
)
"""Settings of each group that must be alike on all ranks."""
_REPAIR = "no rank has moved: load on all ranks the model and the state that belong together"
_BEGIN = {"dense_end": 0, "variance_norm": 0.0, "residual_layout": ""}


def finite_check_flags(
    has_gradient: Sequence[bool], are_small: bool | torch.Tensor, stop: Flag, device: torch.device
) -> torch.Tensor:
    """Return this rank's flags, whose maximum over all ranks decides the step.

    Args:
        has_gradient: of each parameter.
        are_small: whether gradients are finite and not too large.
        stop: whether a GradScaler says that the step must be skipped.
        device: where they are sent from.

    Returns:
        uint8 (1 + parameters): whether the step must be skipped, then which parameters have a gradient.
    """
    flags = upload([stop is True or are_small is False, *has_gradient], torch.uint8, device)
    # On the device: the host reads the flags of all ranks at once.
    if isinstance(are_small, torch.Tensor):
        flags[0] |= torch.logical_not(are_small)
    if isinstance(stop, torch.Tensor):
        flags[0] |= stop
    return flags


def _are_betas(value: object) -> bool:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    return is_pair and all(is_finite_from_0(beta) and beta < 1 for beta in value)  # type: ignore[attr-defined]


def _check_stage(dense_steps: object, topology: object) -> None:
    is_count = isinstance(dense_steps, int) and not isinstance(dense_steps, bool) and dense_steps >= 1
    if dense_steps != "variance" and not is_count:
        raise BinsgdmError(
            f"OneBitAdam: dense_steps: {dense_steps!r}: must be a whole number from 1 on (the variance comes from "
            "them), or 'variance'"
        )
    if topology not in ("flat", "hierarchical"):
        raise BinsgdmError(f"OneBitAdam: topology: {topology!r}: must be 'flat' or 'hierarchical'")


# Residuals, in the state of the parameters.

NAMES = {"worker": "worker_residual", "server": "server_residual"}
"""Of each residual in the state of a parameter."""
_OWN_STATE = (
    'load this rank\'s own state, or begin with residuals of 0: set state_dict["residuals"] = None on all ranks before '
    "loading"
)


def _extents(numel: int, context: RankContext, topology: Topology) -> dict[str, tuple[int, int]]:
    """Return by name the first element and the end of what a rank rounds of so many with padding."""
    slice_numel, first = numel, 0
    chunk = numel // context.world_size
    server = context.rank * chunk
    if topology == "hierarchical":
        slice_numel = numel // context.ranks_per_node
        first = context.local_rank * slice_numel
        server = first + context.node * chunk
    return {"worker": (first, first + slice_numel), "server": (server, server + chunk)}


class KeptResiduals(ResidualViews):
    """A rank's residuals; they go on with what the states of the parameters have, and else begin with 0.

    Attributes:
        layout: in words, whose they are.
        flat: what the exchange changes in place.
    """

    def __init__(
        self,
        states: Sequence[dict[str, Any]],
        numels: Sequence[int],
        extents: Mapping[str, tuple[int, int]],
        layout: str,
        device: torch.device,
    ) -> None:
        self.layout = layout
        self.flat = MomentumResiduals(**{name: zeros(end - first, device) for name, (first, end) in extents.items()})
        super().__init__(states, _views(self.flat, extents, numels), NAMES.values())
        self.check(states)
        self.take_over()

    def check_fits(self, view: View, residual: Any) -> None:
        """Refuse a residual of another form, or that is not finite."""
        _check_residual(view.number, view.name, residual, view.values.numel())


def _views(flat: MomentumResiduals, extents: Mapping[str, tuple[int, int]], numels: Sequence[int]) -> list[View]:
    views = []
    for name, (first, _) in extents.items():
        values, start = getattr(flat, name), 0
        for number, numel in enumerate(numels):
            part = values[max(start - first, 0) : max(start + numel - first, 0)]
            views.append(View(number, NAMES[name], part))
            start += numel
    return views


def _check_residual(number: int, name: str, residual: Any, numel: int | None = None) -> None:
    """Refuse what cannot be a residual of a parameter: no flat fp32 tensor of this size, or not finite."""
    where = f"OneBitAdam: parameter {number}: {name}"
    check_flat(where, residual, torch.float32, numel, _OWN_STATE)
    if not residual.isfinite().all():
        raise BinsgdmError(f"{where}: a value that is not finite: must be; {_OWN_STATE}")


# Saved states that no run leaves behind are refused.

_WHERE = "load_state_dict"
_RELOAD = "load what state_dict() returned, undamaged"


def _check_form(state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what is not built like the state of an optimizer with these groups."""
    saved_state.check_form(state_dict, [len(group["params"]) for group in groups])
    for number, group in enumerate(state_dict["param_groups"]):
        if missing := sorted({*COMMON, "residual_layout", "format"} - set(group)):
            raise BinsgdmError(f"{_WHERE}: group {number} without {', '.join(missing)}: must have them; {_RELOAD}")
        if type(group["format"]) is not int:
            raise BinsgdmError(f"{_WHERE}: group {number}: format: {group['format']!r}: must be a number; {_RELOAD}")
        if not all(type(number) in (int, str) for number in group["params"]):
            raise BinsgdmError(f"{_WHERE}: group {number}: params: must be a list of numbers; {_RELOAD}")
    for number, state in state_dict["state"].items():
        if not isinstance(state, Mapping):
            kind = type(state).__name__
            raise BinsgdmError(f"{_WHERE}: parameter {number}: a {kind}: must be a dictionary; {_RELOAD}")
        for name in set(AVERAGES) & set(state):
            check_average(f"{_WHERE}: parameter {number}", name, state[name], getattr(state[name], "shape", ()))


def _check_groups(groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuse groups with values that no run has."""
    first = groups[0]
    for number, group in enumerate(groups):
        where = f"{_WHERE}: group {number}"
        for name in ("step", "dense_end", "num_skipped"):
            check_count(f"{name} of group {number}", group.get(name))
            if group[name] != first[name]:
                raise BinsgdmError(f"{where}: {name}: {group[name]!r}: must be group 0's {first[name]!r}; {_RELOAD}")
        if not is_finite_from_0(group.get("variance_norm")):
            norm = group.get("variance_norm")
            raise BinsgdmError(f"{where}: variance_norm: {norm!r}: must be 0 or more; {_RELOAD}")
        if group["dense_end"] > group["step"]:
            raise BinsgdmError(
                f"{where}: dense_end: {group['dense_end']}: must be at most the step, {group['step']}; {_RELOAD}"
            )


def _check_state(number: int, state: Mapping[str, Any], step: int) -> None:
    """Refuse the state of a parameter, with averages of the right shapes, that no run of so many steps has."""
    where = f"{_WHERE}: parameter {number}"
    for name in ("step", "variance_step"):
        check_count(f"{name} of parameter {number}", state.get(name))
        if state[name] > step:
            raise BinsgdmError(f"{where}: {name}: {state[name]}: must be at most the step, {step}; {_RELOAD}")
    scale: Any = state.get("momentum_scale")
    if not is_finite_from_0(scale) or not scale > 0:
        raise BinsgdmError(f"{where}: momentum_scale: {scale!r}: must be above 0, and finite; {_RELOAD}")
    if (state["exp_avg_sq"] < 0).any():
        raise BinsgdmError(f"{where}: exp_avg_sq: a value below 0: must be 0 or more; {_RELOAD}")
    for name in NAMES.values():
        if name in state:
            _check_residual(number, name, state[name])


def _without_residuals(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that is to go on with residuals of 0."""
    if (kept := state_dict["residuals"]) is not None:
        raise BinsgdmError(
            f"{_WHERE}: residuals of a state: a {type(kept).__name__}: must be None, to begin with residuals of 0, or "
            "left out"
        )
    states = {
        number: {name: value for name, value in state.items() if name not in NAMES.values()}
        for number, state in state_dict["state"].items()
    }
    groups = [group | {"residual_layout": ""} for group in state_dict["param_groups"]]
    return {**state_dict, "state": states, "param_groups": groups}


def _have_residuals(states: Sequence[Mapping[str, Any]]) -> bool:
    return any(name in state for state in states for name in NAMES.values())
