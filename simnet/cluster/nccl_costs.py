"""What NCCL's all-reduce costs on some hardware, as a calibration file holds it: fitted to logs of nccl-tests."""

from msgspec import Struct, field

from simnet.core.bounded_types import Fraction
from simnet.core.units import Duration


class NcclCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs of NCCL's rings and trees; `simnet.cluster.nccl_model` says what they do.

    Attributes:
        start_s: time that a collective in LL128 or Simple takes once.
        ll_start_s: time that a collective in LL takes once.
        ll_hop_s: latency of a hop of a ring in LL inside a node.
        inter_node_hop_s: latency of a hop between nodes beyond that of NCCL's own table, in every protocol.
        ll_efficiency: bandwidth of LL as a fraction of that of Simple.
        exposed: fraction of a chunk (S/n) that filling the pipeline of a ring in one node adds.
        intra_node_efficiency: bus bandwidth of very large messages in one node as a fraction of the bandwidth of a
            link in a node; missing where it was not measured.
        inter_node_efficiency: bus bandwidth of very large messages across nodes as a fraction of the bandwidth of a
            node's NICs together; missing where it was not measured.
        source: where the numbers come from.
    """

    start_s: Duration = field(name="start")
    ll_start_s: Duration = field(name="ll_start")
    ll_hop_s: Duration = field(name="ll_hop")
    inter_node_hop_s: Duration = field(name="inter_node_hop", default=Duration(0))
    ll_efficiency: Fraction
    exposed: Fraction = 1e-6
    intra_node_efficiency: Fraction | None = None
    inter_node_efficiency: Fraction | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if self.intra_node_efficiency is None and self.inter_node_efficiency is None:
            raise ValueError("intra_node_efficiency: missing: give it, inter_node_efficiency, or both")

    def holds_for(self, num_nodes: int) -> bool:
        """Tell whether an all-reduce over so many nodes was measured, or one that says enough of it."""
        return (self.intra_node_efficiency if num_nodes == 1 else self.inter_node_efficiency) is not None
