"""How times vary around their mean: lognormal by a coefficient of variation, or as samples that were measured."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.hardware import Fault

if TYPE_CHECKING:
    from numpy.random import Generator

    from simnet.core.bounded_types import FloatArray

Samples = tuple[Annotated[float, Meta(gt=0.0, le=1e9)], ...]
MOST_SAMPLES = 10_000


class Jitter(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Factors of mean 1 on times.

    Attributes:
        cv: standard deviation / mean of a lognormal distribution.
        samples: in place of it, measured times or factors, drawn alike often; only their spread counts, since their
            mean is what the scenario says.
    """

    amounts: ClassVar[tuple[str, ...]] = ("cv",)

    cv: Annotated[float, Meta(gt=0.0, le=10.0)] | None = None
    samples: Samples | None = None

    def __post_init__(self) -> None:
        if (self.cv is None) == (self.samples is None):
            raise ValueError("cv: say how times vary: give either cv or samples")
        if self.samples is not None and not 2 <= len(self.samples) <= MOST_SAMPLES:
            raise ValueError(f"samples: {len(self.samples)} numbers: must be 2 to {MOST_SAMPLES}")
        if self.samples is not None and min(self.samples) * 1e6 * len(self.samples) < sum(self.samples):
            raise ValueError(f"samples: {min(self.samples):g}: must be at least a millionth of their mean")

    @property
    def nodes(self) -> tuple[int, ...]:
        """No link and no kernel is slower for good."""
        return ()

    def draw_factors(self, draws: "Generator", number: int) -> "FloatArray":
        """Return so many factors."""
        import numpy as np

        if self.samples is not None:
            samples = np.array(self.samples) / (sum(self.samples) / len(self.samples))
            return np.asarray(draws.choice(samples, number))
        variance = math.log1p((self.cv or 0.0) ** 2)
        return np.clip(draws.lognormal(-variance / 2, math.sqrt(variance), number), 1e-6, 1e9)
