"""What all kernels offer; arguments are checked here, since compiled loops get bare addresses."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from binsgdm.kernels import checks
from binsgdm.kernels.columns import TensorColumn, column
from binsgdm.kernels.functional import MAX_SHAPED_VECTORS
from binsgdm.kernels.random import Key

Tensors = Sequence[Tensor]
Columns = Sequence[TensorColumn]


class Decay(NamedTuple):
    """The decays of m and b, and whether u looks ahead."""

    beta: float
    beta_b: float
    nesterov: bool

    @property
    def factors(self) -> tuple[float, float, float, float, float, float]:
        """What compiled kernels update by: beta, 1 - beta, beta_b, 1 - beta_b, factors of m and g in u."""
        beta, beta_b = float(self.beta), float(self.beta_b)
        # What u is made of: 1 m + 0 g is m exactly, so that one compiled loop does both.
        of_m, of_g = (beta, 1.0 - beta) if self.nesterov else (1.0, 0.0)
        return beta, 1.0 - beta, beta_b, 1.0 - beta_b, of_m, of_g


class SignStep(NamedTuple):
    """How parameters move along signs."""

    lr: float
    weight_decay: float
    maximize: bool

    @property
    def factors(self) -> tuple[float, float]:
        """The factors of a sign and of x, computed in double precision: a kernel rounds each to fp32 once."""
        return -self.lr if self.maximize else self.lr, 1.0 - self.lr * self.weight_decay


class Kernels(ABC):
    """The hot loops, for many tensors of one device in one call; one tensor is a list of one.

    Gradients and parameters are fp32, bf16 or fp16; everything else that is not packed is fp32. A trailing underscore
    says that arguments change in place; `out` and `out_u` are always written.

    Attributes:
        name: that `select` knows.
    """

    name: str

    def foreach_update_(  # noqa: PLR0913
        self,
        grads: Tensors,
        ms: Tensors,
        bs: Tensors,
        *,
        beta: float,
        beta_b: float,
        nesterov: bool = False,
        outs_u: Tensors,
    ) -> Tensor:
        """Update all momenta, m with the decay beta and b with beta_b, and write u = m / b.

        With `nesterov`, u = (beta m + (1 - beta) g) / b, where the element's b is finite.

        Returns:
            A boolean scalar on the device: False if some element kept its m and b, since its new b would not be finite.
        """
        given = column(grads), column(ms), column(bs), column(outs_u)
        checks.columns(*zip(("grad", "m", "b", "out_u"), given, (checks.FLOATS, *[checks.FP32] * 3), strict=True))
        return self._update(given, Decay(beta, beta_b, nesterov))

    def foreach_update_quantize_pack_(  # noqa: PLR0913
        self,
        grads: Tensors,
        ms: Tensors,
        bs: Tensors,
        *,
        beta: float,
        beta_b: float,
        nesterov: bool = False,
        key: Key,
        starts: Sequence[int],
        outs: Tensors,
        gain: float = 1.0,
    ) -> Tensor:
        """Do `foreach_update_` and `quantize_pack` in one pass that never stores u; return what the former returns."""
        given = column(grads), column(ms), column(bs), column(outs)
        dtypes = checks.FLOATS, checks.FP32, checks.FP32, checks.BYTES
        checks.columns(*zip(("grad", "m", "b", "out"), given, dtypes, strict=True))
        checks.starts(tuple(starts), given[0].numels)
        return self._update_quantize_pack(given, starts, Decay(beta, beta_b, nesterov), float(gain), key)

    def foreach_update_shape_pack_(  # noqa: PLR0913
        self,
        grads: Tensors,
        ms: Tensors,
        bs: Tensors,
        residuals: Tensors,
        *,
        beta: float,
        beta_b: float,
        nesterov: bool = False,
        gain: float,
        outs: Tensors,
    ) -> Tensor:
        """Do `foreach_update_` and `shape_pack_` in one pass that never stores u; return what the former returns."""
        given = column(grads), column(ms), column(bs), column(residuals), column(outs)
        dtypes = checks.FLOATS, checks.FP32, checks.FP32, checks.RESIDUALS, checks.BYTES
        checks.columns(*zip(("grad", "m", "b", "residual", "out"), given, dtypes, strict=True))
        return self._update_shape_pack(given, Decay(beta, beta_b, nesterov), float(gain))

    def foreach_unpack_apply_(
        self, xs: Tensors, packed: Tensors, *, lr: float, weight_decay: float, maximize: bool = False
    ) -> None:
        """Do x = x (1 - lr weight_decay) - lr sign; + lr sign to maximize."""
        given = column(xs), column(packed)
        checks.columns(("x", given[0], checks.FLOATS), ("packed", given[1], checks.BYTES))
        self._unpack_apply(given, SignStep(lr, weight_decay, maximize))

    def quantize_pack(self, u: Tensor, *, key: Key, start: int, out: Tensor, gain: float = 1.0) -> None:
        """Write Q(gain u) to `out` (P), packed."""
        checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
        checks.starts((start,), (u.numel(),))
        checks.packed("out", out, numel=u.numel(), device=u.device)
        self._quantize_pack(u, out, float(gain), start, key)

    def shape_pack_(self, u: Tensor, residual: Tensor, *, gain: float, out: Tensor) -> None:
        """Round clip(gain u) to signs, shaped by the residual (int16, N), which goes on; write them to `out` (P)."""
        checks.tensor("u", u, numel=u.numel(), dtypes=checks.FP32, device=u.device)
        checks.residual(residual, numel=u.numel(), device=u.device)
        checks.packed("out", out, numel=u.numel(), device=u.device)
        self._shape_pack(u, residual, out, float(gain))

    def merge(self, packed_rows: Tensor, *, numel: int, key: Key, start: int, out: Tensor) -> None:
        """Write Q of the mean of K sign vectors (K x P, packed) to `out` (P), packed."""
        checks.sign_rows(packed_rows, numel=numel, out=out)
        checks.starts((start,), (numel,))
        self._merge(packed_rows, out, numel, start, key)

    def merge_shaped_(self, packed_rows: Tensor, residual: Tensor, *, numel: int, out: Tensor) -> None:
        """Round the mean of K sign vectors (K x P) to signs, shaped by the residual (int16, N), into `out` (P).

        K is at most 32767, and the residual at most K.
        """
        checks.sign_rows(packed_rows, numel=numel, out=out)
        checks.counted(packed_rows.shape[0], MAX_SHAPED_VECTORS, "rounding='random'")
        checks.residual(residual, numel=numel, device=packed_rows.device)
        self._merge_shaped(packed_rows, residual, out, numel)

    def mean_(self, parts: Tensor, out: Tensor) -> None:
        """Write the mean of K vectors (K x N) to `out` (N), maybe the first of them: summed in order, divided once."""
        checks.mean(parts, out)
        self._mean(parts, out)

    # One tensor

    def update_(self, grad: Tensor, m: Tensor, b: Tensor, *, out_u: Tensor, **same: Any) -> Tensor:
        """Do `foreach_update_` for one tensor."""
        return self.foreach_update_([grad], [m], [b], outs_u=[out_u], **same)

    def update_quantize_pack_(
        self, grad: Tensor, m: Tensor, b: Tensor, *, start: int, out: Tensor, **same: Any
    ) -> Tensor:
        """Do `foreach_update_quantize_pack_` for one tensor."""
        return self.foreach_update_quantize_pack_([grad], [m], [b], starts=[start], outs=[out], **same)

    def update_shape_pack_(
        self, grad: Tensor, m: Tensor, b: Tensor, residual: Tensor, *, out: Tensor, **same: Any
    ) -> Tensor:
        """Do `foreach_update_shape_pack_` for one tensor."""
        return self.foreach_update_shape_pack_([grad], [m], [b], [residual], outs=[out], **same)

    def unpack_apply_(self, x: Tensor, packed: Tensor, **same: Any) -> None:
        """Do `foreach_unpack_apply_` for one tensor."""
        self.foreach_unpack_apply_([x], [packed], **same)

    # What an implementation does, its arguments checked

    @abstractmethod
    def _update(self, columns: Columns, decay: Decay) -> Tensor: ...

    @abstractmethod
    def _update_quantize_pack(
        self, columns: Columns, starts: Sequence[int], decay: Decay, gain: float, key: Key
    ) -> Tensor: ...

    @abstractmethod
    def _update_shape_pack(self, columns: Columns, decay: Decay, gain: float) -> Tensor: ...

    @abstractmethod
    def _unpack_apply(self, columns: Columns, step: SignStep) -> None: ...

    @abstractmethod
    def _quantize_pack(self, u: Tensor, out: Tensor, gain: float, start: int, key: Key) -> None: ...

    @abstractmethod
    def _shape_pack(self, u: Tensor, residual: Tensor, out: Tensor, gain: float) -> None: ...

    @abstractmethod
    def _merge(self, rows: Tensor, out: Tensor, numel: int, start: int, key: Key) -> None: ...

    @abstractmethod
    def _merge_shaped(self, rows: Tensor, residual: Tensor, out: Tensor, numel: int) -> None: ...

    @abstractmethod
    def _mean(self, parts: Tensor, out: Tensor) -> None: ...
