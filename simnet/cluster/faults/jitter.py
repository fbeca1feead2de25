"""Compute and collectives that take a little more or less every time: lognormal, or as samples that were measured."""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.faults.places import check_places
from simnet.cluster.hardware import FAULTS, Cluster, Fault

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
            # Over their mean: what iterations take on average is said by the scenario.
            samples = np.array(self.samples) / (sum(self.samples) / len(self.samples))
            return np.asarray(draws.choice(samples, number))
        # A lognormal with this variance of its logarithm, and mean 1, has the wanted coefficient of variation.
        variance = math.log1p((self.cv or 0.0) ** 2)
        return np.clip(draws.lognormal(-variance / 2, math.sqrt(variance), number), 1e-6, 1e9)


@FAULTS.register
class ComputeJitter(Jitter, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="compute_jitter"):
    """Compute that takes a little more or less in every iteration: one factor of mean 1 for each rank and iteration.

    Attributes:
        ranks: by default all.
    """

    title: ClassVar[str] = "jitter of compute"
    varies: ClassVar[bool] = True

    ranks: tuple[Annotated[int, Meta(ge=0)], ...] = ()

    def check(self, cluster: Cluster) -> None:
        """Refuse ranks that are not there.

        Raises:
            ValueError: one is not.
        """
        check_places("rank", self.ranks, cluster.world_size)

    def draw_compute(self, draws: "Generator", iteration: int, num_ranks: int) -> "FloatArray":  # noqa: ARG002
        """Return the factor of each rank."""
        import numpy as np

        # For all ranks, whichever vary: a rank draws the same whether or not others are named.
        drawn = self.draw_factors(draws, num_ranks)
        if not self.ranks:
            return drawn
        factors = np.ones(num_ranks)
        factors[list(self.ranks)] = drawn[list(self.ranks)]
        return factors


@FAULTS.register
class CollectiveJitter(Jitter, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="collective_jitter"):
    """Collectives that take a little more or less every time: one factor of mean 1 for each, all its ranks alike."""

    title: ClassVar[str] = "jitter of collectives"
    varies: ClassVar[bool] = True

    def draw_collectives(self, draws: "Generator", iteration: int, number: int) -> "FloatArray":  # noqa: ARG002
        """Return the factor of each collective."""
        return self.draw_factors(draws, number)
