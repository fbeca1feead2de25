"""Traffic of others on the NICs: a neighbour that takes a share of them, or so many connections."""

from typing import Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.faults.windows import NicFault
from simnet.cluster.hardware import FAULTS, LinkId
from simnet.core.bounded_types import Count

MOST_FLOWS = 10**6
"""For each of a collective's own: beyond it next to nothing is left."""


@FAULTS.register
class BackgroundTraffic(NicFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="background_traffic"):
    """Traffic of others through the NICs of some nodes, in both directions.

    Attributes:
        share: part of the NICs' rate that the others take.
        flows: connections of others, in place of a share: TCP gives all connections about as much.
        own_flows: connections of a collective at a time, beside those.
    """

    title: ClassVar[str] = "background traffic"

    share: Annotated[float, Meta(gt=0.0, le=0.999)] | None = None
    flows: Count | None = None
    own_flows: Count = 1

    def __post_init__(self) -> None:
        NicFault.__post_init__(self)
        if (self.share is None) == (self.flows is None):
            raise ValueError("share: say how much the others take: give either share or flows")
        if self.share is not None and self.own_flows != 1:
            raise ValueError(f"own_flows: {self.own_flows}: has no effect with share; drop one of them")
        if self.flows is not None and self.flows + self.own_flows > MOST_FLOWS * self.own_flows:
            raise ValueError(
                f"flows: {self.flows}: leaves less than a millionth of the NICs to own_flows {self.own_flows}; "
                "give fewer"
            )

    def link_factor(self, link: LinkId, time_s: float) -> float:
        """Return how many times as long a byte takes beside the others."""
        if not self.acts_on(link, time_s):
            return 1.0
        if self.share is not None:
            return 1 / (1 - self.share)
        return 1 + (self.flows or 0) / self.own_flows
