"""BinSGDM as a torch.optim.Optimizer."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch

from binsgdm.comm import Member, Protocol
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import NAMES as KERNELS
from binsgdm.kernels import Kernels, select
from binsgdm.optimizers.agreement import is_on_gpu
from binsgdm.optimizers.base import (
    Flag,
    OneBitOptimizer,
    Params,
    ParamState,
    check_residuals_kept,
    frames_to_the_user,
    is_decay,
    is_finite_from_0,
)
from binsgdm.optimizers.residuals import NAMES, check_residual, drop
from binsgdm.optimizers.saved_state import check_magnitudes, check_text
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import (
    FORMER,
    NEEDED,
    Rounding,
    is_gain,
    is_shaped,
    ratio_limit,
    take_momentum,
)


class BinSGDM(OneBitOptimizer):
    """Move every parameter by lr, up or down, more often against its gradient the steadier that is.

        m = beta m + (1 - beta) g        b = beta_b b + (1 - beta_b) |g|
        u = (beta m + (1 - beta) g) / b  corrected for the bias of both; m / b without `nesterov`
        x = x - lr Q(gain u)

    Q(u), of u clipped to [-1, 1], is +1 or -1. With rounding="shaped" it is the sign of u plus a residual, what
    rounding has lost so far: so the sum of all Q follows the sum of all u within a bound. Nothing is drawn after the
    start. With rounding="random", as in the paper, Q is +1 with probability (1 + u) / 2, and the sum of the draws
    wanders off. There is no square root; 0 / 0 counts as 0. With `binsgdm.attach` all ranks agree on the signs with one
    bit an element between nodes; the mean of the nodes' signs is rounded again, in the same way. Without it, the
    optimizer works alone.

    A step in which any gradient of any rank is not finite moves no parameter and is not counted, on all ranks alike;
    `num_skipped` counts such steps. The averages of an element whose gradient is not finite stay as they were, those of
    the others have taken in their gradients. A parameter that has no gradient on any rank, or does not require one, is
    left alone. But in a parameter that has one, every element moves by lr in every step: one whose gradient is 0 (a row
    of an embedding that no sample used, a masked weight) soon goes back and forth, as m falls faster than b. With one
    decay for both it goes on with its last m / b; if it never had any and signs are drawn, at random. Residuals go on
    in every step, also in one that does not count.
    A bf16 or fp16 parameter is rounded to nearest, so a move below half its last digit is lost: keep them in fp32.
    Gradients stay local, so `clip_grad_norm_` clips each rank's own; since u is a ratio, clipping only changes how
    steps weigh against each other. Works with gradient accumulation, lr schedulers and `torch.amp.GradScaler`.

    Averages and residuals are each rank's own, so every rank must save and load its own state; a resumed run then goes
    on bit for bit. Residuals of another rank, number of ranks, topology or bucket_cap_mb are drawn anew, with a
    warning; so is a warning told of averages of another rank, which fit less well for some steps. Refused are slices of
    averages of another rank, and a state of the other rounding.

    On a GPU the host waits once a step, for the flags that say whether it counts (and for lr, where that is a tensor
    there). So a step cannot be captured in a CUDA graph, and refuses; `torch.compile` leaves it as it is.

    Args:
        params: parameters, or groups with their own lr, beta, beta_b, nesterov, weight_decay or maximize.
        lr: by how much an element moves in a step, >= 0. Start from 0.7 times Adam's, with Adam's warm-up.
        beta: decay of m, in [0, 1). Schedulers of momentum (OneCycleLR, CyclicLR) move it.
        beta_b: decay of b, in [0, 1); None: that of m. With another one m / b is corrected for the bias that both have
            after this optimizer's steps. Below beta, an element moves on long after its gradients have ended.
        nesterov: look ahead: (beta m + (1 - beta) g) / b in place of m / b.
        weight_decay: decoupled, as in AdamW, >= 0.
        maximize: go up instead of down.
        seed: of all draws; must be the same on all ranks. With the step, the rank and the element it fixes every draw.
        rounding: "shaped", which takes 2 bytes a parameter for residuals (less where ranks share them), or "random".
        gain: above 0; by how much m / b is multiplied before it is clipped and rounded. Above 1 it makes signs surer.
            None: the square root of the number of ranks (of nodes, where gradients are averaged inside them), at least
            2.
        kernels: "reference", "cpu" or "triton"; default the fastest for the device (or BINSGDM_KERNELS).

    Raises:
        BinsgdmError: a value out of range; groups that differ in seed, rounding or gain.

    Source: Birder (NeurIPS 2023), algorithm 1. Differs: no AMSGrad-style maximum (not used in practice either). This
    project's own: rounding="shaped", gain, beta_b and nesterov. `BinSGDM(..., **binsgdm.PAPER)` is the paper's form.
    """

    title = "BinSGDM"
    source = "Birder, NeurIPS 2023"
    wire_format = "1 bit per element between nodes, both ways; inside a node fp32, bf16 or 1 bit"
    averages = ("m", "b")

    def __init__(  # noqa: PLR0913 - as torch's optimizers take theirs
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        *,
        beta: float = 0.9,
        beta_b: float | None = 0.99,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        maximize: bool = False,
        seed: int = 0,
        rounding: Rounding = "shaped",
        gain: float | None = None,
        kernels: str | None = None,
    ) -> None:
        momenta = {"beta": beta, "beta_b": beta_b, "nesterov": nesterov}
        defaults = {"lr": lr, **momenta, "weight_decay": weight_decay, "maximize": maximize}
        of_all = {"seed": seed, "rounding": rounding, "gain": gain, "slices": "", "saved_by": "", "residual_layout": ""}
        self._kernels_name = kernels
        self._session: Session | None = None
        self._states: list[ParamState] = []  # of the session
        if kernels is not None and kernels not in KERNELS:
            known = ", ".join(map(repr, KERNELS))
            raise BinsgdmError(f"BinSGDM: kernels: {shown(kernels)}: must be one of {known}, or None for the fastest")
        super().__init__(params, defaults | of_all)
        # Schedulers that move momentum ask here whether there is any; see `take_momentum`.
        self.defaults["momentum"] = beta

    @property
    def session(self) -> Session:
        """How this optimizer takes its steps; alone until `binsgdm.attach`."""
        if self._session is None:
            session = Session()
            self._reset_session(session)
            self._session = session
        return self._session

    @property
    def member(self) -> Member:
        """Which of the ranks this is, alone until it is attached, and who carries its messages."""
        return self._session.member if self._session is not None else Member()

    def join(self, session: Session, slices: str = "") -> None:
        """Take steps in a session with other ranks (`binsgdm.attach` calls it).

        Args:
            session: takes the steps from here on.
            slices: in words, which part of the averages each rank keeps, if not all; refused if the averages that there
                are were made with others.
        """
        # Before the first step all averages are 0, so any slices fit.
        if self.param_groups[0]["step"]:
            _check_slices(self.param_groups[0]["slices"], slices, "attach")
            self._check_owner(self.param_groups[0], session.member, "attach")
        self._reset_session(session)  # first, as it may refuse the state
        self._set_all("slices", slices)
        if self._session is not None:
            self._session.close()  # whose hooks would go on sending
        self._session = session
        self._must_attach = False

    def leave(self) -> None:
        """Take steps alone again (`binsgdm.detach` calls it)."""
        if self._session is not None:
            self._session.close()
        self._session = None  # made anew when it is needed

    def check_attached(self) -> None:
        """Refuse a copy that its original's ranks know nothing of, and to go on alone with slices of averages."""
        super().check_attached()
        first = self.param_groups[0]
        if first["step"] and self.member.world_size == 1 and self.member.run is None:
            _check_slices(first["slices"], "", "BinSGDM")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, checked, before the optimizer joins others; they start with empty averages."""
        if self.param_groups and self.member.world_size > 1:
            raise BinsgdmError(
                "BinSGDM: add_param_group: after attach: the other ranks would not know of it; call "
                "binsgdm.detach(optimizer), add the group, and attach anew, on all ranks"
            )
        momentum = self.defaults.pop("momentum", None)  # which no group has on its own
        try:
            super().add_param_group(param_group)
        finally:
            if momentum is not None:
                self.defaults["momentum"] = momentum
        if self._session is not None:
            self._reset_session(self._session)
        else:  # after detach, say: what ranks round of a bucket depends on all parameters, so it is drawn anew
            self._set_all("residual_layout", "")

    @torch.no_grad()
    def step_protocol(self) -> Protocol:
        """Take one step as a protocol; see `OneBitOptimizer.step_protocol`."""
        self.check_attached()
        step, found_inf = self.coming_step, self._scaler_saw_inf()
        session, refused = self.session, None
        # First, since a scheduler may have moved momentum since the last step, and settings are checked next.
        take_momentum(self.param_groups)
        try:
            self._check_live_settings(session)
            self._check_states()
            self._unscale(found_inf, session)
        except BinsgdmError as error:
            if session.all_that_step.world_size == 1:
                raise
            refused = error  # a session takes part nevertheless, so that no other rank waits
        has_moved = yield from session.step_protocol(step, skip=found_inf, refused=refused)
        if has_moved:
            self._set_all("step", step)
        else:
            self._note_skipped(step, expected=found_inf)
        return has_moved

    def _unscale(self, found_inf: Flag, session: Session) -> None:
        """Divide the gradients by the scale of a GradScaler that leaves that to the optimizer.

        Raises:
            BinsgdmError: it is too late for that, or fp16 has too few digits for it.
        """
        scale: torch.Tensor | None = getattr(self, "grad_scale", None)
        if scale is None and found_inf is False:
            return
        gradients = [
            parameter.grad for group in self.param_groups for parameter in group["params"] if parameter.grad is not None
        ]
        # Signs do not depend on the scale of a gradient, but m and b mix this step's gradient with those of other
        # scales.
        if scale is not None and session.starts_in_backward:
            raise BinsgdmError(
                "BinSGDM: a GradScaler with overlap=True: scaled gradients were already sent; attach with overlap=False"
            )
        if scale is not None and any(gradient.dtype == torch.float16 for gradient in gradients):
            raise BinsgdmError(
                "BinSGDM: fp16 gradients with a GradScaler: they would underflow when unscaled; keep the parameters in "
                "fp32 and use autocast, as torch requires"
            )
        if isinstance(found_inf, torch.Tensor):
            # A step that will not count leaves the averages as they were, which the host cannot tell the kernels here:
            # so its gradients become NaN, of which they take in nothing. In backward the averages have taken them in
            # already, and those of a node see an infinity of this rank anyway.
            keeps_averages = not session.starts_in_backward and session.scheme.average == "updates"
            _unscale_on_device(gradients, scale, found_inf, keeps_averages=keeps_averages)
        elif gradients and scale is not None:
            torch._foreach_mul_(gradients, 1.0 / float(scale))

    def _check_live_settings(self, session: Session) -> None:
        """Refuse what a script has put into a group since the last step and no step can follow."""
        made_for = "random" if session.worker.residuals is None else "shaped"
        for group in self.param_groups:
            # But for tensors on a GPU, for which the host would wait.
            self._check_settings({name: 0.0 if is_on_gpu(value) else value for name, value in group.items()})
            _check_alike(group, self.param_groups[0])
            if group["rounding"] != made_for:
                raise BinsgdmError(
                    f"BinSGDM: rounding of a group: {group['rounding']!r}: was {made_for!r} when the optimizer was "
                    "made, and cannot change; make a new optimizer"
                )

    def _check_states(self) -> None:
        """Refuse a state that was emptied: steps go on with the averages that were there, which no save would hold."""
        for number, param_state in enumerate(self._states):
            if (
                self.state.get(param_state.parameter) is not param_state.state
                or "m" not in param_state.state
                or "b" not in param_state.state
            ):
                raise BinsgdmError(
                    f"BinSGDM: parameter {number}: a state that was emptied or replaced: must be as it was made; load "
                    "a state_dict, or make a new optimizer"
                )

    def kernels(self) -> Kernels:
        """Return the kernels for the parameters' device."""
        return select(self._kernels_name, self.param_groups[0]["params"][0].device)

    def rules(self, group: dict[str, Any]) -> Mapping[str, tuple[bool, str]]:
        """Return by name whether a setting may be what it is, and what it must be."""
        seed, rounding, beta, beta_b = group["seed"], group["rounding"], group["beta"], group["beta_b"]
        return {
            "lr": (is_finite_from_0(group["lr"]), "must be 0 or more, and finite"),
            "beta": (is_finite_from_0(beta) and beta < 1, "must be in [0, 1)"),
            "beta_b": (beta_b is None or (is_finite_from_0(beta_b) and beta_b < 1), "must be in [0, 1), or None"),
            "nesterov": (isinstance(group["nesterov"], bool), "must be True or False"),
            "maximize": (isinstance(group["maximize"], bool), "must be True or False"),
            "weight_decay": (is_decay(group["weight_decay"], group["lr"]), "must be 0 or more, and at most 1 / lr"),
            "seed": (
                isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63,
                "must be a whole number from 0 to 2^63 - 1",
            ),
            "rounding": (isinstance(rounding, str) and rounding in get_args(Rounding), "must be 'random' or 'shaped'"),
            "gain": (is_gain(group["gain"]), "must be a number above 0, and finite in float32, or None"),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return averages, residuals, step, seed and settings.

        A new optimizer has residuals, too: `torch.distributed.checkpoint` loads what a state has names for.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        are_whole = not any(parameter.is_meta or hasattr(parameter, "to_local") for parameter in parameters)
        # Later, those that were loaded may be of a rank among others, which attaches next.
        if self.coming_step == 1 and are_whole and is_shaped(self.param_groups[0]) and not self._must_attach:
            _ = self.session  # which makes residuals
        return super().state_dict()

    def _load(self, state_dict: dict[str, Any]) -> None:
        # All is looked at before anything is taken: a state that is refused leaves the optimizer as it was.
        saved = self._checked_state(state_dict)
        groups = [FORMER | group for group in state_dict["param_groups"]]
        self._check_saved_groups(groups)
        limits = [ratio_limit(group) for group in groups for _ in group["params"]]
        for number, (state, limit) in enumerate(zip(saved, limits, strict=True)):
            check_magnitudes(number, state["m"], state["b"], limit)
        if self.member.world_size > 1 and groups[0]["step"]:
            _check_slices(groups[0]["slices"], self.param_groups[0]["slices"], "load_state_dict")
            self._check_owner(groups[0], self.member, "load_state_dict")
        layout = groups[0]["residual_layout"]
        if groups[0]["step"] and layout and is_shaped(self.param_groups[0]):
            check_residuals_kept(self._name, layout, saved, NAMES.values())
        for number, state in enumerate(saved):
            for name in state.keys() & set(NAMES.values()):
                check_residual(number, name, state[name])
        if self._session is not None:
            self._session.check_residuals(saved, layout)
        self._take(state_dict | {"param_groups": groups}, saved)
        for param_state, state in zip(self.param_states(), saved, strict=True):
            drop([param_state.state], NAMES.values())
            if is_shaped(self.param_groups[0]):  # as they are: torch casts what it loads
                param_state.state.update({name: state[name].clone() for name in NAMES.values() if name in state})
        if self._session is not None:
            self._reset_session(self._session)

    def _check_owner(self, group: Mapping[str, Any], member: Member, where: str) -> None:
        """Refuse slices of averages that are another rank's; warn of whole averages that are."""
        owner, here = group["saved_by"], _owner(member)
        if owner in ("", here):
            return
        if group["slices"]:
            raise BinsgdmError(
                f"{where}: averages of {owner}: here is {here}, which keeps another slice of them; load on each rank "
                "the state that it has saved itself"
            )
        if not is_shaped(group):  # of whose residuals there is a warning anyway
            warnings.warn(
                f"BinSGDM: the averages are those of {owner}, here is {here}: the run goes on, but not bit for bit",
                stacklevel=frames_to_the_user(),
            )

    def _check_saved_groups(self, groups: Sequence[dict[str, Any]]) -> None:
        """Refuse settings that no state can have, and those of the other rounding."""
        saved, used = shown(groups[0]["rounding"]), shown(self.param_groups[0]["rounding"])
        if saved != used:
            raise BinsgdmError(
                f"load_state_dict: rounding of the state: {saved}: must be {used}, as of this optimizer; make it with "
                f"rounding={saved}, or go on with the averages, gain and decays of the state: set 'rounding' to {used} "
                "in all param_groups of the state"
            )
        for group in groups:
            if missing := [name for name in NEEDED if name not in group]:
                raise BinsgdmError(
                    f"load_state_dict: a group of the state without {', '.join(missing)}: must have all settings of "
                    "BinSGDM; load what state_dict() returned"
                )
            for name in ("slices", "saved_by", "residual_layout"):
                check_text(name, group[name])
            self._check_settings(group)
            _check_alike(group, groups[0])

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        _check_alike(group, self.param_groups[0])

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what `__getstate__` returned, maybe of a former version."""
        super().__setstate__(state)
        for group in (*self.param_groups, self.defaults):
            for name, value in FORMER.items():
                group.setdefault(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kernels_name": self._kernels_name, "_session": None}

    def _reset_session(self, session: Session) -> None:
        """Let a session begin, or start over, with the state that there is now."""
        context = session.member.context(seed=self.param_groups[0]["seed"], step=self.coming_step)
        self._states = self.param_states()
        session.reset(self._states, context, self.kernels())
        if session.member.world_size > 1:
            self._set_all("saved_by", _owner(session.member))
        if is_shaped(self.param_groups[0]):
            self._set_all("residual_layout", session.layout)


def _unscale_on_device(
    gradients: Sequence[torch.Tensor], scale: torch.Tensor | None, found_inf: torch.Tensor, *, keeps_averages: bool
) -> None:
    """Divide gradients where neither the scale nor whether the step will count is known to the host."""
    if scale is None and not keeps_averages:
        return
    scaled_by = found_inf.new_ones((), dtype=torch.float64) if scale is None else scale.to(found_inf.device)
    factor = scaled_by.to(torch.float64).reciprocal().to(torch.float32)
    if keeps_averages:
        factor = factor.masked_fill(found_inf, torch.nan)
    # A gradient of FSDP2 is a DTensor, the factor is not.
    local = [gradient.to_local() if hasattr(gradient, "to_local") else gradient for gradient in gradients]
    for dtype in dict.fromkeys(gradient.dtype for gradient in local):
        some = [gradient for gradient in local if gradient.dtype == dtype]
        # torch's own kernel of GradScaler, which takes the factor from the device; what it finds is known.
        torch._amp_foreach_non_finite_check_and_unscale_(some, torch.zeros_like(factor), factor)


def _check_alike(group: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Refuse a group of parameters that has another value of what all have together."""
    for name in ("seed", "rounding", "gain"):
        if group[name] != first[name]:
            raise BinsgdmError(
                f"BinSGDM: {name} of a group: {group[name]!r}: must equal {first[name]!r} of the first group; give it "
                "once, for all groups"
            )


def _owner(member: Member) -> str:
    """Return in words whose averages a rank's are."""
    return f"rank {member.rank} of {member.world_size}"


def _check_slices(saved: str, wanted: str, where: str) -> None:
    if saved != wanted:
        raise BinsgdmError(
            f"{where}: averages of {saved or 'whole parameters'}: here each rank keeps {wanted or 'whole parameters'}; "
            "attach as in the run that saved them, or start with new averages"
        )
