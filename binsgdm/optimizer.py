"""BinSGDM as a torch.optim.Optimizer."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Place
from binsgdm.kernels import select, zeros
from binsgdm.kernels.checks import FLOATS
from binsgdm.session import Alone, Session
from binsgdm.worker import Slot

FORMAT = 1
"""Version of what `state_dict` holds."""

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]


class BinSGDM(torch.optim.Optimizer):
    """Move every parameter by lr, up or down at random, more surely so the steadier its gradient is.

        m = beta m + (1 - beta) g        b = beta b + (1 - beta) |g|        x = x - lr Q(m / b)

    Q(u) is +1 with probability (1 + u) / 2, else -1. There is one decay for both averages, no square root, no warm-up
    and no error feedback; 0 / 0 counts as 0. With `binsgdm.attach` all ranks agree on the signs with one bit an element
    between nodes. Without it, the optimizer works alone.

    A step in which any gradient of any rank is not finite moves no parameter and is not counted, on all ranks alike;
    `num_skipped` counts such steps. The averages of an element whose gradient is not finite stay as they were, those of
    the others have taken in their gradients. A parameter that has no gradient on any rank, or does not require one, is
    left alone. But in a parameter that has one, every element moves by lr in every step: one whose gradient is 0 (a row
    of an embedding that no sample used, a masked weight) goes on with its last m / b, or at random if it never had any.
    A bf16 or fp16 parameter is rounded to nearest, so a move below half its last digit is lost: keep them in fp32.
    Gradients stay local, so `clip_grad_norm_` clips each rank's own; since u is a ratio, clipping only changes how
    steps weigh against each other. Works with gradient accumulation, lr schedulers and `torch.amp.GradScaler`.

    Args:
        params: parameters, or groups with their own lr, beta, weight_decay or maximize.
        lr: by how much an element moves in a step, >= 0; it is the size of the move, unlike that of Adam.
        beta: decay of both averages, in [0, 1).
        weight_decay: decoupled, as in AdamW, >= 0.
        maximize: go up instead of down.
        seed: of all draws; must be the same on all ranks. With the step, the rank and the element it fixes every draw.
        kernels: "reference", "cpu" or "triton"; default the fastest for the device (or BINSGDM_KERNELS).

    Raises:
        BinsgdmError: a value out of range.

    Source: Birder (NeurIPS 2023), algorithm 1. Differs: no AMSGrad-style maximum (not used in practice either).
    """

    title = "BinSGDM"
    source = "Birder, NeurIPS 2023"
    travels = "1 bit an element between nodes, both ways; inside a node fp32, bf16 or 1 bit"

    def __init__(  # noqa: PLR0913
        self,
        params: Params,
        lr: float | torch.Tensor = 1e-3,
        *,
        beta: float = 0.95,
        weight_decay: float = 0.0,
        maximize: bool = False,
        seed: int = 0,
        kernels: str | None = None,
    ) -> None:
        defaults = {"lr": lr, "beta": beta, "weight_decay": weight_decay, "maximize": maximize}
        self._kernels_name = kernels
        self._session: Session | None = None
        self._must_attach = False
        self.num_skipped = 0
        super().__init__(params, defaults | {"seed": seed, "step": 0, "format": FORMAT, "slices": ""})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, checked; they start with empty averages."""
        if getattr(self, "_session", None) is not None and not isinstance(self._session, Alone):
            raise BinsgdmError("add_param_group: after attach: add all parameters before binsgdm.attach")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_group(group)
        except BinsgdmError:
            self.param_groups.pop()
            raise
        self._session = None
        for parameter in group["params"]:
            self.state[parameter] = {name: _empty_average(parameter) for name in ("m", "b")}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step.

        Args:
            closure: computes the loss and the gradients anew.

        Returns:
            What the closure returned.

        Raises:
            BinsgdmError: a gradient that is sparse or complex, or a failed exchange.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._unscale()
        step = self.param_groups[0]["step"] + 1
        found_inf = self._scaler_found_inf()
        if self.session.step(step, skip=found_inf):
            for group in self.param_groups:
                group["step"] = step
        else:
            self._note_skipped(step, expected=found_inf)
        return loss

    def __getstate__(self) -> dict[str, Any]:
        attached = self._session is not None and not isinstance(self._session, Alone)
        ours = {"_kernels_name": self._kernels_name, "num_skipped": self.num_skipped, "_must_attach": attached}
        return {**super().__getstate__(), **ours, "_session": None}

    @property
    def session(self) -> Session:
        """Who carries this optimizer's exchange; alone until `binsgdm.attach`."""
        if self._must_attach:
            raise BinsgdmError("BinSGDM: a copy of an attached optimizer: attach it, too, on all ranks")
        if self._session is None:
            self._session = Alone(self.slots(), self.place(), self.kernels())
        return self._session

    def join(self, session: Session, slices: str = "") -> None:
        """Hand the exchange over to a session (`binsgdm.attach` does).

        Args:
            session: takes the steps from here on.
            slices: in words, which part of the averages each rank keeps, if not all.

        Raises:
            BinsgdmError: the averages were made with other slices.
        """
        if self.param_groups[0]["step"]:
            _check_slices(self.param_groups[0]["slices"], slices, "attach")
        for group in self.param_groups:
            group["slices"] = slices
        if self._session is not None:
            self._session.close()
        self._session = session
        self._must_attach = False

    def slots(self) -> list[Slot]:
        """Return every parameter with its group and state, in the order in which they were given."""
        return [
            Slot(parameter=parameter, group=group, state=self.state[parameter])
            for group in self.param_groups
            for parameter in group["params"]
        ]

    def place(self, rank: int = 0, world_size: int = 1, ranks_per_node: int = 1) -> Place:
        """Return a rank's place in the coming step."""
        group = self.param_groups[0]
        return Place(
            rank=rank, world_size=world_size, ranks_per_node=ranks_per_node, seed=group["seed"], step=group["step"]
        )

    def kernels(self) -> Any:
        """Return the kernels for the parameters' device."""
        return select(self._kernels_name, self.param_groups[0]["params"][0].device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load averages, step and seed; a resumed run goes on bit for bit.

        The averages are each rank's own, so every rank must save and load its own state.

        Raises:
            BinsgdmError: a state of another format, or of parameters of other shapes.
        """
        saved = _check_state(state_dict, self)
        if self._session is not None and not isinstance(self._session, Alone) and state_dict["param_groups"][0]["step"]:
            _check_slices(
                state_dict["param_groups"][0].get("slices", ""), self.param_groups[0]["slices"], "load_state_dict"
            )
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            _check_group(group)
        for slot, averages in zip(self.slots(), saved, strict=True):
            for name, values in averages.items():  # torch casts them to the parameter's dtype; they are fp32 always
                self.state[slot.parameter][name] = _empty_average(slot.parameter).copy_(values)
        session = self._session
        self._session = None
        if session is not None and not isinstance(session, Alone):
            session.renew(self.slots(), self.place(session.rank, session.world_size, session.ranks_per_node))
            self._session = session

    # What torch.amp.GradScaler looks for: the optimizer unscales and decides by itself.
    _step_supports_amp_scaling = True

    def _note_skipped(self, step: int, *, expected: bool) -> None:
        """Count a step that moved nothing; warn of the first that no GradScaler on this rank knows of."""
        if not expected and not self.num_skipped:
            warnings.warn(
                f"BinSGDM: step {step} was skipped on all ranks: a gradient is not finite on one of them; more are "
                "counted in optimizer.num_skipped",
                stacklevel=5,
            )
        self.num_skipped += 1

    def _unscale(self) -> None:
        """Divide the gradients by the scale of a GradScaler that has not done so."""
        scale = getattr(self, "grad_scale", None)
        if scale is None:
            return
        if self._session is not None and self._session.starts_in_backward:
            raise BinsgdmError("BinSGDM: a GradScaler with overlap=True: scaled gradients have gone; attach without it")
        gradients = [slot.parameter.grad for slot in self.slots() if slot.parameter.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise BinsgdmError(
                "BinSGDM: fp16 gradients with a GradScaler: they would underflow when unscaled; keep the parameters in "
                "fp32 and use autocast, as torch asks of every optimizer"
            )
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / float(scale))

    def _scaler_found_inf(self) -> bool:
        """Tell whether a GradScaler saw gradients that are not finite."""
        found = getattr(self, "found_inf", None)
        return found is not None and bool(found)


def _empty_average(parameter: torch.Tensor) -> torch.Tensor:
    """Return zeros for an average, sharded if the parameter is."""
    if hasattr(parameter, "to_local"):
        return torch.zeros_like(parameter, dtype=torch.float32)
    return zeros(parameter.numel(), parameter.device).view(parameter.shape)


def _is_finite_from_0(value: Any) -> bool:
    try:
        return math.isfinite(value) and value >= 0
    except TypeError:
        return False


def _check_group(group: dict[str, Any]) -> None:
    rules = {
        "lr": (_is_finite_from_0(group["lr"]), "must be 0 or more, and finite"),
        "beta": (_is_finite_from_0(group["beta"]) and group["beta"] < 1, "must be in [0, 1)"),
        "weight_decay": (_is_finite_from_0(group["weight_decay"]), "must be 0 or more, and finite"),
        "seed": (isinstance(group["seed"], int) and 0 <= group["seed"] < 2**63, "must be a whole number from 0 on"),
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise BinsgdmError(f"BinSGDM: {name}: {group[name]!r}: {rule}")
    check_dtypes("BinSGDM", group["params"])


def check_dtypes(where: str, parameters: Iterable[torch.Tensor]) -> None:
    """Refuse parameters that no kernel updates.

    Raises:
        BinsgdmError: one of another type than float32, bfloat16 and float16.
    """
    for parameter in parameters:
        if parameter.dtype not in FLOATS:
            raise BinsgdmError(
                f"{where}: a parameter of {parameter.dtype}: must be float32, bfloat16 or float16; give others to "
                "another optimizer"
            )


def _check_slices(given: str, wanted: str, where: str) -> None:
    if given != wanted:
        raise BinsgdmError(
            f"{where}: averages of {given or 'whole parameters'}: here each rank keeps {wanted or 'whole parameters'}; "
            "attach as the run that saved them did, or start with new averages"
        )


def _check_state(state_dict: dict[str, Any], optimizer: BinSGDM) -> list[dict[str, torch.Tensor]]:
    """Return the saved averages in the order of the parameters, or refuse."""
    numbers = saved_numbers(state_dict, FORMAT)
    slots = optimizer.slots()
    if len(numbers) != len(slots):
        raise BinsgdmError(f"load_state_dict: {len(numbers)} parameters: the optimizer has {len(slots)}")
    saved = [state_dict["state"].get(number, {}) for number in numbers]
    for place, (slot, averages) in enumerate(zip(slots, saved, strict=True)):
        shapes = {name: tuple(values.shape) for name, values in averages.items()}
        if shapes != dict.fromkeys(("m", "b"), tuple(slot.parameter.shape)):
            raise BinsgdmError(
                f"load_state_dict: parameter {place}: {shapes}: must be m and b of shape {tuple(slot.parameter.shape)}"
            )
    return saved


def saved_numbers(state_dict: dict[str, Any], version: int) -> list[int]:
    """Return the numbers of the parameters of a saved state, in the order in which they were given.

    Raises:
        BinsgdmError: it has another format than this version.
    """
    groups = state_dict.get("param_groups", [{}])
    formats = {group.get("format") for group in groups}
    if formats != {version}:
        raise BinsgdmError(f"load_state_dict: format {sorted(map(str, formats))}: this version reads format {version}")
    return [number for group in groups for number in group["params"]]
