"""ByteGrad: one byte an element and a scale a block, rounded to the nearest value that a byte can hold.

Payload: the largest magnitude of every block in fp32, then a byte an element: an integer from -127 to 127, or an 8-bit
float. Zero stays zero.

A value that is not finite makes its whole block NaN after decompression. Blocks run over the bucket, not tensor by
tensor.

Shape letters: N elements, B = ceil(N / block_size) blocks.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from binsgdm.compressors import levels
from binsgdm.compressors.base import Shapes, check_choice, check_whole, numel_of
from binsgdm.compressors.error_feedback import CheckedCompressor, PayloadSpec
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import host_loops
from binsgdm.kernels.functional import divided
from binsgdm.kernels.random import Key

Dtype = Literal["int8", "fp8_e4m3", "fp8_e5m2"]
_TORCH_NAMES: dict[Dtype, str] = {"int8": "int8", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
# What the largest magnitude of a block becomes: the largest value of the dtype.
_LARGEST: dict[Dtype, int] = {"int8": 127, "fp8_e4m3": 448, "fp8_e5m2": 57344}


@dataclass(frozen=True, kw_only=True)
class ByteGrad(CheckedCompressor):
    """ByteGrad: one byte an element, rounded to the nearest, and a scale a block.

    With s the largest magnitude of its block, a value g is off by at most s / 254 in int8; in fp8 by at most |g| / 16
    (e4m3) or |g| / 8 (e5m2), or by s / 458752 or s / 7.5e9 if that is more. Here it is rounded to the nearest: the
    loss is half that of unbiased rounding, nothing is drawn, and it is so small that no error feedback is needed.
    `qsgd_inf` with 8 bits rounds at random, without bias.

    Attributes:
        dtype: of a byte: "int8", whose steps are equal, so that it loses least where the values of a block are alike;
            "fp8_e4m3" or "fp8_e5m2", whose steps are as small as the values.
        block_size: elements that share a scale, up to 2^20. With 256, int8 loses about 100 times less of a gradient's
            squared norm than with one scale, for 1.6 % more bytes (docs/evidence/binsgdm.md).

    Raises:
        BinsgdmError: another dtype, or one that this torch does not have; a block size out of range.

    Source: Gan et al., "BAGUA: scaling up distributed learning with system relaxations", VLDB 2022, its 8-bit
    centralized algorithm with compressed scatter-reduce, named ByteGrad in their code. Differs: a byte
    counts equal steps from -s to s of a block, so that zero stays zero, and one large value costs its own block alone;
    there from the smallest to the largest value of a rank's whole piece of a bucket, which are sent with it; pieces are
    cut tensor by tensor; in their code, which averages in the node first as the default here does, one rank of a node
    exchanges between nodes, here every local rank has a piece. fp8: as others send gradients (Peng et al., "FP8-LM:
    training FP8 large language models", 2023), with a scale a block and sums in fp32.
    """

    name = "byte_grad"
    averages_in_node = True
    title = "ByteGrad"
    source = "Gan et al., VLDB 2022"
    wire_format = "a byte per element (int8 or fp8) and an fp32 scale per block"
    aggregation = "all_to_all + all_gather"
    is_unbiased = False

    dtype: Dtype = "int8"
    block_size: int = 256

    def __post_init__(self) -> None:
        check_choice("byte_grad: dtype", self.dtype, tuple(_TORCH_NAMES))
        check_whole("byte_grad: block_size", self.block_size, low=1, high=levels.MAX_BLOCK_SIZE)
        if not hasattr(torch, _TORCH_NAMES[self.dtype]):
            raise BinsgdmError(
                f"byte_grad: dtype: {self.dtype!r}: torch {torch.__version__} does not have it; give 'int8', or "
                "install torch 2.1 or later"
            )

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return (B,) fp32 and (N,) of the dtype."""
        numel = numel_of(shapes)
        return (torch.float32, -(-numel // self.block_size)), (self._torch_dtype, numel)

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Round every value to the nearest that a byte holds, a tie to the even one."""
        scales = levels.block_scales(values, block_size=self.block_size, norm="max")
        if self.dtype == "int8" and host_loops.is_used_on(values.device):
            return scales, host_loops.bytes_of_scales(values, scales, self.block_size, _LARGEST["int8"])
        # NaN: a block of zeros, or one with a value that is not finite; the scale says which.
        counts = (values / self._per_element(scales, values.numel())).nan_to_num_(nan=0.0).mul_(_LARGEST[self.dtype])
        return scales, (counts.round_() if self.dtype == "int8" else counts).to(self._torch_dtype)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return the byte times the scale over the largest byte."""
        scales, codes = tensors
        steps = divided(scales, _LARGEST[self.dtype])
        if self.dtype == "int8" and host_loops.is_used_on(codes.device):
            return host_loops.bytes_times_steps(codes, steps, self.block_size)
        return codes.to(torch.float32).mul_(self._per_element(steps, numel_of(shapes)))

    def _per_element(self, scales: Tensor, numel: int) -> Tensor:
        return levels.per_element(scales, block_size=self.block_size, numel=numel)

    @property
    def _torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, _TORCH_NAMES[self.dtype])
        return found
