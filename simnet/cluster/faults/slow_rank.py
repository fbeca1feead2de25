"""One rank whose GPU computes more slowly than the rest: a straggler."""

from typing import Annotated, ClassVar

from msgspec import Meta

from simnet.cluster.faults.places import check_places
from simnet.cluster.hardware import FAULTS, Cluster, Fault
from simnet.core.bounded_types import Factor


@FAULTS.register
class SlowRank(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="slow_rank"):
    """One rank whose GPU computes more slowly than the rest: a clock that heat holds down, a neighbour on its cores.

    Attributes:
        node: number of its node, as torchrun's GROUP_RANK.
        local_rank: its number in the node, as LOCAL_RANK.
        compute_slowdown: factor on its compute time.
    """

    title: ClassVar[str] = "slow rank"

    node: Annotated[int, Meta(ge=0)]
    local_rank: Annotated[int, Meta(ge=0)] = 0
    compute_slowdown: Factor

    def check(self, cluster: Cluster) -> None:
        """Refuse a rank that is not there.

        Raises:
            ValueError: it is not.
        """
        check_places("node", (self.node,), cluster.num_nodes)
        if self.local_rank >= cluster.ranks_per_node:
            raise ValueError(f"local_rank {self.local_rank}: nodes have ranks 0 to {cluster.ranks_per_node - 1}")

    @property
    def nodes(self) -> tuple[int, ...]:
        """The one of the rank."""
        return (self.node,)

    def compute_factor(self, node: int, local_rank: int) -> float:
        """Return the rank's own factor."""
        return self.compute_slowdown if (node, local_rank) == (self.node, self.local_rank) else 1.0
