"""1-bit Adam as a torch.optim.Optimizer, for gradients that stay local to their rank."""

import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal

import torch

from binsgdm.comm import AllGather, Member, Message, Protocol, RankContext, consistency
from binsgdm.compressors.aggregation import all_reduce_mean
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.host_tensors import upload
from binsgdm.optimizers import kept_residuals, one_bit_adam_cpu, saved_adam
from binsgdm.optimizers.base import (
    OneBitOptimizer,
    Params,
    check_residuals_kept,
    frames_to_the_user,
    is_decay,
    is_finite_from_0,
)
from binsgdm.optimizers.kept_residuals import KeptResiduals, ResidualOwner
from binsgdm.optimizers.one_bit_adam_cpu import CpuPasses
from binsgdm.optimizers.one_bit_adam_update import (
    REFUSED,
    FlatSlice,
    dense_update,
    exchange_and_update,
    finite_check_flags,
    flat_gradient,
    flat_slices_of,
    freeze,
    frozen_means,
    is_small,
    is_stable,
    refusal_flags,
    variance_norm,
    variance_period,
)
from binsgdm.optimizers.one_bit_momentum import Topology
from binsgdm.optimizers.step_settings import Terms


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
    averages = saved_adam.AVERAGES
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
        self._passes: CpuPasses | None = None
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
        if self.param_groups and (self.param_groups[0].get("step") or self._member.world_size > 1):
            raise BinsgdmError("OneBitAdam: add_param_group after the first step; add all parameters before")
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            self.state[parameter] |= {"step": 0, "variance_step": 0, "momentum_scale": 1.0}

    @torch.no_grad()
    def step_protocol(self) -> Protocol:
        """Take one step as a protocol; see `OneBitOptimizer.step_protocol`."""
        self.check_attached()
        flat_slices = list(flat_slices_of(self.param_states()))
        context = self.rank_context()
        refused = None
        try:
            for group in self.param_groups:
                self._check_settings(group)
            self._check_averages()
            residuals = None if self.is_dense else self._residuals_here()
            gradient, are_small = self._gradient(flat_slices)
            expected = self._scaler_found_inf()
            mine = finite_check_flags(flat_slices, stop=expected, are_small=are_small)
        except BinsgdmError as error:
            if self._member.world_size == 1:
                raise
            # Take part in the first collective before raising: the other ranks are already waiting in it.
            refused, mine = error, refusal_flags(flat_slices)
        stop, has_gradient = yield from self._agree(mine, context, refused)
        if stop:
            self._note_skipped(context.step, expected=expected)
            return torch.tensor(False, device="cpu")
        moving = [one for one, has in zip(flat_slices, has_gradient, strict=True) if has]
        topology = self.param_groups[0]["topology"]
        if self._passes is not None and residuals is None:
            yield from self._passes.dense_step(flat_slices, moving, gradient, context)
        elif self._passes is not None and residuals is not None:
            yield from self._passes.compressed_step(flat_slices, moving, residuals.flat, context, topology)
        elif gradient is not None and residuals is None:
            mean = yield from all_reduce_mean(gradient, context)
            dense_update(moving, mean)
        elif gradient is not None and residuals is not None:
            yield from exchange_and_update(moving, gradient, residuals.flat, context, topology)
        self._comparisons.note(one.parameter for one in self.param_states())
        self._set_all("step", context.step)
        if residuals is None:
            yield from self._end_dense_stage_if_due(context)
        return torch.tensor(True, device="cpu")

    def _check_averages(self) -> None:
        """Refuse a state that was emptied: what is left of it, such as the step, would not fit new averages."""
        for place, one in enumerate(self.param_states()):
            if not one.state.keys() >= {*saved_adam.AVERAGES}:
                raise BinsgdmError(
                    f"OneBitAdam: parameter {place}: a state without {' and '.join(saved_adam.AVERAGES)}: must keep "
                    "them; load a state_dict, or make a new optimizer"
                )

    def _agree(
        self, mine: torch.Tensor, context: RankContext, refused: BinsgdmError | None
    ) -> Generator[Message, torch.Tensor, tuple[bool, Sequence[int]]]:
        """Return whether the step must not count, and which parameters had a gradient on some rank.

        Raises:
            BinsgdmError: on all ranks, where one cannot take the step, or ranks differ in what must be alike.
        """
        if self._member.world_size == 1:
            stop, *has_gradient = mine.tolist()
            return bool(stop), has_gradient
        where = f"OneBitAdam: step {context.step}"
        terms = Terms(where=where, groups=self.param_groups, names=COMMON, refused=refused)
        appended = terms.pair() + (
            consistency.IS_NEW
            if self._comparisons.is_due(one.parameter for one in self.param_states())
            else consistency.NO_PAIR
        )
        pairs = upload(list(appended), torch.uint8, mine.device)
        if on_gpu := terms.settings_on_gpu():
            consistency.mix_in(pairs, 0, on_gpu)
        flags = yield AllGather(group="world", sent=torch.cat([mine, pairs]), is_read_by_host=True)
        # The one wait of a step for the device: the greatest flags of all ranks.
        stop, *rest = flags.amax(dim=0).tolist()
        has_gradient, both = rest[: -2 * consistency.PAIR_BYTES], rest[-2 * consistency.PAIR_BYTES :]
        if stop == REFUSED or consistency.differ(both[: consistency.PAIR_BYTES]):
            self._comparisons.expect()
            yield from terms.refuse_together(self._member, self._device)
        if any(both[consistency.PAIR_BYTES :]):
            self._comparisons.expect()
            yield from consistency.check_tensors_alike(where, self._common(), self._member, self._device, _REPAIR)
            self._comparisons.compared()
        return bool(stop), has_gradient

    def _common(self) -> dict[str, torch.Tensor]:
        """Return by name what must be equal on all ranks, once a state was loaded."""
        return {
            f"{name} of parameter {number}": one.parameter if name == "values" else one.state[name]
            for number, one in enumerate(self.param_states())
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
        given = _with_residuals(state_dict, [one.parameter.numel() for one in self.param_states()])
        saved = self._checked_state(given)
        super()._load(given)
        self._residuals = None
        self._comparisons.expect()
        for param_state, state in zip(self.param_states(), saved, strict=True):
            param_state.state.setdefault("momentum_scale", 1.0)
            for name in kept_residuals.NAMES.values():  # torch casts them to the parameter's dtype
                param_state.state.pop(name, None)
                if name in state:
                    param_state.state[name] = state[name].to(device=self._device, dtype=torch.float32, copy=True)
        has_compressed = self.param_groups[0]["step"] > self.param_groups[0]["dense_end"] > 0
        if has_compressed and not kept_residuals.have(saved) and "residuals" not in state_dict:
            warnings.warn(
                "OneBitAdam: a state of the compression stage without residuals: they begin with 0, and the run goes "
                "on, but not bit for bit; every rank must save and load its own state",
                stacklevel=frames_to_the_user(),
            )

    def _checked_state(self, state_dict: dict[str, Any]) -> list[dict[str, Any]]:
        saved_adam.check_form(state_dict, self.param_groups)
        saved = super()._checked_state(state_dict)
        for group in state_dict["param_groups"]:
            self._check_settings(group | {"params": []})
            _check_stage(group["dense_steps"], group["topology"])
        saved_adam.check_values(state_dict["param_groups"], saved)
        if layout := state_dict["param_groups"][0]["residual_layout"]:
            check_residuals_kept(self._name, layout, saved, kept_residuals.NAMES.values())
        return saved

    def __getstate__(self) -> dict[str, Any]:
        # A copy finds its residuals in its state.
        return {
            **super().__getstate__(),
            "_residuals": None,
            "_passes": None,
            "_member": Member(),
            "_comparisons": consistency.ComparisonSchedule(),
        }

    def _gradient(self, flat_slices: Sequence[FlatSlice]) -> tuple[torch.Tensor | None, bool | torch.Tensor]:
        """Return the flat gradient, unscaled, and whether it is finite and small enough.

        None where compiled passes read each gradient in its place.
        """
        scale, world_size = getattr(self, "grad_scale", None), self._member.world_size
        if not one_bit_adam_cpu.is_used_on(self._device):
            self._passes = None
            gradient = flat_gradient(flat_slices, world_size)
        else:
            self._compile()
            self._passes = self._passes or CpuPasses()
            is_sent = self.is_dense and world_size > 1
            is_changed = scale is not None or any(group["maximize"] for group in self.param_groups)
            copied = self._passes.read_gradients(flat_slices, world_size, are_copied=is_sent or is_changed)
            if copied is None:
                return None, self._passes.are_small
            gradient = copied
        if scale is not None:
            gradient /= scale.to(gradient.device)
        for one in flat_slices:
            if one.param_state.group["maximize"]:
                gradient[one.start : one.end].neg_()
        if self._passes is not None and scale is None:
            return gradient, self._passes.are_small
        return gradient, is_small(gradient)

    def _compile(self) -> None:
        dtypes = frozenset(one.dtype for group in self.param_groups for one in group["params"])
        one_bit_adam_cpu.compile_for(dtypes)

    def _end_dense_stage_if_due(self, context: RankContext) -> Protocol:
        """End the dense stage if this was its last step; all ranks take the numbers of rank 0."""
        group = self.param_groups[0]
        if group["dense_steps"] != "variance":
            if context.step >= group["dense_steps"]:
                yield from self._end_dense_stage(context)
            return torch.empty(0)
        if context.step % variance_period(group["betas"][1]):
            return torch.empty(0)
        norms = yield AllGather(group="world", sent=variance_norm(self.param_states()), is_read_by_host=True)
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
        means = yield AllGather(group="world", sent=frozen_means(self.param_states()), is_read_by_host=True)
        freeze(self.param_states(), means[0])
        return means

    def _residuals_here(self) -> KeptResiduals:
        """Return the residuals of this rank, made when first asked for; refuse those of another rank."""
        owner = ResidualOwner.of(self._member, self.param_groups[0]["topology"])
        if self._residuals is not None and self._residuals.are_in_place and self._residuals.owner == owner:
            return self._residuals
        param_states = self.param_states()
        states, numels = [one.state for one in param_states], [one.parameter.numel() for one in param_states]
        found = self.param_groups[0]["residual_layout"]
        if kept_residuals.have(states) and found != owner.text:
            raise kept_residuals.foreign(found, owner)
        self._residuals = KeptResiduals(states, numels, owner, self._device)
        self._set_all("residual_layout", owner.text)
        return self._residuals

    def _forget_residuals(self) -> None:
        self._residuals = None
        kept_residuals.drop([one.state for one in self.param_states()])
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
_FORMER = {"variance_floor": 0.0, "scales_momenta": False, "maximize": False, "num_skipped": 0} | _BEGIN
"""What a state of a former version, which had none of these settings, stands for."""


def _with_residuals(state_dict: dict[str, Any], numels: Sequence[int]) -> dict[str, Any]:
    """Return a state with residuals where they are kept now; those of former versions lie beside the state."""
    groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
    states = state_dict.get("state") if isinstance(state_dict, Mapping) else None
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        return state_dict  # which the base refuses
    groups = [_FORMER | group for group in groups]
    if not isinstance(states, Mapping) or not all(isinstance(state, Mapping) for state in states.values()):
        return {**state_dict, "param_groups": groups}
    states = {number: dict(state) for number, state in states.items()}
    if "residuals" in state_dict:
        kept_residuals.drop(list(states.values()))
        layout = ""
        if state_dict["residuals"] is not None:
            layout, theirs = kept_residuals.of_former_version(state_dict["residuals"], numels)
            numbers = [number for group in groups for number in group.get("params", ())]
            for number, residuals in zip(numbers, theirs, strict=False):
                states.setdefault(number, {}).update(residuals)
        groups = [group | {"residual_layout": layout} for group in groups]
    return {**state_dict, "state": states, "param_groups": groups}


def _are_betas(value: object) -> bool:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    return is_pair and all(is_finite_from_0(one) and one < 1 for one in value)  # type: ignore[attr-defined]


def _check_stage(dense_steps: object, topology: object) -> None:
    is_count = isinstance(dense_steps, int) and not isinstance(dense_steps, bool) and dense_steps >= 1
    if dense_steps != "variance" and not is_count:
        raise BinsgdmError(
            f"OneBitAdam: dense_steps: {dense_steps!r}: must be a whole number from 1 on (the variance comes from "
            "them), or 'variance'"
        )
    if topology not in ("flat", "hierarchical"):
        raise BinsgdmError(f"OneBitAdam: topology: {topology!r}: must be 'flat' or 'hierarchical'")
