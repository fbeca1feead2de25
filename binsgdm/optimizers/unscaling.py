"""Undo the scale of a GradScaler that leaves that to the optimizer."""

from collections.abc import Sequence

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.base import Flag, ParamState
from binsgdm.optimizers.session import Session


def unscale(param_states: Sequence[ParamState], scale: torch.Tensor | None, found_inf: Flag, session: Session) -> None:
    """Divide the gradients by the scale of a GradScaler that has not done so.

    Args:
        param_states: whose gradients are changed.
        scale: by which they were multiplied; None if there is none, or it is undone.
        found_inf: of the GradScaler.
        session: which takes the step.

    Raises:
        BinsgdmError: it is too late for that, or fp16 has too few digits for it.
    """
    if scale is None and found_inf is False:
        return
    gradients = [one.parameter.grad for one in param_states if one.parameter.grad is not None]
    # Signs do not depend on the scale of a gradient, but m and b mix this step's gradient with those of other scales.
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
        _unscale_on_device(gradients, scale, found_inf, session)
    elif gradients and scale is not None:
        torch._foreach_mul_(gradients, 1.0 / float(scale))


def _unscale_on_device(
    gradients: Sequence[torch.Tensor], scale: torch.Tensor | None, found_inf: torch.Tensor, session: Session
) -> None:
    """Do as `unscale`, where neither the scale nor whether the step will count is known to the host."""
    # A step that will not count leaves the averages as they were, which the host cannot tell the kernels here: so its
    # gradients become NaN, of which they take in nothing. In backward the averages have taken them in already, and
    # those of a node see an infinity of this rank anyway.
    keeps_averages = not session.starts_in_backward and session.scheme.average == "updates"
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
