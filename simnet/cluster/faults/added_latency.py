"""Latency beside the usual one, of sends that leave or reach some nodes."""

from typing import Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.faults.places import check_places, is_nic_of
from simnet.cluster.faults.windows import TimedFault
from simnet.cluster.hardware import FAULTS, Cluster, LinkId
from simnet.core.units import Duration

MOST_S = 1e6


@FAULTS.register
class AddedLatency(TimedFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="added_latency"):
    """Latency beside the usual one of every send that leaves or reaches some nodes: another building, a busy switch.

    A send between two of them waits twice.

    Attributes:
        at_nodes: by default all.
        added: what a send waits at each of its two ends that is one of them.
    """

    title: ClassVar[str] = "added latency"

    at_nodes: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    added: Duration

    def __post_init__(self) -> None:
        TimedFault.__post_init__(self)
        if self.added > MOST_S:
            raise ValueError(f"added: {self.added.text()!r}: must be at most 10^6 s")

    def check(self, cluster: Cluster) -> None:
        """Refuse nodes that are not there.

        Raises:
            ValueError: one is not.
        """
        check_places("node", self.at_nodes, cluster.num_nodes)

    @property
    def target(self) -> tuple[int, ...]:
        """The nodes."""
        return self.at_nodes

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Those at which sends wait."""
        return self.at_nodes or None

    def added_latency_s(self, link: LinkId, time_s: float) -> float:
        """Return what a send waits at a NIC of these nodes [s]."""
        return self.added if is_nic_of(link, self.at_nodes) and self.is_on(time_s) else 0.0
