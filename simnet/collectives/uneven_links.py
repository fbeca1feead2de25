"""The links of a cluster whose links are not alike, as arrays: what each gives while no fault begins or ends."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from simnet.hardware import LinkId, LinkKind
from simnet.network.topology import Topology

if TYPE_CHECKING:
    from simnet.values import FloatArray

_PLACES: dict[LinkKind, str] = {"port_tx": "rank", "port_rx": "rank", "nic_tx": "node", "nic_rx": "node"}


class UnevenLinks:
    """Bandwidths and latencies by kind and place, from one time until the next change.

    Attributes:
        topology: the cluster.
        since_s: the time at which faults are asked [s].
        are_usual: whether no fault touches any link just now.
    """

    def __init__(self, topology: Topology, since_s: float) -> None:
        self.topology = topology
        self.since_s = since_s
        self._bytes_per_s: dict[LinkKind, FloatArray] = {}
        self._added_s: dict[LinkKind, FloatArray] = {}
        kinds: tuple[LinkKind, ...] = ("nic_tx", "nic_rx", "port_tx", "port_rx", "leaf_up", "leaf_down")
        self.are_usual = all(self._is_untouched(kind) for kind in kinds)

    def bytes_per_s(self, kind: LinkKind) -> "FloatArray":
        """Return the bandwidth of every link of a kind [B/s]."""
        if kind not in self._bytes_per_s:
            usual = without_faults(self.topology).capacity(LinkId(kind, 0))
            found = np.full(self._number(kind), usual)
            for place in self.topology.touched(kind):
                found[place] = self.topology.capacity(LinkId(kind, place), self.since_s)
            self._bytes_per_s[kind] = found
        return self._bytes_per_s[kind]

    def added_s(self, kind: LinkKind) -> "FloatArray":
        """Return what faults add to the latency of a send over every link of a kind [s]."""
        if kind not in self._added_s:
            found = np.zeros(self._number(kind))
            for place in self.topology.touched(kind):
                found[place] = self.topology.added_latency_s((LinkId(kind, place),), self.since_s)
            self._added_s[kind] = found
        return self._added_s[kind]

    def _number(self, kind: LinkKind) -> int:
        topology = self.topology
        leaves = -(-topology.num_nodes // topology.nodes_per_leaf)
        return {"rank": topology.world_size, "node": topology.num_nodes}.get(_PLACES.get(kind, ""), leaves)

    def _is_untouched(self, kind: LinkKind) -> bool:
        usual = without_faults(self.topology).capacity(LinkId(kind, 0))
        return bool((self.bytes_per_s(kind) == usual).all()) and not self.added_s(kind).any()


@lru_cache(maxsize=64)
def links_since(topology: Topology, since_s: float) -> UnevenLinks:
    """Return the links as they are from a time on."""
    return UnevenLinks(topology, since_s)


def without_faults(topology: Topology) -> Topology:
    """Return the topology as it would be without faults."""
    return _stripped(topology) if topology.faults else topology


@lru_cache(maxsize=64)
def _stripped(topology: Topology) -> Topology:
    return replace(topology, faults=())
