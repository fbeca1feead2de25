"""How long ranks wait for each other, and for which."""

from msgspec import Struct


class LateRank(Struct, frozen=True, kw_only=True, gc=False):
    """A rank for which others wait.

    Attributes:
        rank: its number.
        share: part of all collectives that it takes part in at which it came last by its own doing, 0 to 1.
        held_s: by how much longer than the typical rank of its group it took since its last collective, summed over the
            collectives of a mean iteration to which it came last [s]. How late a collective left it is not its own.
    """

    rank: int
    share: float
    held_s: float


class RankWaits(Struct, frozen=True, kw_only=True, gc=False):
    """How long ranks wait for each other at collectives, in a mean iteration.

    Attributes:
        mean_s: mean over the ranks [s].
        least_s: of the rank that waits least, for which others wait most [s].
        most_s: of the rank that waits most [s].
        late: ranks for which others wait longest, at most eight of them, the latest first.
    """

    mean_s: float
    least_s: float
    most_s: float
    late: tuple[LateRank, ...] = ()
