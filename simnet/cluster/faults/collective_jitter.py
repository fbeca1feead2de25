"""Collectives that take a little more or less every time."""

from typing import TYPE_CHECKING, ClassVar

from simnet.cluster.faults.jitter import Jitter
from simnet.cluster.hardware import FAULTS

if TYPE_CHECKING:
    from numpy.random import Generator

    from simnet.core.bounded_types import FloatArray


@FAULTS.register
class CollectiveJitter(Jitter, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="collective_jitter"):
    """Collectives that take a little more or less every time: one factor of mean 1 for each, all its ranks alike."""

    title: ClassVar[str] = "jitter of collectives"
    varies: ClassVar[bool] = True

    def draw_collectives(self, draws: "Generator", iteration: int, number: int) -> "FloatArray":  # noqa: ARG002
        """Return the factor of each collective."""
        return self.draw_factors(draws, number)
