"""What 1-bit Adam does to one rank's averages and parameters, in both stages."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from binsgdm.exchange import Protocol, RankContext
from binsgdm.optimizers.base import Slot, check_gradient
from binsgdm.optimizers.one_bit_momentum import (
    Residuals,
    Topology,
    hierarchical_one_bit_momentum,
    one_bit_momentum,
    padded_numel,
)

STABLE_RATIO = 0.96
"""The variance is stable when its norm keeps so much of itself over 1 / (1 - beta2) steps (1-bit Adam, ICML 2021)."""
REFUSED = 2
"""The flag of a rank that cannot take a step; 1 is that of a step that all skip."""
LARGEST_GRADIENT = 2.0**63
"""From here on a square, or the sum of a few, would not be finite in fp32."""


class Stretch(NamedTuple):
    """A parameter with its place in the flat order, which is that in which parameters were given."""

    slot: Slot
    first: int
    end: int


def variance_period(beta2: float) -> int:
    """Return 1 / (1 - beta2) in whole steps: how far apart the norms are that the criterion compares.

    Example:
        >>> variance_period(0.999)
        1000
    """
    return max(1, round(1 / (1 - beta2)))


def is_stable(norm: float, before: float) -> bool:
    """Tell whether the variance changed little enough to be frozen; `before` is 0 where there is none yet."""
    return before > 0 and STABLE_RATIO <= norm / before <= 1 / STABLE_RATIO


def exchange_and_move(
    moving: Sequence[Stretch], gradient: torch.Tensor, residuals: Residuals, context: RankContext, topology: Topology
) -> Protocol:
    """Average the momenta with one bit an element, and move the parameters."""
    momenta, valid = momenta_of(moving, gradient)
    talk = hierarchical_one_bit_momentum if topology == "hierarchical" else one_bit_momentum
    delivered = yield from talk(momenta, residuals, context, valid)
    take_delivered(moving, delivered)
    return delivered


def momenta_of(moving: Sequence[Stretch], gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the momenta of this rank with its gradient, and which elements have a variance; both flat."""
    momenta, valid = torch.zeros_like(gradient), torch.zeros_like(gradient, dtype=torch.bool)
    for slot, first, end in moving:
        beta1 = slot.group["betas"][0]
        momenta[first:end] = slot.state["exp_avg"].view(-1) * beta1 + gradient[first:end] * (1 - beta1)
        valid[first:end] = slot.state["exp_avg_sq"].view(-1) > 0
    return momenta.masked_fill_(~valid, 0.0), valid


def take_delivered(moving: Sequence[Stretch], delivered: torch.Tensor) -> None:
    """Take the average of all ranks as the momenta, and move the parameters."""
    for slot, first, end in moving:
        slot.state["exp_avg"].view(-1).copy_(delivered[first:end])
        slot.state["step"] += 1
        _move(slot)


def move_dense(moving: Sequence[Stretch], mean: torch.Tensor) -> None:
    """Update both averages with the mean gradient, and move the parameters."""
    for slot, first, end in moving:
        beta1, beta2 = slot.group["betas"]
        m, v, g = slot.state["exp_avg"].view(-1), slot.state["exp_avg_sq"].view(-1), mean[first:end]
        m.mul_(beta1).add_(g, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        slot.state["step"] += 1
        slot.state["variance_step"] += 1
        _move(slot)


def _move(slot: Slot) -> None:
    """Take Adam's step from the averages, in fp32, rounded to the parameter's dtype once."""
    group, state, parameter = slot.group, slot.state, slot.parameter
    lr = float(group["lr"])
    step_size = lr / (1 - group["betas"][0] ** state["step"])
    root = (state["exp_avg_sq"] / _variance_correction(slot)).sqrt_().add_(group["eps"])
    decayed = parameter.to(torch.float32) * (1 - lr * group["weight_decay"])
    parameter.copy_(decayed.addcdiv_(state["exp_avg"], root, value=-step_size))


def _variance_correction(slot: Slot) -> float:
    """Return 1 - beta2^t; t counts the steps that v has seen, and a v that has seen none is 0 anyway."""
    return float(1 - slot.group["betas"][1] ** max(1, int(slot.state["variance_step"])))


def variance_norm(slots: Sequence[Slot]) -> torch.Tensor:
    """Return the 1-norm of all corrected variances, fp64 (1,)."""
    norms = [slot.state["exp_avg_sq"].sum(dtype=torch.float64) / _variance_correction(slot) for slot in slots]
    return torch.stack(norms).sum().view(1)


def stretches_of(slots: Sequence[Slot]) -> Iterator[Stretch]:
    """Yield every parameter with its place in the flat order."""
    first = 0
    for slot in slots:
        yield Stretch(slot, first, first + slot.parameter.numel())
        first += slot.parameter.numel()


def flat_zeros(stretches: Sequence[Stretch], world_size: int) -> torch.Tensor:
    """Return fp32 zeros for all parameters, with padding."""
    return torch.zeros(padded_numel(stretches[-1].end, world_size), device=stretches[0].slot.parameter.device)


def flat_gradient(stretches: Sequence[Stretch], world_size: int) -> torch.Tensor:
    """Return the gradients of all parameters in one, fp32, zeros where there is none; a copy."""
    gradient = flat_zeros(stretches, world_size)
    for slot, first, end in stretches:
        if (given := gradient_of(slot)) is not None:
            gradient[first:end].view(given.shape).copy_(given)
    return gradient


def flags_of(gradient: torch.Tensor, stretches: Sequence[Stretch], *, stop: bool) -> torch.Tensor:
    """Return what all ranks take the largest of: stop, then which parameters have a gradient; uint8."""
    has = [int(gradient_of(one.slot) is not None) for one in stretches]
    flags = torch.tensor([int(stop), *has], dtype=torch.uint8, device=gradient.device)
    flags[0] |= torch.logical_not(gradient.abs().amax() < LARGEST_GRADIENT)
    return flags


def flags_of_refusal(stretches: Sequence[Stretch]) -> torch.Tensor:
    """Return the flags of a rank that cannot take the step: it takes part, so that no other waits for it."""
    device = stretches[0].slot.parameter.device
    return torch.tensor([REFUSED, *[0] * len(stretches)], dtype=torch.uint8, device=device)


def gradient_of(slot: Slot) -> torch.Tensor | None:
    """Return the gradient of a parameter that is trained.

    Raises:
        BinsgdmError: it is sparse or complex, or of another shape or type.
    """
    gradient = slot.parameter.grad if slot.parameter.requires_grad else None
    if gradient is not None:
        check_gradient("OneBitAdam", slot.parameter, gradient)
    return gradient
