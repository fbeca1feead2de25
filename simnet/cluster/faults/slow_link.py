"""A link that runs at a fraction of its rate, for good or for a while: a NIC at half speed, one that flaps."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from simnet.cluster.faults.places import check_places
from simnet.cluster.faults.windows import TimedFault
from simnet.cluster.hardware import FAULTS, Cluster, LinkId
from simnet.core.bounded_types import Fraction

_KINDS = {"nic": ("nic_tx", "nic_rx"), "port": ("port_tx", "port_rx"), "uplink": ("leaf_up", "leaf_down")}
_PLACES = {"nic": "node", "port": "rank", "uplink": "leaf"}


@FAULTS.register
class SlowLink(TimedFault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="slow_link"):
    """A link that runs at a fraction of its rate in both directions, for good or for a while.

    Attributes:
        link: "nic": the NICs of a node; "port": the links of a rank inside its node; "uplink": those of a leaf switch.
        place: number of that node, rank or leaf.
        rate: fraction of its rate; the smallest stands for a link that is down.
    """

    title: ClassVar[str] = "slow link"

    link: Literal["nic", "port", "uplink"] = "nic"
    place: Annotated[int, Meta(ge=0)]
    rate: Fraction

    def check(self, cluster: Cluster) -> None:
        """Refuse a link that is not there.

        Raises:
            ValueError: it is not.
        """
        per_leaf = cluster.fabric.nodes_per_leaf if cluster.fabric else 0
        if self.link == "uplink" and not per_leaf:
            raise ValueError("link 'uplink': the cluster has no cluster.fabric; add it, or choose 'nic'")
        leaves = -(-cluster.num_nodes // per_leaf) if per_leaf else 0
        number = {"nic": cluster.num_nodes, "port": cluster.world_size, "uplink": leaves}[self.link]
        check_places(_PLACES[self.link], (self.place,), number)

    @property
    def target(self) -> tuple[str, int]:
        """The link."""
        return self.link, self.place

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """The one of a NIC; it does not say of which node a port is, nor which nodes a leaf joins."""
        return (self.place,) if self.link == "nic" else None

    def link_factor(self, link: LinkId, time_s: float) -> float:
        """Return the factor on the time of a byte on the link while it is slow."""
        is_this = link.kind in _KINDS[self.link] and link.place == self.place
        return 1 / self.rate if is_this and self.is_on(time_s) else 1.0
