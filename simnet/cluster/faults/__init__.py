"""What makes a cluster as it is: faults of ranks, nodes and links, and what varies.

Importing the package makes all of them known to `simnet.cluster.FAULTS`. Other packages add theirs by
`FAULTS.register`, or by an entry point of the group `simnet.faults`.
"""

# In this order they are documented.
# isort: off
from simnet.cluster.faults.slow_rank import SlowRank
from simnet.cluster.faults.other_nodes import OtherNodes
from simnet.cluster.faults.slow_link import SlowLink
from simnet.cluster.faults.added_latency import AddedLatency
from simnet.cluster.faults.background_traffic import BackgroundTraffic
from simnet.cluster.faults.packet_loss import PacketLoss
from simnet.cluster.faults.pause import Pause
from simnet.cluster.faults.jitter import CollectiveJitter, ComputeJitter
from simnet.cluster.faults.node_failure import NodeFailure
# isort: on

__all__ = [
    "AddedLatency",
    "BackgroundTraffic",
    "CollectiveJitter",
    "ComputeJitter",
    "NodeFailure",
    "OtherNodes",
    "PacketLoss",
    "Pause",
    "SlowLink",
    "SlowRank",
]
