"""QSGD, its max-norm variant, and NUQSGD: values rounded at random to a few levels of their block's norm.

Payload: an fp32 norm per block, then the codes of all elements: `bits` bits each, packed (`coding="packed"`), or the
runs and levels of `binsgdm.compressors.elias` (`coding="elias"`), whose length depends on the values and which is the
shorter one where most levels are zero: wide blocks, few bits, L2 norm.

A value that is not finite makes its whole block NaN after decompression. Blocks run over the bucket, not tensor by
tensor.

Shape letters: N elements, B = ceil(N / block_size) blocks.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from binsgdm.compressors import elias, levels
from binsgdm.compressors.base import (
    Shapes,
    check_choice,
    check_whole,
    numel_of,
)
from binsgdm.compressors.error_feedback import CheckedCompressor, PayloadSpec
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key

Coding = Literal["packed", "elias"]


@dataclass(frozen=True, kw_only=True)
class LevelQuantizer(CheckedCompressor):
    """What the three share; each says which norm and which levels.

    Attributes:
        bits: of one code, sign included.
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
    @abstractmethod
    def grid(self) -> tuple[float, ...]:
        """The levels, ascending from -1 to 1."""

    def payload_spec(self, shapes: Shapes) -> PayloadSpec:
        """Return the tensors: norms, then codes.

        (B,) fp32 and (ceil(N bits / 8),) uint8; with "elias" (B,) fp32, (B,) int32 for the bits of each block, and the
        codes in uint8, whose number depends on the values.
        """
        num_blocks = -(-numel_of(shapes) // self.block_size)
        if self.coding == "elias":
            return (torch.float32, num_blocks), (torch.int32, num_blocks), (torch.uint8, None)
        return (torch.float32, num_blocks), (torch.uint8, levels.packed_codes_numel(numel_of(shapes), self.bits))

    def encode(self, values: Tensor, shapes: Shapes, key: Key) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Round every value to a level below or above it."""
        scales = levels.block_scales(values, block_size=self.block_size, norm=self.norm)
        codes = levels.rounded(values, scales, self.grid, key, block_size=self.block_size)
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
        return levels.scaled(codes, self.grid, 2**self.bits, scales, block_size=self.block_size)

    @property
    def _zero_code(self) -> int:
        """The code of level zero, and so the largest magnitude of a signed level."""
        return len(self.grid) // 2


@dataclass(frozen=True, kw_only=True)
class QSGD(LevelQuantizer):
    """QSGD with the L2 norm: levels j / s of it, s = 2^(bits-1) - 1.

    The variance of a block of n is at most min(n / s^2, sqrt(n) / s) times its squared L2 norm.

    Attributes:
        bits: of one code, sign included, 2 to 8.

    Source: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient quantization and
    encoding", NeurIPS 2017; coding="elias" is its code of levels by Elias's. Differs: the paper's buckets are
    blocks here; the norm is limited to the largest number of fp32; with "elias" a block states its bits.
    """

    name = "qsgd"
    title = "QSGD"
    source = "Alistarh et al., NeurIPS 2017"
    norm = "l2"

    @property
    def grid(self) -> tuple[float, ...]:
        """The levels j / s."""
        return levels.uniform_levels(self.bits)


@dataclass(frozen=True, kw_only=True)
class QSGDInf(LevelQuantizer):
    """QSGD with the maximum norm: levels j / s of it, s = 2^(bits-1) - 1.

    The variance of a block of n is at most n / (4 s^2) times its squared maximum norm. Few levels are zero, so that
    coding="elias" is usually longer than "packed".

    Attributes:
        bits: of one code, sign included, 2 to 8.

    Source: Alistarh et al., NeurIPS 2017, the variant that is normalized by the largest magnitude, as in its
    experiments; named QSGDinf by Ramezani-Kebrya et al., JMLR 2021. Differs: as `QSGD`.
    """

    name = "qsgd_inf"
    title = "QSGDinf"
    source = "Alistarh et al., NeurIPS 2017"
    norm = "max"

    @property
    def grid(self) -> tuple[float, ...]:
        """The levels j / s."""
        return levels.uniform_levels(self.bits)


@dataclass(frozen=True, kw_only=True)
class NUQSGD(LevelQuantizer):
    """NUQSGD with the L2 norm: levels 1, 1/2, 1/4 and so on of it.

    With zero there are s = 2^(bits-1) - 2 levels between 0 and 1. With x = sqrt(n) / 2^s, the variance of a block of n
    is at most 1/8 + 2 x^2 / 9 times its squared L2 norm where x is below 9/4, and x - 1 times from there on (derived
    in benchmarks/bounds.py; docs/evidence/binsgdm.md says how the paper's differs).

    Attributes:
        bits: of one code, sign included, 2 to 7: with 7 the smallest level is 2^-62.
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
        """The levels, powers of 1/2."""
        return levels.exponential_levels(self.bits, with_zero=self.with_zero)
