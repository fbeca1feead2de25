"""Ranks that stand still now and then: garbage collection, writing a checkpoint, a data loader that lags."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.faults.places import check_places
from simnet.cluster.hardware import FAULTS, Cluster, Fault
from simnet.core.bounded_types import Count
from simnet.core.units import Duration

if TYPE_CHECKING:
    from numpy.random import Generator

    from simnet.core.bounded_types import FloatArray

MOST_S = 1e9


@FAULTS.register
class Pause(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pause"):
    """Ranks that stand still at the start of some iterations: garbage collection, a checkpoint, a data loader.

    Attributes:
        ranks: by default all.
        pause: how long.
        every: iterations from one pause to the next, of all these ranks together; the first is the last of these.
        probability: in place of it, of a pause of each rank in an iteration.
    """

    title: ClassVar[str] = "pause"
    varies: ClassVar[bool] = True
    amounts: ClassVar[tuple[str, ...]] = ("pause", "probability")

    ranks: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    pause: Duration
    every: Count | None = None
    probability: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None

    def __post_init__(self) -> None:
        if (self.every is None) == (self.probability is None):
            raise ValueError("every: say when ranks pause: give either every or probability")
        if self.pause > MOST_S:
            raise ValueError(f"pause: {self.pause.text()!r}: must be at most 10^9 s")

    def check(self, cluster: Cluster) -> None:
        """Refuse ranks that are not there.

        Raises:
            ValueError: one is not.
        """
        check_places("rank", self.ranks, cluster.world_size)

    @property
    def nodes(self) -> tuple[int, ...]:
        """No link and no kernel is slower."""
        return ()

    def draw_pauses_s(self, draws: "Generator", iteration: int, num_ranks: int) -> "FloatArray":
        """Return the pause of each rank [s]."""
        import numpy as np

        if self.every is not None:
            pauses = np.full(num_ranks, (iteration + 1) % self.every == 0)
        else:
            pauses = draws.random(num_ranks) < (self.probability or 0.0)
        if self.ranks:
            named = np.zeros(num_ranks, dtype=bool)
            named[list(self.ranks)] = True
            pauses &= named
        return np.where(pauses, float(self.pause), 0.0)
