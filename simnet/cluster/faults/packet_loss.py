"""Loss of packets, by what TCP still carries beside it."""

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.faults.windows import NicFault
from simnet.cluster.hardware import FAULTS, LinkId
from simnet.core.bounded_types import Count
from simnet.core.units import Duration, Size

_TIMEOUT_ROUND_TRIPS = 4
"""RFC 5348, section 4.3: t_RTO = 4 R, as a simple and conservative choice."""


@FAULTS.register
class PacketLoss(NicFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="packet_loss"):
    """Packets lost on the NICs of some nodes: each TCP connection carries no more than its loss lets it.

    The rate is the throughput equation of TCP (Padhye et al., "Modeling TCP throughput", SIGCOMM 1998; RFC 5348,
    section 3.1). It holds for loss-based congestion control, Reno and roughly CUBIC, and not for BBR.

    Attributes:
        probability: part of the packets that are lost.
        round_trip: time from a packet to its acknowledgement.
        segment: bytes of a packet without its headers.
        connections: TCP connections through the NICs of a node at a time.
    """

    title: ClassVar[str] = "packet loss"

    probability: Annotated[float, Meta(gt=0.0, le=0.5)]
    round_trip: Duration
    segment: Size = Size(1448)
    connections: Count = 1

    def __post_init__(self) -> None:
        NicFault.__post_init__(self)
        if self.round_trip < 1e-9:
            raise ValueError(f"round_trip: {self.round_trip.text()!r}: must be at least 1 ns")
        if self.segment < 1:
            raise ValueError(f"segment: {self.segment.text()!r}: must be at least 1 B")

    @property
    def goodput_bytes_per_s(self) -> float:
        """What all connections of a node carry [B/s]."""
        loss, round_trip_s = self.probability, float(self.round_trip)
        usual_s = round_trip_s * math.sqrt(2 * loss / 3)
        timeouts_s = _TIMEOUT_ROUND_TRIPS * round_trip_s * 3 * math.sqrt(3 * loss / 8) * loss * (1 + 32 * loss**2)
        return max(self.connections * self.segment / (usual_s + timeouts_s), 1.0)

    def link_limit(self, link: LinkId, time_s: float) -> float:
        """Return the goodput of a NIC that loses packets [B/s]."""
        return self.goodput_bytes_per_s if self.acts_on(link, time_s) else math.inf
