"""What stays on a rank for each parameter: what compression lost (the residual), or its own momentum.

It is kept by parameter, not by bucket, since DDP forms its buckets anew after the first iteration. It differs from rank
to rank, so each rank saves and loads its own.

Shape letters: N elements of a bucket.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from binsgdm.comm import RankContext
from binsgdm.compressors.base import (
    MAX_RANKS,
    REPAIR,
    GradientBucket,
    ParameterId,
    check_state,
    check_values,
    check_whole,
)
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import host_loops, streams
from binsgdm.kernels.functional import all_finite

_STATE_KEYS = {"rank", "world_size", "residuals"}


class Residuals:
    """What compression lost of each parameter's gradients on this rank.

    Args:
        rank: this rank.
        world_size: all ranks; a residual is this rank's share of the mean over as many.
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
        """
        device = bucket.values.device
        pairs = zip(bucket.parameters, bucket.numels, strict=True)
        pieces = [self._piece(parameter, numel, device) for parameter, numel in pairs]
        # Those that were loaded were made on another stream than that of the exchange, which reads and then drops them.
        on_device = streams.of(device)
        on_device.keep(on_device.current(), *pieces)
        return torch.cat(pieces)

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
        flat = self._flat(bucket)
        return torch.add(bucket.values, self.of(bucket) if flat is None else flat, alpha=decay)

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
        is_finite = all_finite(lost) & all_finite(mean)
        if host_loops.is_used_on(lost.device) and is_finite:  # there is no GPU to wait for
            self._keep(lost, bucket)
            return
        # `where` on the device in place of an `if`: no wait for the GPU in the middle of backward.
        kept = torch.where(is_finite, lost, self.of(bucket))
        self._keep(kept, bucket)

    def _keep(self, kept: torch.Tensor, bucket: GradientBucket) -> None:
        self._by_parameter.update(zip(bucket.parameters, torch.split(kept, bucket.numels), strict=True))

    def _flat(self, bucket: GradientBucket) -> torch.Tensor | None:
        """Return the residuals of a bucket where they lie one after the other, as `store` leaves them."""
        pieces = [self._by_parameter.get(parameter) for parameter in bucket.parameters]
        first = pieces[0] if pieces else None
        if first is None or first.device != bucket.values.device or not host_loops.is_used_on(first.device):
            return None
        memory, place = first.untyped_storage().data_ptr(), first.storage_offset()
        for piece, numel in zip(pieces, bucket.numels, strict=True):
            if piece is None or piece.numel() != numel or piece.untyped_storage().data_ptr() != memory:
                return None
            if numel and piece.storage_offset() != place:
                return None
            place += numel
        return first.as_strided((bucket.values.numel(),), (1,))

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
        """
        load_together([(self, state)])

    def read(self, state: Mapping[str, Any]) -> dict[ParameterId, torch.Tensor]:
        """Return a copy of the residuals of a state, without taking them; see `load_state_dict`."""
        check_state("error feedback", state, _STATE_KEYS)
        check_whole("error feedback: world_size of the state", state["world_size"], low=1, high=MAX_RANKS)
        check_whole("error feedback: rank of the state", state["rank"], low=0, high=state["world_size"] - 1)
        residuals = tensors_of(state["residuals"], where="error feedback", what="residual", dim=1)
        saved, own = (state["rank"], state["world_size"]), (self.rank, self.world_size)
        if saved != own:
            warnings.warn(
                f"error feedback: the state of rank {saved[0]} of {saved[1]} on rank {own[0]} of {own[1]}: residuals "
                "start from zero; to continue them, load each rank's own state with as many ranks",
                stacklevel=4,
            )
            return {}
        return residuals

    def put(self, residuals: dict[ParameterId, torch.Tensor]) -> None:
        """Take these in place of all that there are."""
        self._by_parameter = residuals

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


def load_together(parts: Sequence[tuple[Residuals, Mapping[str, Any]]]) -> None:
    """Load several states, or none of them."""
    read = [residuals.read(state) for residuals, state in parts]
    for (residuals, _), found in zip(parts, read, strict=True):
        residuals.put(found)


def tensors_of(
    given: object, *, where: str, what: str, dim: int, must_be_finite: bool = True
) -> dict[ParameterId, torch.Tensor]:
    """Return a copy of the tensors of a state, by parameter.

    Args:
        given: of the state.
        where: begins the sentence.
        what: each of them is, in the sentence.
        dim: how many dimensions each has.
        must_be_finite: whether infinities and NaN are refused.

    Raises:
        BinsgdmError: it is no dictionary of such tensors, dense and fp32, by names or numbers of parameters.
    """
    if not isinstance(given, Mapping):
        raise BinsgdmError(f"{where}: {what}s that are a {type(given).__name__}: must be a dictionary; {REPAIR}")
    for parameter, tensor in given.items():
        if not is_parameter(parameter):
            raise BinsgdmError(
                f"{where}: a {what} of parameter {shown(parameter)}: must be of a name or a number; {REPAIR}"
            )
        named = f"{where}: parameter {shown(parameter)}: a {what}"
        if not isinstance(tensor, torch.Tensor):
            raise BinsgdmError(f"{named} that is a {type(tensor).__name__}: must be a tensor; {REPAIR}")
        is_dense = tensor.layout == torch.strided and not tensor.is_meta
        if tensor.dtype != torch.float32 or tensor.dim() != dim or not is_dense:
            rule = "flat float32" if dim == 1 else f"float32 of {dim} dimensions"
            raise BinsgdmError(
                f"{named} that is {tensor.dtype} of shape {tuple(tensor.shape)}: must be {rule}, and dense; {REPAIR}"
            )
        if must_be_finite and not bool(tensor.isfinite().all()):
            raise BinsgdmError(f"{named} with NaN or infinity: must be finite; {REPAIR}")
    return {parameter: tensor.detach().clone() for parameter, tensor in given.items()}


def is_parameter(given: object) -> bool:
    """Tell whether something names or numbers a parameter."""
    return isinstance(given, str) or (isinstance(given, int) and not isinstance(given, bool) and given >= 0)
