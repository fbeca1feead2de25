"""1-bit Adam as a torch.optim.Optimizer, for gradients that stay local to their rank."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import AllGather, Member, Protocol, RankContext
from binsgdm.optimizers.base import Flag, OneBitOptimizer, Params, is_finite_from_0
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
    is_stable,
    refusal_flags,
    variance_norm,
    variance_period,
)
from binsgdm.optimizers.one_bit_momentum import MomentumResiduals, Topology, padded_numel
from binsgdm.systems.aggregation import all_reduce_mean


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
    averages = ("exp_avg", "exp_avg_sq")
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
    ) -> None:
        _check_stage(dense_steps, topology, scales_momenta)
        self._residuals: MomentumResiduals | None = None
        self._residuals_belong_to: dict[str, Any] = {}
        self._member = Member()
        hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "variance_floor": variance_floor}
        stage = {"dense_steps": dense_steps, "topology": topology, "dense_end": 0, "variance_norm": 0.0}
        super().__init__(params, hyper | stage | {"scales_momenta": scales_momenta})

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
        try:
            residuals = None if self.is_dense else self._checked_residuals(context)
            gradient, expected = self._gradient(flat_slices)
        except BinsgdmError:
            # Take part in the first collective before raising: the other ranks are already waiting in it.
            yield AllGather(group="world", sent=refusal_flags(flat_slices), is_read_by_host=True)
            raise
        mine = finite_check_flags(gradient, flat_slices, stop=expected)
        flags = yield AllGather(group="world", sent=mine, is_read_by_host=True)
        # The one wait of a step for the device: the greatest flags of all ranks.
        stop, *has_gradient = flags.amax(dim=0).tolist()
        if stop == REFUSED:
            raise _refused(flags, context.step)
        if stop:
            self._note_skipped(context.step, expected=expected)
            return torch.tensor(False, device="cpu")
        moving = [one for one, has in zip(flat_slices, has_gradient, strict=True) if has]
        if residuals is None:
            mean = yield from all_reduce_mean(gradient, context)
            dense_update(moving, mean)
        else:
            yield from exchange_and_update(moving, gradient, residuals, context, self.param_groups[0]["topology"])
        self._set_all("step", context.step)
        if residuals is None:
            yield from self._end_dense_stage_if_due(context)
        return torch.tensor(True, device="cpu")

    def rules(self, group: dict[str, Any]) -> Mapping[str, tuple[bool, str]]:
        """Return by name whether a setting may be what it is, and what it must be."""
        if any(hasattr(parameter, "to_local") for parameter in group["params"]):
            raise BinsgdmError("OneBitAdam: sharded parameters (DTensor): must be whole on every rank, as in DDP")
        beta1, beta2 = group["betas"]
        return {
            "lr": (is_finite_from_0(group["lr"]), "must be 0 or more, and finite"),
            "betas": (0 <= beta1 < 1 and 0 <= beta2 < 1, "must both be in [0, 1)"),
            "eps": (0 < group["eps"] < math.inf, "must be above 0, and finite"),
            "weight_decay": (is_finite_from_0(group["weight_decay"]), "must be 0 or more, and finite"),
            "variance_floor": (
                is_finite_from_0(group["variance_floor"]) and group["variance_floor"] <= 1,
                "must be in [0, 1]; give 0 for none, or 0.001",
            ),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with this rank's residuals: every rank must save and load its own."""
        found = super().state_dict()
        kept = self._residuals
        tensors = None if kept is None else {"worker": kept.worker, "server": kept.server}
        found["residuals"] = None if tensors is None else tensors | self._residuals_belong_to
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load averages, stage and residuals; a resumed run goes on bit for bit.

        With state_dict["residuals"] set to None a frozen run goes on with residuals of 0, on any number of ranks.

        Raises:
            BinsgdmError: a state of another format, or of parameters of other shapes.
        """
        # Former versions had neither of these settings, which is to have none.
        former = {"variance_floor": 0.0, "scales_momenta": False}
        groups = [former | group for group in state_dict.get("param_groups", [{}])]
        super().load_state_dict(state_dict | {"param_groups": groups})
        for param_state in self.param_states():
            param_state.state.setdefault("momentum_scale", 1.0)
        residuals = state_dict.get("residuals")
        self._residuals = None if residuals is None else self._load_residuals(residuals)

    def __getstate__(self) -> dict[str, Any]:
        ours = {"_residuals": self._residuals, "_residuals_belong_to": self._residuals_belong_to, "_member": Member()}
        return {**super().__getstate__(), **ours}

    def _gradient(self, flat_slices: Sequence[FlatSlice]) -> tuple[torch.Tensor, Flag]:
        """Return the flat gradient, unscaled, and whether a GradScaler saw that it is not finite."""
        gradient = flat_gradient(flat_slices, self._member.world_size)
        if (scale := getattr(self, "grad_scale", None)) is not None:
            gradient /= scale.to(gradient.device)
        return gradient, self._scaler_found_inf()

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

    def _checked_residuals(self, context: RankContext) -> MomentumResiduals:
        """Return the residuals of this rank, made when first asked for; refuse those of another rank."""
        if self._residuals is None:
            numel = padded_numel(
                sum(param_state.parameter.numel() for param_state in self.param_states()), context.world_size
            )
            device = self.param_groups[0]["params"][0].device
            self._residuals = MomentumResiduals.zeros(numel, context, self.param_groups[0]["topology"], device)
            self._residuals_belong_to = self._residuals_owner()
        if self._residuals_belong_to != self._residuals_owner():
            raise BinsgdmError(
                f"OneBitAdam: residuals of {self._residuals_belong_to}: this is {self._residuals_owner()}: load this "
                'rank\'s own state, or begin with residuals of 0: set state_dict["residuals"] = None on all ranks '
                "before loading"
            )
        return self._residuals

    def _residuals_owner(self) -> dict[str, Any]:
        """Return the rank and the layout that residuals fit; with any other they would be another rank's loss."""
        member = self._member
        names = ("rank", "world_size", "ranks_per_node")
        return {name: getattr(member, name) for name in names} | {"topology": self.param_groups[0]["topology"]}

    def _load_residuals(self, saved: dict[str, Any]) -> MomentumResiduals:
        """Return a copy of saved residuals, and note whose they are."""
        device = self.param_groups[0]["params"][0].device
        tensors = {name: saved[name].to(device=device, dtype=torch.float32, copy=True) for name in ("worker", "server")}
        self._residuals_belong_to = {name: value for name, value in saved.items() if name not in tensors}
        return MomentumResiduals(**tensors)


def _refused(flags: torch.Tensor, step: int) -> BinsgdmError:
    ranks = [rank for rank, flag in enumerate(flags[:, 0].tolist()) if flag == REFUSED]
    return BinsgdmError(
        f"OneBitAdam: step {step}: ranks {ranks} refused: all must take a step together, and none has moved; read "
        "there why"
    )


def _check_stage(dense_steps: object, topology: object, scales_momenta: object) -> None:
    is_count = isinstance(dense_steps, int) and not isinstance(dense_steps, bool) and dense_steps >= 1
    if dense_steps != "variance" and not is_count:
        raise BinsgdmError(
            f"OneBitAdam: dense_steps: {dense_steps!r}: must be a whole number from 1 on (the variance comes from "
            "them), or 'variance'"
        )
    if topology not in ("flat", "hierarchical"):
        raise BinsgdmError(f"OneBitAdam: topology: {topology!r}: must be 'flat' or 'hierarchical'")
    if scales_momenta not in (True, False):
        raise BinsgdmError(f"OneBitAdam: scales_momenta: {scales_momenta!r}: must be True or False")
