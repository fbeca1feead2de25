"""How u of all ranks become the signs that they apply, without messages: the functions of the step, place by place.

Shape letters: R rows at the first place (ranks, or nodes with their mean), N elements.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from binsgdm.kernels import functional

SCHEMES: dict[str, tuple[int, ...]] = {
    "alone": (),
    "flat, 4 ranks": (4,),
    "hierarchical, 2 nodes": (2,),
    "hierarchical, 4 nodes": (4,),
    "one_bit, 2 x 2": (2, 2),
}
"""How many signs each merge takes, in order."""


class Shaped:
    """Shaped rounding at every place, with the residuals of all ranks.

    Args:
        merges: how many signs each merge takes, in order; their product is R.
        numel: N.
        seed: of the starts, which are uniform on the values that a residual can come back to.

    Attributes:
        units: by place, what one sign counts.
        residuals: by place, int16 (rows of the place, N).
    """

    def __init__(self, merges: Sequence[int], numel: int, *, seed: int = 0) -> None:
        self.merges, self.units = tuple(merges), (functional.SCALE, *merges)
        source = torch.Generator().manual_seed(seed)
        rows = [math.prod(self.merges[place:]) for place in range(len(self.units))]
        self.residuals = [
            torch.randint(-unit, unit, (count, numel), generator=source).to(torch.int16)
            for unit, count in zip(self.units, rows, strict=True)
        ]

    def signs(self, u: Tensor, *, gain: float = 1.0) -> Tensor:
        """Return the signs (N) that all ranks apply for u (R, N); the residuals go on."""
        positive, self.residuals[0] = functional.shape(u, self.residuals[0], gain=gain)
        for place, count in enumerate(self.merges, start=1):
            sums = (2 * positive.to(torch.int32) - 1).view(-1, count, u.shape[1]).sum(dim=1)
            positive, self.residuals[place] = functional.shape_merge(sums, self.residuals[place], num_vectors=count)
        return 2.0 * positive[0] - 1.0

    def offset(self) -> Tensor:
        """Return by how much u has been ahead of the signs since the residuals were 0, in signs, fp64 (N)."""
        pairs = zip(self.residuals, self.units, strict=True)
        return torch.stack([residual.double().mean(dim=0) / unit for residual, unit in pairs]).sum(dim=0)


class Drawn:
    """The paper's rounding at every place: independent draws.

    Args:
        merges: as for `Shaped`.
        seed: of the draws.
    """

    def __init__(self, merges: Sequence[int], *, seed: int = 0) -> None:
        self.merges, self._source = tuple(merges), torch.Generator().manual_seed(seed)

    def signs(self, u: Tensor, *, gain: float = 1.0) -> Tensor:
        """Return the signs (N) that all ranks apply for u (R, N)."""
        signs = self._round(functional.clip(u, gain=gain))
        for count in self.merges:
            signs = self._round(signs.view(-1, count, u.shape[1]).mean(dim=1))
        return signs[0]

    def _round(self, values: Tensor) -> Tensor:
        thresholds = 2.0 * torch.rand(values.shape, generator=self._source) - 1.0
        return 2.0 * functional.quantize(values, thresholds) - 1.0


def rounded(u: Tensor, *, gain: float = 1.0) -> Tensor:
    """Return what shaped rounding follows: the mean over rows of clip(gain u), each rounded to 1/32767; fp64 (N)."""
    whole = (functional.clip(u, gain=gain) * float(functional.SCALE)).round()
    return whole.double().mean(dim=0) / functional.SCALE
