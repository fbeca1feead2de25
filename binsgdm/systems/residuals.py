"""What stays on a rank for each parameter: what compression lost (the residual), or its own momentum.

It is kept by parameter, not by bucket, since DDP forms its buckets anew after the first iteration. It differs from rank
to rank, so each rank saves and loads its own.

Shape letters: N elements of a bucket.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import RankContext
from binsgdm.systems.base import GradientBucket, ParameterId, check_values

_STATE_KEYS = {"rank", "world_size", "residuals"}


class Residuals:
    """What compression lost of each parameter's gradients on this rank.

    Args:
        rank: this rank.
        world_size: all ranks; a residual is this rank's share of the mean over as many.

    Raises:
        BinsgdmError: the rank is not one of the world.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise BinsgdmError(f"residuals: rank {rank!r} of {world_size!r}: must be in [0, world size)")
        self.rank = rank
        self.world_size = world_size
        self._by_parameter: dict[ParameterId, torch.Tensor] = {}

    def __getitem__(self, parameter: ParameterId) -> torch.Tensor:
        """Return the residual of one parameter, flat fp32."""
        return self._by_parameter[parameter]

    def __len__(self) -> int:
        return len(self._by_parameter)

    def of(self, bucket: GradientBucket) -> torch.Tensor:
        """Return the residuals of a bucket, flat fp32; zero where there is none.

        Shape:
            returned: (N).

        Raises:
            BinsgdmError: a residual of another number of elements than its parameter.
        """
        device = bucket.values.device
        pairs = zip(bucket.parameters, bucket.numels, strict=True)
        return torch.cat([self._piece(parameter, numel, device) for parameter, numel in pairs])

    def corrected(self, bucket: GradientBucket, context: RankContext, *, decay: float = 1.0) -> torch.Tensor:
        """Return the gradients of a bucket plus what was lost of them before; neither is changed.

        Args:
            bucket: of the gradients.
            context: of this rank.
            decay: part of what was lost that is added.

        Shape:
            returned: (N).

        Raises:
            BinsgdmError: values that cannot be compressed, a residual that does not fit its parameter, or another
                rank's context.
        """
        if (context.rank, context.world_size) != (self.rank, self.world_size):
            raise BinsgdmError(
                f"residuals: rank {context.rank} of {context.world_size}: must be rank {self.rank} of "
                f"{self.world_size}; make one system per rank"
            )
        check_values("error feedback", bucket.values, bucket.shapes)
        # In one addition where nothing decays, so that delivered + residual is the gradient to the bit.
        return torch.add(bucket.values, self.of(bucket), alpha=decay)

    def store(self, lost: torch.Tensor, bucket: GradientBucket, *, mean: torch.Tensor) -> None:
        """Keep what was lost, parameter by parameter.

        If any of it or of the mean is infinite or NaN (some rank's gradient was not finite), the residuals of the whole
        bucket stay what they were, on all ranks: such a step is usually skipped, and a NaN would never leave again.

        Args:
            lost: the corrected gradients less what was delivered of them. Where a value was delivered as it is or not
                at all, delivered + residual equals it to the bit; elsewhere up to the rounding of one subtraction.
            bucket: of the gradients.
            mean: the mean that all ranks go on with.

        Shape:
            lost, mean: (N).
        """
        # The mean is the same on all ranks, so all of them keep or drop alike.
        is_finite = lost.isfinite().all() & mean.isfinite().all()
        # `where` on the device in place of an `if`: no wait for the GPU in the middle of backward.
        kept = torch.where(is_finite, lost, self.of(bucket))
        self._by_parameter.update(zip(bucket.parameters, torch.split(kept, bucket.numels), strict=True))

    def reset(self) -> None:
        """Forget everything: the next gradient of every parameter is compressed as it is."""
        self._by_parameter.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint; every rank saves its own, since residuals differ."""
        residuals = {parameter: residual.clone() for parameter, residual in self._by_parameter.items()}
        return {"rank": self.rank, "world_size": self.world_size, "residuals": residuals}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on the same rank of as many ranks.

        The state of another rank or world size is not taken: residuals start from zero, with a warning. Another rank's
        residual would be counted twice, and a mean over another number of ranks weighs it otherwise. One step's loss of
        gradient is forgotten by that, as at the start of training.

        Raises:
            BinsgdmError: it is no such state.
        """
        if set(state) != _STATE_KEYS:
            raise BinsgdmError(
                f"error feedback: a state of {sorted(map(str, state))}: must be {sorted(_STATE_KEYS)}; load what "
                "state_dict() returned"
            )
        _check_residuals(state["residuals"])
        self.reset()
        saved, own = (state["rank"], state["world_size"]), (self.rank, self.world_size)
        if saved != own:
            warnings.warn(
                f"error feedback: the state of rank {saved[0]} of {saved[1]} on rank {own[0]} of {own[1]}: residuals "
                "start from zero; to continue them, load each rank's own state with as many ranks",
                stacklevel=2,
            )
            return
        self._by_parameter.update((parameter, residual.clone()) for parameter, residual in state["residuals"].items())

    def _piece(self, parameter: ParameterId, numel: int, device: torch.device) -> torch.Tensor:
        residual = self._by_parameter.get(parameter)
        if residual is None:
            return torch.zeros(numel, device=device)
        if residual.numel() != numel:
            raise BinsgdmError(
                f"error feedback: parameter {parameter!r} of {numel} elements: its residual has {residual.numel()}, "
                "and must have as many; call reset() after changing a parameter's shape"
            )
        return residual.to(device)


def _check_residuals(residuals: object) -> None:
    """Refuse what no residuals are, before anything is taken of it."""
    tensors = residuals.values() if isinstance(residuals, Mapping) else [residuals]
    for one in tensors:
        if not isinstance(one, torch.Tensor) or one.dtype != torch.float32 or one.dim() != 1:
            kind = f"{one.dtype} of shape {tuple(one.shape)}" if isinstance(one, torch.Tensor) else type(one).__name__
            raise BinsgdmError(
                f"error feedback: a residual that is {kind}: must be flat float32; load what state_dict() returned"
            )
