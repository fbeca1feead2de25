"""What all kernels offer; arguments are checked here, since compiled loops get bare addresses."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.kernels.columns import TensorColumn, check_count
from binsgdm.kernels.functional import packed_numel
from binsgdm.kernels.keys import MAX_NUMEL, MAX_SHAPED_VECTORS, Key

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP32 = (torch.float32,)
BYTES = (torch.uint8,)
RESIDUALS = (torch.int16,)

Dtypes = tuple[torch.dtype, ...]
Tensors = Tensor | Sequence[Tensor]


class Kernels:
    """The hot loops, for a tensor or many of one device in one call: then each argument is a list of as many.

    Gradients and parameters are fp32, bf16 or fp16; everything else that is not packed is fp32. A trailing underscore
    says that arguments change in place; `out` and `out_u` are always written.

    Args:
        name: that `select` knows.
        loops: the module that does what is checked here. Its decay is beta, 1 - beta, beta_b, 1 - beta_b, and the
            factors of m and g in u.
    """

    def __init__(self, name: str, loops: Any) -> None:
        self.name, self._loops = name, loops

    def update_(  # noqa: PLR0913
        self,
        grad: Tensors,
        m: Tensors,
        b: Tensors,
        *,
        beta: float,
        beta_b: float,
        nesterov: bool = False,
        out_u: Tensors,
    ) -> Tensor:
        """Update all momenta, m with the decay beta and b with beta_b, and write u = m / b.

        With `nesterov`, u = (beta m + (1 - beta) g) / b, where the element's b is finite.

        Returns:
            A boolean scalar on the device: False if some element kept its m and b, since its new b would not be finite.
        """
        columns = _checked(("grad", grad, FLOATS), ("m", m, FP32), ("b", b, FP32), ("out_u", out_u, FP32))
        finite: Tensor = self._loops.update(columns, _factors(beta, beta_b, nesterov))
        return finite

    def update_quantize_pack_(  # noqa: PLR0913
        self,
        grad: Tensors,
        m: Tensors,
        b: Tensors,
        *,
        beta: float,
        beta_b: float,
        nesterov: bool = False,
        key: Key,
        start: int | Sequence[int],
        out: Tensors,
        gain: float = 1.0,
    ) -> Tensor:
        """Do `update_` and `quantize_pack` in one pass that never stores u; return what the former returns."""
        columns = _checked(("grad", grad, FLOATS), ("m", m, FP32), ("b", b, FP32), ("out", out, BYTES))
        starts = (start,) if isinstance(start, int) else tuple(start)
        _check_starts(starts, columns[0].numels)
        decay = _factors(beta, beta_b, nesterov)
        finite: Tensor = self._loops.update_quantize_pack(columns, starts, decay, float(gain), key)
        return finite

    def update_shape_pack_(  # noqa: PLR0913
        self,
        grad: Tensors,
        m: Tensors,
        b: Tensors,
        residual: Tensors,
        *,
        beta: float,
        beta_b: float,
        nesterov: bool = False,
        gain: float,
        out: Tensors,
    ) -> Tensor:
        """Do `update_` and `shape_pack_` in one pass that never stores u; return what the former returns."""
        momenta = ("grad", grad, FLOATS), ("m", m, FP32), ("b", b, FP32)
        columns = _checked(*momenta, ("residual", residual, RESIDUALS), ("out", out, BYTES))
        finite: Tensor = self._loops.update_shape_pack(columns, _factors(beta, beta_b, nesterov), float(gain))
        return finite

    def unpack_apply_(
        self, x: Tensors, packed: Tensors, *, lr: float, weight_decay: float, maximize: bool = False
    ) -> None:
        """Do x = x (1 - lr weight_decay) - lr sign; + lr sign to maximize."""
        self._loops.unpack_apply(_checked(("x", x, FLOATS), ("packed", packed, BYTES)), lr, weight_decay, maximize)

    def quantize_pack(self, u: Tensor, *, key: Key, start: int, out: Tensor, gain: float = 1.0) -> None:
        """Write Q(gain u) to `out` (P), packed."""
        columns = _checked(("u", u, FP32), ("out", out, BYTES))
        _check_starts((start,), columns[0].numels)
        self._loops.quantize_pack(columns, start, float(gain), key)

    def shape_pack_(self, u: Tensor, residual: Tensor, *, gain: float, out: Tensor) -> None:
        """Round clip(gain u) to signs, shaped by the residual (int16, N), which goes on; write them to `out` (P)."""
        columns = _checked(("u", u, FP32), ("residual", residual, RESIDUALS), ("out", out, BYTES))
        self._loops.shape_pack(columns, float(gain))

    def merge(self, packed_rows: Tensor, *, numel: int, key: Key, start: int, out: Tensor) -> None:
        """Write Q of the mean of K sign vectors (K x P, packed) to `out` (P), packed."""
        _check_rows("packed_rows", packed_rows, "P", packed_numel(numel), BYTES, out)
        _check_starts((start,), (numel,))
        self._loops.merge(packed_rows, out, numel, start, key)

    def merge_shaped_(self, packed_rows: Tensor, residual: Tensor, *, numel: int, out: Tensor) -> None:
        """Round the mean of K sign vectors (K x P) to signs, shaped by the residual (int16, N), into `out` (P).

        K is at most 32767, and the residual at most K.
        """
        _check_rows("packed_rows", packed_rows, "P", packed_numel(numel), BYTES, out)
        check_count(packed_rows, MAX_SHAPED_VECTORS, "rounding='random'")
        _check_tensor("residual", residual, numel, RESIDUALS, packed_rows.device)
        self._loops.merge_shaped(packed_rows, residual, out, numel)

    def mean_(self, parts: Tensor, out: Tensor) -> None:
        """Write the mean of K vectors (K x N) to `out` (N), maybe the first of them: summed in order, divided once."""
        numel = parts.shape[1] if parts.dim() == 2 else 0
        _check_rows("parts", parts, "N", numel, FP32, out)
        self._loops.mean(parts, out)


def _factors(beta: float, beta_b: float, nesterov: bool) -> tuple[float, ...]:
    """Return what kernels update by, see `Kernels`; each rounds them to fp32 once."""
    beta, beta_b = float(beta), float(beta_b)
    # What u is made of: 1 m + 0 g is m exactly, so that one compiled loop does both.
    of_m, of_g = (beta, 1.0 - beta) if nesterov else (1.0, 0.0)
    return beta, 1.0 - beta, beta_b, 1.0 - beta_b, of_m, of_g


# Checks


def _checked(*named: tuple[str, Tensors, Dtypes]) -> list[TensorColumn]:
    """Return tensors as columns, the first of which gives the sizes and the one device; bytes hold packed signs."""
    columns = [_column(tensors) for _, tensors, _ in named]
    likes = columns[0]
    if all(_are_alike(column, dtypes, likes) for column, (_, _, dtypes) in zip(columns, named, strict=True)):
        return columns
    for row in zip(*columns, strict=True):
        for (name, _, dtypes), tensor in zip(named, row, strict=True):
            numel = packed_numel(row[0].numel()) if dtypes is BYTES else row[0].numel()
            _check_tensor(name, tensor, numel, dtypes, row[0].device)
    for other in likes:
        if other.device != likes[0].device:
            raise BinsgdmError(f"{named[0][0]}: on {other.device}: must be on {likes[0].device}, as the first tensor")
    return columns


def _column(tensors: Tensors) -> TensorColumn:
    if isinstance(tensors, TensorColumn):
        return tensors
    return TensorColumn((tensors,) if isinstance(tensors, Tensor) else tensors)


def _are_alike(column: TensorColumn, dtypes: Dtypes, likes: TensorColumn) -> bool:
    """Tell whether many tensors are as they must be, all on one device."""
    return (
        column.numels == (_packed_numels(likes.numels) if dtypes is BYTES else likes.numels)
        and column.dtypes.issubset(dtypes)
        and column.devices == likes.devices
        and len(column.devices) <= 1
        and column.is_contiguous
    )


@lru_cache(maxsize=256)
def _packed_numels(numels: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(packed_numel, numels))


def _check_tensor(name: str, tensor: Tensor, numel: int, dtypes: Dtypes, device: torch.device) -> None:
    """Raise unless a tensor is contiguous and has this size, one of these dtypes, and this device."""
    if tensor.numel() != numel:
        raise BinsgdmError(f"{name}: {tensor.numel()} elements: must have {numel}")
    if tensor.dtype not in dtypes:
        raise BinsgdmError(f"{name}: {tensor.dtype}: must be {' or '.join(map(str, dtypes))}")
    if tensor.device != device:
        raise BinsgdmError(f"{name}: on {tensor.device}: must be on {device}, as the first argument")
    if not tensor.is_contiguous():
        raise BinsgdmError(f"{name}: strides {tensor.stride()}: must be contiguous; pass a flat copy")


@lru_cache(maxsize=256)
def _check_starts(starts: tuple[int, ...], numels: tuple[int, ...]) -> None:
    """Check which draws tensors take."""
    for start, numel in zip(starts, numels, strict=True):
        # Not a multiple of 8: two segments would write to one byte.
        if start % 8 or start < 0 or start + numel > MAX_NUMEL:
            raise BinsgdmError(f"start: {start!r}: must be a multiple of 8 in [0, 2**34 - {numel}]")


def _check_rows(name: str, rows: Tensor, letter: str, size: int, dtypes: Dtypes, out: Tensor) -> None:  # noqa: PLR0913, PLR0917
    """Check vectors, of so many elements each, and where one goes that is made of them."""
    if rows.dim() != 2 or rows.shape[0] == 0:
        raise BinsgdmError(f"{name}: shape {tuple(rows.shape)}: must be K x {letter} with K at least 1")
    _check_tensor(name, rows, rows.shape[0] * size, dtypes, rows.device)
    _check_tensor("out", out, size, dtypes, rows.device)
