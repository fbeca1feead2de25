"""Latency beside the usual one, of sends that leave or reach some nodes."""

from typing import ClassVar

from simnet.cluster.faults.windows import NicFault
from simnet.cluster.hardware import FAULTS, LinkId
from simnet.core.units import Duration

MOST_S = 1e6


@FAULTS.register
class AddedLatency(NicFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="added_latency"):
    """Latency beside the usual one of every send that leaves or reaches some nodes: another building, a busy switch.

    A send between two of them waits twice.

    Attributes:
        added: what a send waits at each of its two ends that is one of them.
    """

    title: ClassVar[str] = "added latency"

    added: Duration

    def __post_init__(self) -> None:
        NicFault.__post_init__(self)
        if self.added > MOST_S:
            raise ValueError(f"added: {self.added.text()!r}: must be at most 10^6 s")

    @property
    def target(self) -> tuple[int, ...]:
        """The nodes."""
        return self.at_nodes

    def added_latency_s(self, link: LinkId, time_s: float) -> float:
        """Return what a send waits at a NIC of these nodes [s]."""
        return self.added if self.acts_on(link, time_s) else 0.0
