"""The time of NCCL's all-reduce: by algorithm and protocol, each a latency plus bytes over a bandwidth.

Symbols: n ranks on N nodes of G = n / N ranks, S bytes of the message. A ring passes 2(n - 1) hops, 2(N - 1) of them
between nodes, and 2(n - 1)/n S bytes through its slowest link; a double binary tree passes 2((G - 1) + log2(N)) hops
and 2 S bytes.

Source: NCCL, src/graph/tuning.cc @5067397, for hop latencies and protocol fractions. Differs: NCCL chooses by its own
table of bandwidths, this model takes the fastest; the start cost of LL128 and Simple, the bandwidths and the fraction
of LL are fitted, since the table is off by several times there (docs/evidence/nccl-fit.md).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Algorithm = Literal["ring", "tree"]
Protocol = Literal["LL", "LL128", "Simple"]
Floats = NDArray[np.float64]

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
HOP_S: dict[Algorithm, dict[Protocol, tuple[float, float]]] = {
    "ring": {"LL": (0.6e-6, 2.7e-6), "LL128": (1.9e-6, 4.0e-6), "Simple": (3.4e-6, 14.0e-6)},
    "tree": {"LL": (0.6e-6, 5.0e-6), "LL128": (1.25e-6, 8.5e-6), "Simple": (4.0e-6, 14.0e-6)},
}
"""Latency of a hop over NVLink and over the network [s]."""
LL128_FRACTION = 0.92
"""Bandwidth of LL128 over that of Simple: 120 of 128 bytes are data; NCCL's table has 0.92."""
TREE_FRACTION = 0.85
"""Bandwidth of a tree over that of a ring, in NCCL's table."""


@dataclass(frozen=True, kw_only=True)
class NcclCosts:
    """The fitted costs.

    Attributes:
        node_bytes_per_s: bus bandwidth of a ring in a node, for very large messages.
        net_bytes_per_s: bus bandwidth of a ring across nodes.
        start_s: start cost of a collective in LL128 or Simple.
        exposed: fraction of a chunk (S/n) that filling the pipeline of a ring in a node adds.
        ll_start_s: start cost of a collective in LL.
        ll_hop: factor on the hop latencies of LL in the table.
        ll_fraction: bandwidth of LL over that of Simple.
    """

    node_bytes_per_s: float
    net_bytes_per_s: float
    start_s: float = 8.4e-6
    exposed: float = 0.0
    ll_start_s: float = 6.6e-6
    ll_hop: float = 1.0
    ll_fraction: float = 0.5

    def bytes_per_s(self, num_nodes: Floats) -> Floats:
        """Return the bus bandwidth of a ring [B/s]."""
        return np.where(num_nodes > 1, self.net_bytes_per_s, self.node_bytes_per_s)

    def protocol(self, protocol: Protocol) -> tuple[float, float, float]:
        """Return start [s], factor on hop latencies and fraction of the bandwidth of a protocol."""
        if protocol == "LL":
            return self.ll_start_s, self.ll_hop, self.ll_fraction
        return self.start_s, 1.0, LL128_FRACTION if protocol == "LL128" else 1.0


@dataclass(frozen=True, kw_only=True)
class AllReduces:
    """Some all-reduces, an element for each: message [B], ranks per node, nodes."""

    message_bytes: Floats
    ranks_per_node: Floats
    num_nodes: Floats

    @property
    def ranks(self) -> Floats:
        """World size of each."""
        return self.ranks_per_node * self.num_nodes


def all_reduce_s(all_reduces: AllReduces, costs: NcclCosts) -> Floats:
    """Return the time of each all-reduce in its fastest algorithm and protocol [s]."""
    fastest: Floats = np.min(np.stack([times for _, times in candidates(all_reduces, costs)]), axis=0)
    return fastest


def ring_all_reduce_s(all_reduces: AllReduces, costs: NcclCosts) -> Floats:
    """Return the time of each all-reduce in a ring, in its fastest protocol [s]."""
    fastest: Floats = np.min(np.stack([_ring_s(all_reduces, costs, protocol) for protocol in PROTOCOLS]), axis=0)
    return fastest


def chosen(all_reduces: AllReduces, costs: NcclCosts) -> list[str]:
    """Return the fastest algorithm and protocol of each all-reduce, such as "ring LL128"."""
    named = candidates(all_reduces, costs)
    best = np.argmin(np.stack([times for _, times in named]), axis=0)
    return [named[index][0] for index in best]


def candidates(all_reduces: AllReduces, costs: NcclCosts) -> list[tuple[str, Floats]]:
    """Return the times under every algorithm and protocol, by name; trees run only across nodes."""
    ring = [(f"ring {protocol}", _ring_s(all_reduces, costs, protocol)) for protocol in PROTOCOLS]
    tree = [(f"tree {protocol}", _tree_s(all_reduces, costs, protocol)) for protocol in PROTOCOLS]
    return ring + [(name, np.where(all_reduces.num_nodes > 1, times, np.inf)) for name, times in tree]


def _ring_s(all_reduces: AllReduces, costs: NcclCosts, protocol: Protocol) -> Floats:
    start_s, hop, fraction = costs.protocol(protocol)
    intra_s, inter_s = HOP_S["ring"][protocol]
    crossings = 2 * (all_reduces.num_nodes - 1)
    latency_s = start_s + hop * ((2 * (all_reduces.ranks - 1) - crossings) * intra_s + crossings * inter_s)
    chunk_bytes = all_reduces.message_bytes / all_reduces.ranks
    sends = 2 * (all_reduces.ranks - 1) + np.where(all_reduces.num_nodes > 1, 0.0, costs.exposed)
    return latency_s + sends * chunk_bytes / (costs.bytes_per_s(all_reduces.num_nodes) * fraction)


def _tree_s(all_reduces: AllReduces, costs: NcclCosts, protocol: Protocol) -> Floats:
    start_s, hop, fraction = costs.protocol(protocol)
    intra_s, inter_s = HOP_S["tree"][protocol]
    latency_s = start_s + hop * 2 * (
        (all_reduces.ranks_per_node - 1) * intra_s + np.log2(all_reduces.num_nodes) * inter_s
    )
    bytes_per_s = costs.bytes_per_s(all_reduces.num_nodes) * fraction * TREE_FRACTION
    return latency_s + 2 * all_reduces.message_bytes / bytes_per_s
