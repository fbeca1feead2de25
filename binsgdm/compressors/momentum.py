"""A rank's own momentum, which it compresses in place of its gradients; the optimizer then has none.

Where only a part of a gradient arrives in a step, momentum that an optimizer makes of what arrived is another than that
of the gradients: each element misses the steps between two deliveries. Momentum made before compression misses none.

Source: Lin, Han, Mao, Wang and Dally, "Deep gradient compression: reducing the communication bandwidth for distributed
training", ICLR 2018, its momentum correction, momentum factor masking and local gradient clipping; for signs, Zheng,
Huang and Kwok, "Communication-efficient distributed blockwise momentum SGD with error-feedback", NeurIPS 2019, and the
momentum of Bernstein et al. 2018 (Signum). Differs: no Nesterov; clipping by the norm of a bucket, where the authors of
the first clip by that of a tensor; what goes on with the mean may be any optimizer without momentum (for Adam beta1 =
0), where theirs is SGD.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from binsgdm.compressors.base import GradientBucket, is_share
from binsgdm.compressors.residuals import Residuals
from binsgdm.errors import BinsgdmError, listed, shown


class LocalMomentum:
    """One rank's momentum of its own gradients, u = decay u + g, by parameter.

    Args:
        decay: of the momentum, in (0, 1); 0 where gradients are only clipped.
        is_masked: whether an element begins anew once all of it was delivered (momentum factor masking).
        clip_norm: the norm of the mean gradient from which on gradients are clipped: those of one rank to
            clip_norm / sqrt(world size), since those of many ranks add up as noise does; None: not at all.
        rank: this rank.
        world_size: all ranks.
    """

    def __init__(
        self,
        decay: float,
        *,
        is_masked: bool = False,
        clip_norm: float | None = None,
        rank: int,
        world_size: int,
    ) -> None:
        self._decay, self._is_masked = decay, is_masked
        self._largest_norm = None if clip_norm is None else clip_norm / world_size**0.5
        self._momenta = Residuals(rank=rank, world_size=world_size)

    def added(self, bucket: GradientBucket) -> GradientBucket:
        """Return the bucket with the momenta that its gradients make; neither is changed."""
        gradients = bucket.values
        if self._largest_norm is not None:
            # A norm that is not finite clips nothing (NaN) or all to 0 (infinity), so that such a gradient goes on.
            norm = torch.linalg.vector_norm(gradients, dtype=torch.float64)
            factor = (self._largest_norm / norm).clamp(max=1.0).nan_to_num(1.0, posinf=1.0).to(torch.float32)
            gradients = torch.where(norm.isfinite(), gradients * factor, gradients)
        return replace(bucket, values=torch.add(gradients, self._momenta.of(bucket), alpha=self._decay))

    def store(self, bucket: GradientBucket, lost: torch.Tensor, *, mean: torch.Tensor) -> None:
        """Keep the momenta of a bucket as `added` returned it, on all ranks or, if the mean is not finite, on none.

        Args:
            bucket: as `added` returned it.
            lost: what of the corrected values was not delivered; 0 where all was.
            mean: the mean that all ranks go on with.
        """
        values = bucket.values.masked_fill(lost == 0, 0.0) if self._is_masked else bucket.values
        self._momenta.store(values, bucket, mean=mean)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint; every rank saves its own."""
        return self._momenta.state_dict()

    def found_in(self, state: Mapping[str, Any]) -> tuple[Residuals, Mapping[str, Any]]:
        """Return what takes the "momenta" of a system's state, and these, for `load_together`."""
        return self._momenta, state["momenta"]


def split_state(
    momentum: LocalMomentum | None, state: Mapping[str, Any]
) -> tuple[list[tuple[Residuals, Mapping[str, Any]]], Mapping[str, Any]]:
    """Return what takes the "momenta" of a system's state, for `load_together`, and the rest of the state."""
    if momentum is None:
        return [], state
    if not isinstance(state, Mapping) or "momenta" not in state:
        found = f"of {listed(state)}" if isinstance(state, Mapping) else f"that is a {type(state).__name__}"
        raise BinsgdmError(f"momentum: a state {found}: must have momenta; load the state of a system with momentum")
    return [momentum.found_in(state)], {name: value for name, value in state.items() if name != "momenta"}


def local_momentum(
    decay: float, *, is_masked: bool = False, clip_norm: float | None = None, rank: int, world_size: int
) -> LocalMomentum | None:
    """Return a rank's momentum; None where these settings leave gradients as they are."""
    if not decay and clip_norm is None:
        return None
    return LocalMomentum(decay, is_masked=is_masked, clip_norm=clip_norm, rank=rank, world_size=world_size)


def check_momentum(name: str, momentum: object) -> None:
    """Refuse a decay out of range.

    Raises:
        BinsgdmError: it is not in [0, 1).
    """
    if not is_share(momentum) or momentum == 1:
        raise BinsgdmError(f"{name}: momentum: {shown(momentum)}: must be in [0, 1); give 0 for none, or 0.9")
