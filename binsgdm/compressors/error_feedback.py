"""What stays on a rank for each parameter: what compression lost (the residual), and its own momentum.

It is kept by parameter, not by bucket, since DDP forms its buckets anew after the first iteration. It differs from rank
to rank, so each rank saves and loads its own.

A rank's own momentum is compressed in place of its gradients; the optimizer then has none. Where only a part of a
gradient arrives in a step, momentum that an optimizer makes of what arrived is another than that of the gradients: each
element misses the steps between two deliveries. Momentum made before compression misses none.

Source of the momentum: Lin, Han, Mao, Wang and Dally, "Deep gradient compression: reducing the communication bandwidth
for distributed training", ICLR 2018, its momentum correction, momentum factor masking and local gradient clipping; for
signs, Zheng, Huang and Kwok, "Communication-efficient distributed blockwise momentum SGD with error-feedback", NeurIPS
2019, and the momentum of Bernstein et al. 2018 (Signum). Differs: no Nesterov; clipping by the norm of a bucket, where
the authors of the first clip by that of a tensor; what goes on with the mean may be any optimizer without momentum (for
Adam beta1 = 0), where theirs is SGD.

Shape letters: N elements of a bucket; all flat values here are (N).
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from binsgdm.comm import RankContext
from binsgdm.compressors.base import (
    MAX_RANKS,
    REPAIR,
    Averager,
    GradientBucket,
    ParameterId,
    check_state,
    check_stateless,
    check_values,
    check_whole,
    is_share,
    state_in_words,
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
        self._by_parameter: dict[ParameterId, Tensor] = {}

    def __getitem__(self, parameter: ParameterId) -> Tensor:
        """Return the residual of one parameter, flat fp32."""
        return self._by_parameter[parameter]

    def __len__(self) -> int:
        return len(self._by_parameter)

    def of(self, bucket: GradientBucket) -> Tensor:
        """Return the residuals of a bucket, flat fp32, not to be changed; zero where there is none."""
        flat = self._flat(bucket)
        if flat is not None:
            return flat
        device = bucket.values.device
        pieces = []
        for parameter, numel in zip(bucket.parameters, bucket.numels, strict=True):
            residual = self._by_parameter.get(parameter)
            if residual is not None and residual.numel() != numel:
                raise BinsgdmError(
                    f"error feedback: parameter {parameter!r} of {numel} elements: its residual has "
                    f"{residual.numel()}, and must have as many; call reset() after changing a parameter's shape"
                )
            pieces.append(torch.zeros(numel, device=device) if residual is None else residual.to(device))
        # Those that were loaded were made on another stream than that of the exchange, which reads and then drops them.
        on_device = streams.of(device)
        on_device.keep(on_device.current(), *pieces)
        return torch.cat(pieces)

    def corrected(self, bucket: GradientBucket, context: RankContext, *, decay: float = 1.0) -> Tensor:
        """Return the gradients of a bucket plus what was lost of them before, times `decay`; neither is changed."""
        if (context.rank, context.world_size) != (self.rank, self.world_size):
            raise BinsgdmError(
                f"residuals: rank {context.rank} of {context.world_size}: must be rank {self.rank} of "
                f"{self.world_size}; make one system per rank"
            )
        check_values("error feedback", bucket.values, bucket.shapes)
        # In one addition where nothing decays, so that delivered + residual is the gradient to the bit.
        return torch.add(bucket.values, self.of(bucket), alpha=decay)

    def store(self, lost: Tensor, bucket: GradientBucket, *, mean: Tensor) -> None:
        """Keep what was lost of a bucket: the corrected gradients less what was delivered of them.

        Where a value was delivered as it is or not at all, delivered + residual equals it to the bit; elsewhere up to
        the rounding of one subtraction. If any of it or of the mean that all ranks go on with is infinite or NaN (some
        rank's gradient was not finite), the residuals of the whole bucket stay what they were, on all ranks: such a
        step is usually skipped, and a NaN would never leave again.
        """
        # The mean is the same on all ranks, so all of them keep or drop alike.
        is_finite = all_finite(lost) & all_finite(mean)
        if not (host_loops.is_used_on(lost.device) and is_finite):  # on a CPU there is no GPU to wait for
            # `where` on the device in place of an `if`: no wait for the GPU in the middle of backward.
            lost = torch.where(is_finite, lost, self.of(bucket))
        self._by_parameter.update(zip(bucket.parameters, torch.split(lost, bucket.numels), strict=True))

    def _flat(self, bucket: GradientBucket) -> Tensor | None:
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
        self.put(self.read(state))

    def read(self, state: Mapping[str, Any]) -> dict[ParameterId, Tensor]:
        """Return a copy of the residuals of a state, without taking them; see `load_state_dict`."""
        check_state("error feedback", state, _STATE_KEYS)
        check_whole("error feedback: world_size of the state", state["world_size"], low=1, high=MAX_RANKS)
        check_whole("error feedback: rank of the state", state["rank"], low=0, high=state["world_size"] - 1)
        residuals = tensors_of(state["residuals"], where="error feedback", what="residual", dim=1)
        saved, here = (state["rank"], state["world_size"]), (self.rank, self.world_size)
        if saved != here:
            warnings.warn(
                f"error feedback: the state of rank {saved[0]} of {saved[1]} on rank {here[0]} of {here[1]}: residuals "
                "start from zero; to continue them, load each rank's own state with as many ranks",
                stacklevel=3,
            )
            return {}
        return residuals

    def put(self, residuals: dict[ParameterId, Tensor]) -> None:
        """Take these in place of all that there are."""
        self._by_parameter = residuals


class LocalMomentum(Residuals):
    """One rank's momentum of its own gradients, u = decay u + g, by parameter: what a gradient leaves to later ones.

    Args:
        decay: of the momentum, in (0, 1); 0 where gradients are only clipped.
        is_masked: whether an element begins anew once all of it was delivered (momentum factor masking).
        clip_norm: the norm of the mean gradient from which on gradients are clipped: those of one rank to
            clip_norm / sqrt(world size), since those of many ranks add up as noise does; None: not at all.
    """

    def __init__(
        self, decay: float, *, is_masked: bool = False, clip_norm: float | None = None, rank: int, world_size: int
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        self._decay, self._is_masked = decay, is_masked
        self._largest_norm = None if clip_norm is None else clip_norm / world_size**0.5

    def added(self, bucket: GradientBucket) -> GradientBucket:
        """Return the bucket with the momenta that its gradients make; neither is changed."""
        gradients = bucket.values
        if self._largest_norm is not None:
            # A norm that is not finite clips nothing (NaN) or all to 0 (infinity), so that such a gradient goes on.
            norm = torch.linalg.vector_norm(gradients, dtype=torch.float64)
            factor = (self._largest_norm / norm).clamp(max=1.0).nan_to_num(1.0, posinf=1.0).to(torch.float32)
            gradients = torch.where(norm.isfinite(), gradients * factor, gradients)
        return replace(bucket, values=torch.add(gradients, self.of(bucket), alpha=self._decay))

    def store(self, lost: Tensor, bucket: GradientBucket, *, mean: Tensor) -> None:
        """Keep the momenta of a bucket as `added` returned it; where masked, not of what lost nothing."""
        values = bucket.values.masked_fill(lost == 0, 0.0) if self._is_masked else bucket.values
        super().store(values, bucket, mean=mean)


def local_momentum(
    decay: float, *, is_masked: bool = False, clip_norm: float | None = None, rank: int, world_size: int
) -> LocalMomentum | None:
    """Return a rank's momentum; None where these settings leave gradients as they are."""
    if not decay and clip_norm is None:
        return None
    return LocalMomentum(decay, is_masked=is_masked, clip_norm=clip_norm, rank=rank, world_size=world_size)


def check_momentum(name: str, momentum: object) -> None:
    """Refuse a decay that is not in [0, 1)."""
    if not is_share(momentum) or momentum == 1:
        raise BinsgdmError(f"{name}: momentum: {shown(momentum)}: must be in [0, 1); give 0 for none, or 0.9")


class ErrorFeedback(Averager):
    """An end that goes on with what it keeps of a parameter; one that keeps nothing has no state.

    Attributes:
        compressor: whose end it is; a system that is its own end has none.
        residuals: what was lost, by parameter.
        owner_residuals: what was lost of the means of this rank's pieces, where a rank owns some.
        momentum: what this rank compresses in place of its gradients; None for the gradients.

    Source: Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other gradient compression
    schemes", ICML 2019, with any compressor. Differs: p = g + e instead of p = lr g + e, since a bucket knows no
    learning rate (equal while the learning rate is constant; as in Vogels et al. 2019); the residual is in fp32.
    """

    compressor: Any
    residuals: Residuals | None = None
    owner_residuals: Residuals | None = None
    momentum: LocalMomentum | None = None

    @property
    def name(self) -> str:
        """Of the system, in messages."""
        return str(self.compressor.name)

    def with_momentum(self, bucket: GradientBucket) -> GradientBucket:
        """Return what this rank compresses in place of a bucket."""
        return bucket if self.momentum is None else self.momentum.added(bucket)

    def keep(self, lost: Tensor, outgoing: GradientBucket, mean: Tensor) -> None:
        """Keep what was lost of a bucket `with_momentum`, and its momenta."""
        for kept in (self.residuals, self.momentum):
            if kept is not None:
                kept.store(lost, outgoing, mean=mean)

    def _kept(self) -> dict[str, Residuals]:
        """Return all that is kept, by the key under which a state has it; the state itself has the residuals."""
        kept = {"": self.residuals, "owner": self.owner_residuals, "momenta": self.momentum}
        return {key: residuals for key, residuals in kept.items() if residuals is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what is kept, for a checkpoint; every rank saves its own."""
        state: dict[str, Any] = {}
        for key, kept in self._kept().items():
            state |= {key: kept.state_dict()} if key else kept.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do `Residuals.load_state_dict` of all that is kept, or of nothing."""
        kept = self._kept()
        named = [key for key in kept if key]
        missing = [key for key in named if not isinstance(state, Mapping) or key not in state]
        if "owner" in missing:
            raise BinsgdmError(
                f"{self.name}: a state {state_in_words(state)}: must have 'owner'; load the state of topology "
                "'scatter_reduce'"
            )
        if "momenta" in missing:
            raise BinsgdmError(
                f"momentum: a state {state_in_words(state)}: must have momenta; load the state of a system with "
                "momentum"
            )
        rest = {key: value for key, value in state.items() if key not in named} if named else state
        if "" not in kept:
            check_stateless(self.name, rest)
        read = {}
        for key, residuals in kept.items():  # all, before any is taken
            read[key] = residuals.read(state[key] if key else rest)
        for key, residuals in kept.items():
            residuals.put(read[key])


def tensors_of(
    tensors: object, *, where: str, what: str, dim: int, must_be_finite: bool = True
) -> dict[ParameterId, Tensor]:
    """Return a copy of the tensors of a state, by name or number of a parameter: dense fp32 of `dim` dimensions.

    Sentences that refuse others begin with `where` and call each tensor a `what`.
    """
    if not isinstance(tensors, Mapping):
        raise BinsgdmError(f"{where}: {what}s that are a {type(tensors).__name__}: must be a dictionary; {REPAIR}")
    for parameter, tensor in tensors.items():
        if not is_parameter(parameter):
            raise BinsgdmError(
                f"{where}: a {what} of parameter {shown(parameter)}: must be of a name or a number; {REPAIR}"
            )
        named = f"{where}: parameter {shown(parameter)}: a {what}"
        if not isinstance(tensor, Tensor):
            raise BinsgdmError(f"{named} that is a {type(tensor).__name__}: must be a tensor; {REPAIR}")
        is_dense = tensor.layout == torch.strided and not tensor.is_meta
        if tensor.dtype != torch.float32 or tensor.dim() != dim or not is_dense:
            rule = "flat float32" if dim == 1 else f"float32 of {dim} dimensions"
            raise BinsgdmError(
                f"{named} that is {tensor.dtype} of shape {tuple(tensor.shape)}: must be {rule}, and dense; {REPAIR}"
            )
        if must_be_finite and not bool(tensor.isfinite().all()):
            raise BinsgdmError(f"{named} with NaN or infinity: must be finite; {REPAIR}")
    return {parameter: tensor.detach().clone() for parameter, tensor in tensors.items()}


def is_parameter(value: object) -> bool:
    """Tell whether something names or numbers a parameter."""
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
