"""What NCCL's all-reduce costs on some hardware, as a calibration file holds it: fitted to logs of nccl-tests."""

from typing import Literal

from msgspec import Struct, field

from simnet.cluster.schedule import Protocol
from simnet.core.bounded_types import Fraction, Intervals, Spread
from simnet.core.lanes import smallest
from simnet.core.units import Bandwidth, Duration

MIB, LEAST_RATE = 2**20, 1e6
BANDS = {"below_1_mib": 0, "below_16_mib": MIB, "from_16_mib": 16 * MIB}
"""The least message of each band of sizes [B]; NCCL changes algorithm and protocol about there."""
BETWEEN_CLUSTERS: Intervals = {"below_1_mib": (0.074, 13.6), "below_16_mib": (0.25, 3.9), "from_16_mib": (0.45, 2.2)}
"""How far NCCL's times on one cluster are from those of another at the same nominal rates, 90 %, by size: t(0.95, k)
times the root mean square of the medians of k = 6, 5 and 6 clusters and of the scatter of their rows
(tests/validation/test_other_clusters.py counts the rows of each cluster that the others would have held)."""
SAME_NETWORK: Intervals = {"below_1_mib": (0.39, 2.6), "below_16_mib": (0.36, 2.8), "from_16_mib": (0.45, 2.2)}
"""The same between clusters of one network: by how much two of InfiniBand and three of EFA differ from each other,
pooled. From 16 MiB on there are too few of them to narrow `BETWEEN_CLUSTERS`, which then stays."""
Network = Literal["", "tcp", "roce", "infiniband", "efa"]
"""What NICs speak; empty where nobody has said."""


def band(message_bytes: float) -> str:
    """Return the band of a message, as `NcclCosts` names it."""
    return [name for name, least in BANDS.items() if message_bytes >= least][-1]


class NcclCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Costs of NCCL's rings and trees; `simnet.cluster.nccl_model` says what they do.

    Attributes:
        start_s: paid once by a collective in LL128 or Simple.
        ll_start_s: paid once by a collective in LL.
        ll_hop_s: latency of a hop of a ring in LL inside a node.
        inter_node_hop_s: latency of a hop between nodes beyond that of NCCL's own table, in LL128 and Simple, and in LL
            without one of its own.
        ll_inter_node_hop_s: the same in LL.
        ll_efficiency: bandwidth of LL as a fraction of that of Simple; of trees where they have no rate of their own.
        ll_tree_rate: of a tree in LL between nodes, at each of its levels, which store what they pass on.
        exposed: fraction of a chunk (S/n) that filling the pipeline of a ring in one node adds.
        intra_node_efficiency: bus bandwidth of very large messages in one node over that of a link in a node, if
            measured.
        inter_node_efficiency: bus bandwidth of very large messages across nodes over that of a node's NICs together, if
            measured.
        nvls_start_s: paid once by a tree through NVSwitches (NVLSTree), if NCCL has one.
        nvls_efficiency: its rate in one node over that of a link.
        fabric_alpha_s: one-way latency between the nodes of the measured cluster, if more than a hop of a ring, which
            holds it (`nccl_model.added_hop_s`).
        algorithm: the only one that NCCL may take, as of `NCCL_ALGO=Ring`.
        protocol: the only one that NCCL may take, as of `NCCL_PROTO`.
        below_1_mib: factor on the time of messages below 1 MiB; its interval is how far single times, other numbers of
            nodes and other clusters are from these costs.
        below_16_mib: the same from 1 MiB up to 16 MiB.
        from_16_mib: the same from 16 MiB on.
        source: where the numbers come from.
    """

    start_s: Duration = field(name="start")
    ll_start_s: Duration = field(name="ll_start")
    ll_hop_s: Duration = field(name="ll_hop")
    inter_node_hop_s: Duration = field(name="inter_node_hop", default=Duration(0))
    ll_inter_node_hop_s: Duration | None = field(name="ll_inter_node_hop", default=None)
    ll_efficiency: Fraction
    ll_tree_rate: Bandwidth | None = None
    exposed: Fraction = 1e-6
    intra_node_efficiency: Fraction | None = None
    inter_node_efficiency: Fraction | None = None
    nvls_start_s: Duration | None = field(name="nvls_start", default=None)
    nvls_efficiency: Fraction | None = None
    fabric_alpha_s: Duration | None = field(name="fabric_latency", default=None)
    algorithm: Literal["ring"] | None = None
    protocol: Protocol | None = None
    below_1_mib: Spread = 1.0
    below_16_mib: Spread = 1.0
    from_16_mib: Spread = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        if self.intra_node_efficiency is None and self.inter_node_efficiency is None:
            raise ValueError("intra_node_efficiency: missing: give it, inter_node_efficiency, or both")
        if self.ll_tree_rate is not None and smallest(self.ll_tree_rate) < LEAST_RATE:
            raise ValueError(f"ll_tree_rate: {self.ll_tree_rate.text()!r}: must be at least 1 MB/s; correct it")
        if (self.nvls_start_s is None) != (self.nvls_efficiency is None):
            raise ValueError("nvls_start, nvls_efficiency: must be given together; give both, or drop one")

    def allows(self, algorithm: str, protocol: Protocol) -> bool:
        """Tell whether NCCL may take an algorithm in a protocol."""
        return self.algorithm in {None, algorithm} and self.protocol in {None, protocol}

    def factor(self, message_bytes: float) -> float:
        """Return the factor on the time of a message."""
        factor: float = getattr(self, band(message_bytes))
        return factor

    def holds_for(self, num_nodes: int) -> bool:
        """Tell whether an all-reduce over so many nodes was measured, or one that says enough of it."""
        return (self.intra_node_efficiency if num_nodes == 1 else self.inter_node_efficiency) is not None
