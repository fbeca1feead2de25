"""What 1-bit Adam does to one rank's averages and parameters, in both stages."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from binsgdm.comm import Protocol, RankContext
from binsgdm.kernels.host_tensors import upload
from binsgdm.kernels.profiler_stages import staged
from binsgdm.optimizers.base import Flag, ParamState, check_gradient, copy_each
from binsgdm.optimizers.one_bit_momentum import (
    MomentumResiduals,
    Topology,
    hierarchical_one_bit_momentum,
    one_bit_momentum,
    padded_numel,
)

# The variance is stable when the ratio of its norms, 1 / (1 - beta2) steps apart, is within 0.96 and 1 / 0.96.
# Source: 1-bit Adam, ICML 2021.
STABLE_RATIO = 0.96
# Of the common scale of all momenta. A smaller one would let a tensor that wakes up later drown its whole chunk.
SMALLEST_SCALE = 1e-4
REFUSED = 2  # flag of a rank that cannot take a step; 1 is the flag of a step that all ranks skip
# Elements of parameters that one operation takes at once: 128 MiB of two temporary values of each on a GPU.
_RUN_NUMEL = {"cpu": 2**14, "cuda": 2**24}
LARGEST_GRADIENT = 2.0**63  # its square is 2^126; fp32 ends below 2^128, and a variance sums a few squares


class FlatSlice(NamedTuple):
    """A parameter with its place in the flat order, which is that in which parameters were given."""

    param_state: ParamState
    start: int
    end: int
    number: int


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


def exchange_and_update(
    moving: Sequence[FlatSlice],
    gradient: torch.Tensor,
    residuals: MomentumResiduals,
    context: RankContext,
    topology: Topology,
) -> Protocol:
    """Average the momenta with one bit an element, and move the parameters."""
    momenta, valid = local_momenta(moving, gradient)
    average_momenta = hierarchical_one_bit_momentum if topology == "hierarchical" else one_bit_momentum
    average = yield from average_momenta(momenta, residuals, context, valid)
    apply_average(moving, average)
    return average


def local_momenta(moving: Sequence[FlatSlice], gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the momenta of this rank with its gradient, and which elements have a variance; both flat."""
    momenta, valid = torch.zeros_like(gradient), torch.zeros_like(gradient, dtype=torch.bool)
    for some in _together(moving):
        beta1 = some[0].param_state.group["betas"][0]
        mine = torch._foreach_mul(_averages(some, "exp_avg"), beta1)
        torch._foreach_add_(mine, torch._foreach_mul(_slices(some, gradient), 1 - beta1))
        if some[0].param_state.group["scales_momenta"]:
            torch._foreach_div_(mine, _scales(some))
        torch._foreach_copy_(_slices(some, momenta), mine)
    for param_state, start, end, _ in moving:
        torch.gt(param_state.state["exp_avg_sq"].view(-1), 0, out=valid[start:end])
    # An element without a variance cannot be moved (lr / sqrt(0)); all ranks have the same v, so all leave the same
    # ones out.
    return momenta.masked_fill_(valid.logical_not(), 0.0), valid


@staged("update")
def apply_average(moving: Sequence[FlatSlice], average: torch.Tensor) -> None:
    """Take the average of all ranks as the momenta, and move the parameters."""
    for some in _together(moving):
        # The average replaces the momentum of every rank: ranks stay equal, and what the bits lost is in the residuals.
        torch._foreach_copy_(_averages(some, "exp_avg"), _slices(some, average))
        if some[0].param_state.group["scales_momenta"]:
            torch._foreach_mul_(_averages(some, "exp_avg"), _scales(some))
        for one in some:
            one.param_state.state["step"] += 1
        _adam_step(some)


