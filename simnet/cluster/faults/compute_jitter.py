"""Compute that takes a little more or less in every iteration, on every rank by itself."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.faults.jitter import Jitter
from simnet.cluster.faults.places import check_places
from simnet.cluster.hardware import FAULTS, Cluster

if TYPE_CHECKING:
    from numpy.random import Generator

    from simnet.core.bounded_types import FloatArray


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

        drawn = self.draw_factors(draws, num_ranks)
        if not self.ranks:
            return drawn
        found = np.ones(num_ranks)
        found[list(self.ranks)] = drawn[list(self.ranks)]
        return found
