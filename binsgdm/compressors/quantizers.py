"""Quantizers of blocks: QSGD, its max-norm variant and NUQSGD round at random to a few levels, ByteGrad to the nearest.

Payload: an fp32 norm per block, then the codes of all elements. Those of QSGD and its kin have `bits` bits each, packed
(`coding="packed"`), or are the runs and levels of `binsgdm.compressors.elias` (`coding="elias"`), whose length depends
on the values and which is the shorter one where most levels are zero: wide blocks, few bits, L2 norm. Those of ByteGrad
are bytes: integers from -127 to 127, or 8-bit floats.

A value that is not finite makes its whole block NaN after decompression. Blocks run over the bucket, not tensor by
tensor.

Shape letters: N elements, B = ceil(N / block_size) blocks.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from binsgdm.compressors import elias, levels
from binsgdm.compressors.base import Shapes, check_choice, check_whole, numel_of
from binsgdm.compressors.compressor import CheckedCompressor, PayloadSpec
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import host_loops
from binsgdm.kernels.functional import divided, packed_numel
from binsgdm.kernels.keys import Key

Coding = Literal["packed", "elias"]
Dtype = Literal["int8", "fp8_e4m3", "fp8_e5m2"]
# With what the largest magnitude of a block becomes: the largest value of the dtype.
_DTYPES: dict[Dtype, tuple[torch.dtype, int]] = {
    "int8": (torch.int8, 127),
    "fp8_e4m3": (torch.float8_e4m3fn, 448),
    "fp8_e5m2": (torch.float8_e5m2, 57344),
}


@dataclass(frozen=True, kw_only=True)
class LevelQuantizer(CheckedCompressor):
    """Levels j / s of a norm of each block, j from -s to s, s = 2^(bits-1) - 1, unless a class says others.

    Attributes:
        bits: of one code, sign included, 2 to `max_bits`.
        block_size: elements that share a norm, up to 2^20.
        coding: "packed" or "elias".
    """

    wire_format = "`bits` bits per element, or an Elias code, and an fp32 norm per block"
    is_unbiased = True
    norm: ClassVar[levels.Norm]
    max_bits: ClassVar[int] = 8

    bits: int = 4
    block_size: int = 8192
    coding: Coding = "packed"

    def __post_init__(self) -> None:
        check_whole(f"{self.name}: bits", self.bits, low=2, high=self.max_bits)
        check_whole(f"{self.name}: block_size", self.block_size, low=1, high=levels.MAX_BLOCK_SIZE)
        check_choice(f"{self.name}: coding", self.coding, ("packed", "elias"))

    @property
    def grid(self) -> tuple[float, ...]:
        """The levels, ascending from -1 to 1."""
        return levels.uniform_levels(self.bits)

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return (B,) fp32 norms and (ceil(N bits / 8),) uint8; with "elias" the bits of each block between the two."""
        num_blocks = -(-numel_of(shapes) // self.block_size)
        if self.coding == "elias":
            return (torch.float32, num_blocks), (torch.int32, num_blocks), (torch.uint8, None)
        return (torch.float32, num_blocks), (torch.uint8, packed_numel(numel_of(shapes) * self.bits))

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Round every value to a level below or above it."""
        scales = levels.block_scales(values, block_size=self.block_size, norm=self.norm)
        codes = levels.round_to_levels(values, scales, self.grid, key, block_size=self.block_size)
        if self.coding == "packed":
            return scales, levels.pack_codes(codes, self.bits)
        # Elias codes integers around 0; the padding of the last block is level 0, which takes no bits.
        signed = levels.in_blocks(codes.to(torch.int16) - self._zero_code, self.block_size)
        return scales, *elias.encode(signed)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return level times norm."""
        numel = numel_of(shapes)
        scales, *coded = tensors
        if self.coding == "packed":
            codes = levels.unpack_codes(coded[0], self.bits, numel)
        else:
            signed = elias.decode(*coded, block_size=self.block_size, max_level=self._zero_code)
            codes = (signed.view(-1)[:numel] + self._zero_code).to(torch.uint8)
        return levels.levels_of(codes, self.grid, 2**self.bits, scales, block_size=self.block_size)

    @property
    def _zero_code(self) -> int:
        """The code of level zero, and so the largest magnitude of a signed level."""
        return len(self.grid) // 2


@dataclass(frozen=True, kw_only=True)
class QSGD(LevelQuantizer):
    """QSGD with the L2 norm.

    The variance of a block of n is at most min(n / s^2, sqrt(n) / s) times its squared L2 norm.

    Source: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
    encoding", NeurIPS 2017; coding="elias" is its code of levels by Elias's. Differs: the paper's buckets are
    blocks here; the norm is limited to the largest number of fp32; with "elias" a block states its bits.
    """

    name = "qsgd"
    title = "QSGD"
    source = "Alistarh et al., NeurIPS 2017"
    norm = "l2"


@dataclass(frozen=True, kw_only=True)
class QSGDInf(LevelQuantizer):
    """QSGD with the maximum norm.

    The variance of a block of n is at most n / (4 s^2) times its squared maximum norm. Few levels are zero, so that
    coding="elias" is usually longer than "packed".

    Source: Alistarh et al., NeurIPS 2017, the variant that is normalized by the largest magnitude, as in its
    experiments; named QSGDinf by Ramezani-Kebrya et al., JMLR 2021. Differs: as `QSGD`.
    """

    name = "qsgd_inf"
    title = "QSGDinf"
    source = "Alistarh et al., NeurIPS 2017"
    norm = "max"


@dataclass(frozen=True, kw_only=True)
class NUQSGD(LevelQuantizer):
    """NUQSGD with the L2 norm: levels 1, 1/2, 1/4 and so on of it.

    With zero there are s = 2^(bits-1) - 2 levels between 0 and 1. With x = sqrt(n) / 2^s, the variance of a block of n
    is at most 1/8 + 2 x^2 / 9 times its squared L2 norm where x is below 9/4, and x - 1 times from there on (derived
    in evidence/benchmarks/bounds.py; docs/evidence/binsgdm.md says how the paper's differs).

    Attributes:
        bits: 2 to 7: with 7 the smallest level is 2^-62.
        with_zero: whether zero is a level (the paper's), or one more power of 1/2 of either sign is instead.

    Source: Ramezani-Kebrya, Faghri, Markov, Aksenov, Alistarh and Roy, "NUQSGD: provably communication-efficient
    data-parallel SGD via nonuniform quantization", JMLR 22, 2021, with p = 1/2. Differs: as `QSGD`; levels without zero
    are those of AMQ, Faghri et al., NeurIPS 2020.
    """

    name = "nuqsgd"
    title = "NUQSGD"
    source = "Ramezani-Kebrya et al., JMLR 2021"
    norm = "l2"
    max_bits = 7

    with_zero: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("nuqsgd: with_zero", self.with_zero, (True, False))
        if self.coding == "elias" and not self.with_zero:
            raise BinsgdmError(
                "nuqsgd: coding: 'elias' without a level of zero: must have one, since Elias codes runs of zeros; give "
                "with_zero=True or coding='packed'"
            )

    @property
    def grid(self) -> tuple[float, ...]:
        """Powers of 1/2."""
        return levels.exponential_levels(self.bits, with_zero=self.with_zero)


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
        check_choice("byte_grad: dtype", self.dtype, tuple(_DTYPES))
        check_whole("byte_grad: block_size", self.block_size, low=1, high=levels.MAX_BLOCK_SIZE)

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return (B,) fp32 and (N,) of the dtype."""
        numel = numel_of(shapes)
        return (torch.float32, -(-numel // self.block_size)), (_DTYPES[self.dtype][0], numel)

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Round every value to the nearest that a byte holds, a tie to the even one."""
        dtype, largest = _DTYPES[self.dtype]
        scales = levels.block_scales(values, block_size=self.block_size, norm="max")
        if dtype == torch.int8 and host_loops.is_used_on(values.device):
            inputs = values, scales, self.block_size, largest
            return scales, host_loops.filled("bytes_of_scales", values.numel(), *inputs, dtype=torch.int8)
        whole = levels.per_element(scales, block_size=self.block_size, numel=values.numel())
        # NaN: a block of zeros, or one with a value that is not finite; the scale says which.
        counts = (values / whole).nan_to_num_(nan=0.0).mul_(largest)
        return scales, (counts.round_() if dtype == torch.int8 else counts).to(dtype)

    def decode(self, tensors: tuple[Tensor, ...], shapes: Shapes, key: Key) -> Tensor:  # noqa: ARG002
        """Return the byte times the scale over the largest byte."""
        scales, codes = tensors
        steps = divided(scales, _DTYPES[self.dtype][1])
        if self.dtype == "int8" and host_loops.is_used_on(codes.device):
            return host_loops.filled("bytes_times_steps", codes.numel(), codes, steps, self.block_size)
        whole = levels.per_element(steps, block_size=self.block_size, numel=codes.numel())
        return codes.to(torch.float32).mul_(whole)