@staged("update")
def dense_update(moving: Sequence[FlatSlice], mean: torch.Tensor) -> None:
    """Update both averages with the mean gradient, and move the parameters."""
    for some in _together(moving):
        beta1, beta2 = some[0].param_state.group["betas"]
        m, v, g = _averages(some, "exp_avg"), _averages(some, "exp_avg_sq"), _slices(some, mean)
        # Product by product: with a factor, torch's sums fuse it on some CPUs, which rounds once less.
        torch._foreach_mul_(m, beta1)
        torch._foreach_add_(m, torch._foreach_mul(g, 1 - beta1))
        torch._foreach_mul_(v, beta2)
        torch._foreach_add_(v, torch._foreach_mul(torch._foreach_mul(g, 1 - beta2), g))
        for one in some:
            one.param_state.state["step"] += 1
            one.param_state.state["variance_step"] += 1
        _adam_step(some)


def _adam_step(some: Sequence[FlatSlice]) -> None:
    """Take Adam's step from the averages, in fp32, rounded to the parameter's dtype once."""
    group, parameters = some[0].param_state.group, [one.param_state.parameter for one in some]
    lr, beta1 = float(group["lr"]), group["betas"][0]
    step_sizes = [-lr / (1 - beta1 ** one.param_state.state["step"]) for one in some]
    roots = torch._foreach_div(
        [one.param_state.state["exp_avg_sq"] for one in some], [_variance_correction(one.param_state) for one in some]
    )
    _take_roots(roots)
    torch._foreach_add_(roots, group["eps"])
    wide = [parameter.to(torch.float32) for parameter in parameters]
    decayed = torch._foreach_mul(wide, 1 - lr * group["weight_decay"])
    torch._foreach_addcdiv_(decayed, [one.param_state.state["exp_avg"] for one in some], roots, step_sizes)
    copy_each(parameters, decayed)


def _take_roots(tensors: tuple[torch.Tensor, ...] | list[torch.Tensor]) -> None:
    """Replace values by their roots, rounded as IEEE 754 asks, which those of torch on a CPU are not always."""
    if not tensors[0].is_cpu:
        torch._foreach_sqrt_(tensors)
        return
    for tensor in tensors:
        np.sqrt(tensor.numpy(), out=tensor.numpy())


def _together(moving: Sequence[FlatSlice]) -> Iterator[list[FlatSlice]]:
    """Yield runs of parameters with the same settings, for which one operation is launched, not one for each.

    Temporary values of a run take memory, on a GPU; on a CPU they are to stay in its caches.
    """
    limit = _RUN_NUMEL["cpu" if moving and moving[0].param_state.parameter.device.type == "cpu" else "cuda"]
    run: list[FlatSlice] = []
    for one in moving:
        is_full = run and one.end - run[0].start > limit
        if is_full or (run and one.param_state.group is not run[0].param_state.group):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def frozen_means(param_states: Sequence[ParamState]) -> torch.Tensor:
    """Return what `freeze` takes of each tensor: the mean of v and that of m^2, fp64.

    Shape:
        returned: (2, parameters).
    """
    means = [
        torch.stack([v.sum(dtype=torch.float64), m.to(torch.float64).square().sum()]) / max(1, v.numel())
        for v, m in ((one.state["exp_avg_sq"], one.state["exp_avg"]) for one in param_states)
    ]
    return torch.stack(means, dim=1)


def freeze(param_states: Sequence[ParamState], means: torch.Tensor) -> None:
    """Raise variances to their floor, and keep the scale of each tensor's momentum, from the means of one rank."""
    squares = means[1].tolist()
    # A tensor without a gradient in the dense stage goes with the others, so that its first one weighs on no scale.
    common = sum(squares) / max(1, sum(square > 0 for square in squares)) or 1.0
    for param_state, variance, square in zip(param_states, means[0].tolist(), squares, strict=True):
        param_state.state["momentum_scale"] = math.sqrt(max(square or common, SMALLEST_SCALE**2 * common))
        if floor := variance * param_state.group["variance_floor"]:
            v = param_state.state["exp_avg_sq"]
            v.copy_(torch.where(v > 0, v.clamp(min=floor), v))


def _scales(some: Sequence[FlatSlice]) -> list[float]:
    return [one.param_state.state["momentum_scale"] for one in some]


def _averages(some: Sequence[FlatSlice], name: str) -> list[torch.Tensor]:
    return [one.param_state.state[name].view(-1) for one in some]


def _slices(some: Sequence[FlatSlice], flat: torch.Tensor) -> list[torch.Tensor]:
    return [flat[one.start : one.end] for one in some]


def _variance_correction(param_state: ParamState) -> float:
    return variance_correction(param_state.group["betas"][1], int(param_state.state["variance_step"]))


def variance_correction(beta2: float, variance_step: int) -> float:
    """Return 1 - beta2^t; t counts the steps that v has seen, and a v that has seen none is 0 anyway."""
    return float(1 - beta2 ** max(1, variance_step))


def variance_norm(param_states: Sequence[ParamState]) -> torch.Tensor:
    """Return the 1-norm of all variances, corrected for their bias, fp64 (1,): what `is_stable` compares."""
    norms = [
        param_state.state["exp_avg_sq"].sum(dtype=torch.float64) / _variance_correction(param_state)
        for param_state in param_states
    ]
    return torch.stack(norms).sum().view(1)


def flat_slices_of(param_states: Sequence[ParamState]) -> Iterator[FlatSlice]:
    """Yield every parameter with its place in the flat order."""
    start = 0
    for number, param_state in enumerate(param_states):
        yield FlatSlice(param_state, start, start + param_state.parameter.numel(), number)
        start += param_state.parameter.numel()


def flat_zeros(flat_slices: Sequence[FlatSlice], world_size: int) -> torch.Tensor:
    """Return fp32 zeros for all parameters, with padding."""
    return torch.zeros(
        padded_numel(flat_slices[-1].end, world_size), device=flat_slices[0].param_state.parameter.device
    )


def flat_gradient(flat_slices: Sequence[FlatSlice], world_size: int) -> torch.Tensor:
    """Return a copy of all gradients as one flat fp32 tensor, padded for all ranks; zeros where there is none."""
    gradient = flat_zeros(flat_slices, world_size)
    pairs = [(one, given) for one in flat_slices if (given := gradient_of(one.param_state)) is not None]
    places = [gradient[one.start : one.end].view(given.shape) for one, given in pairs]
    copy_each(places, [given for _, given in pairs])
    return gradient


def is_small(gradient: torch.Tensor) -> torch.Tensor:
    """Return whether all of a gradient is finite and not too large, where it lies."""
    return gradient.abs().amax() < LARGEST_GRADIENT  # which NaN fails as well


def finite_check_flags(flat_slices: Sequence[FlatSlice], *, stop: Flag, are_small: bool | torch.Tensor) -> torch.Tensor:
    """Return this rank's flags, whose maximum over all ranks decides the step.

    Args:
        flat_slices: all parameters.
        stop: whether a GradScaler says that the step must be skipped.
        are_small: whether gradients are finite and not too large.

    Returns:
        uint8 (1 + parameters): 1 if the step must be skipped (`stop`, or a gradient that is not finite or too large),
        then which parameters have a gradient.
    """
    parameters = [one.param_state.parameter for one in flat_slices]
    has = [int(parameter.requires_grad and parameter.grad is not None) for parameter in parameters]
    device = flat_slices[0].param_state.parameter.device
    flags = upload([int(stop is True or are_small is False), *has], torch.uint8, device)
    if isinstance(are_small, torch.Tensor):
        flags[0] |= torch.logical_not(are_small)
    if isinstance(stop, torch.Tensor):
        flags[0] |= stop
    return flags


def refusal_flags(flat_slices: Sequence[FlatSlice]) -> torch.Tensor:
    """Return the flags of a rank that cannot take the step: it takes part, so that no other waits for it."""
    device = flat_slices[0].param_state.parameter.device
    return upload([REFUSED, *[0] * len(flat_slices)], torch.uint8, device)


def gradient_of(param_state: ParamState) -> torch.Tensor | None:
    """Return the gradient of a parameter that is trained.

    Raises:
        BinsgdmError: it is sparse or complex, of another shape or type, or without values.
    """
    gradient = param_state.parameter.grad if param_state.parameter.requires_grad else None
    if gradient is not None:
        check_gradient("OneBitAdam", param_state.parameter, gradient)
    return gradient
