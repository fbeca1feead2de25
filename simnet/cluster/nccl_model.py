"""The time of NCCL's collectives: by algorithm and protocol, each a latency plus bytes over a bandwidth.

Symbols: n ranks on N nodes of G = n / N ranks, S bytes of the message. A ring passes 2(n - 1) hops, 2(N - 1) of them
between nodes, and 2(n - 1)/n S bytes through every link; a double binary tree passes 2((G - 1) + log2(N)) hops, and
2 S bytes through the NICs of its busiest node, S at two nodes. An all-gather is the second half of a ring: n - 1 hops,
N - 1 of them between nodes, and (n - 1)/n S bytes; a reduce-scatter is the first half. A broadcast or a reduce goes
once round, too, with S bytes. All are pipelines: all links carry bytes at once, and the busiest one decides.

Source: NCCL, src/graph/tuning.cc @5067397, for the form, hop latencies and fractions of the bandwidth. Differs: NCCL
chooses by its own table of bandwidths, this model takes the fastest; start costs, bandwidths, the fraction of LL and
what a hop between nodes takes beyond the table are fitted (docs/evidence/nccl-fit.md: why, and what else was tried).
"""

from functools import lru_cache
from math import log2
from typing import Literal, NamedTuple

from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.schedule import Protocol
from simnet.core.lanes import largest

Algorithm = Literal["ring", "tree"]

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
RING_HOP_S: dict[Protocol, tuple[float, float]] = {
    "LL": (0.6e-6, 2.7e-6), "LL128": (1.9e-6, 4.0e-6), "Simple": (3.4e-6, 14.0e-6),
}  # fmt: skip
"""Latency of a hop of a ring over NVLink and over the network [s]; that of LL over NVLink is fitted."""
TREE_HOP_S: dict[Protocol, tuple[float, float]] = {
    "LL": (0.6e-6, 5.0e-6), "LL128": (1.25e-6, 8.5e-6), "Simple": (4.0e-6, 14.0e-6),
}  # fmt: skip
"""The same of a tree [s]."""
LL128_FRACTION = 0.92
"""Bandwidth of LL128 over that of Simple: 120 of 128 bytes are data; NCCL's table has 0.92."""
TREE_FRACTION = 0.85
"""Bandwidth of a tree over that of a ring, in NCCL's table."""
TWO_NODE_GAIN = 23.6 / 17.8
"""Bandwidth of a channel of a tree over two nodes over that over more, in NCCL's table for Ampere."""


class Candidate(NamedTuple):
    """One algorithm in one protocol on some nodes.

    Attributes:
        algorithm: ring or tree.
        protocol: LL, LL128 or Simple.
        latency_s: time of a message of no bytes [s].
        intra_bytes: bytes that the busiest port of a rank carries for each byte of the message; at the full bandwidth
            of a ring they take as long as the bytes do.
        inter_bytes: the same of the busiest node's NICs.
    """

    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    intra_bytes: float
    inter_bytes: float

    @property
    def name(self) -> str:
        """For people: "ring LL128"."""
        return f"{self.algorithm} {self.protocol}"


class BusBandwidths(NamedTuple):
    """Bus bandwidths of very large messages [B/s]."""

    intra_node: float
    inter_node: float


def rates(costs: NcclCosts, intra_bytes_per_s: float, inter_bytes_per_s: float) -> BusBandwidths:
    """Return the bus bandwidths on links of these nominal ones: of a link in a node, of a node's NICs together."""
    intra_node, inter_node = efficiencies(costs)
    return BusBandwidths(intra_node * intra_bytes_per_s, inter_node * inter_bytes_per_s)


def efficiencies(costs: NcclCosts) -> tuple[float, float]:
    """Return the fractions of the nominal bandwidths in a node and between nodes, 1 where none was measured."""
    intra_node, inter_node = costs.intra_node_efficiency, costs.inter_node_efficiency
    return 1.0 if intra_node is None else intra_node, 1.0 if inter_node is None else inter_node


def s_per_byte(candidate: Candidate, at: BusBandwidths) -> float:
    """Return the time of each byte of the message [s]."""
    return max(candidate.intra_bytes / at.intra_node, candidate.inter_bytes / at.inter_node)


def seconds(candidate: Candidate, at: BusBandwidths, message_bytes: float) -> float:
    """Return the time of an all-reduce [s]."""
    return candidate.latency_s + message_bytes * s_per_byte(candidate, at)


def fastest(candidates: tuple[Candidate, ...], at: BusBandwidths, message_bytes: float) -> Candidate:
    """Return the fastest of some candidates for a message, the first of equals."""
    return min(candidates, key=lambda one: seconds(one, at, message_bytes))


def candidates(costs: NcclCosts, num_nodes: int, ranks_per_node: int) -> tuple[Candidate, ...]:
    """Return every algorithm in every protocol; trees run only across nodes."""
    rings = tuple(_ring(costs, protocol, num_nodes, ranks_per_node) for protocol in PROTOCOLS)
    if num_nodes == 1:
        return rings
    return rings + tuple(_tree(costs, protocol, num_nodes, ranks_per_node) for protocol in PROTOCOLS)


known_candidates = lru_cache(maxsize=4096)(candidates)
"""As `candidates`, kept: a simulation asks for the same costs and nodes again and again, a fit never does."""


@lru_cache(maxsize=4096)
def gather_candidates(costs: NcclCosts, num_nodes: int, ranks_per_node: int) -> tuple[Candidate, ...]:
    """Return the ring all-gather in every protocol, at the costs that were fitted to all-reduces."""
    return tuple(_ring(costs, protocol, num_nodes, ranks_per_node, ways=1) for protocol in PROTOCOLS)


@lru_cache(maxsize=4096)
def broadcast_candidates(costs: NcclCosts, num_nodes: int, ranks_per_node: int) -> tuple[Candidate, ...]:
    """Return the ring of a broadcast or reduce in every protocol: the hops of an all-gather, S bytes on every link."""
    ranks = num_nodes * ranks_per_node
    return tuple(_of_whole_message(one, ranks) for one in gather_candidates(costs, num_nodes, ranks_per_node))


def candidate(  # noqa: PLR0913, PLR0917 - what names one
    costs: NcclCosts, collective: str, algorithm: str, protocol: Protocol, num_nodes: int, ranks_per_node: int
) -> Candidate:
    """Return what one algorithm in one protocol takes of a collective; costs may be arrays over lanes."""
    if collective == "all_reduce":
        return (_tree if algorithm == "tree" else _ring)(costs, protocol, num_nodes, ranks_per_node)
    found = _ring(costs, protocol, num_nodes, ranks_per_node, ways=1)
    return _of_whole_message(found, num_nodes * ranks_per_node) if collective in {"broadcast", "reduce"} else found


def _of_whole_message(gather: Candidate, ranks: int) -> Candidate:
    """Return an all-gather's ring with the whole message on every link, as of a broadcast."""
    more = ranks / (ranks - 1) if ranks > 1 else 1.0
    return gather._replace(intra_bytes=gather.intra_bytes * more, inter_bytes=gather.inter_bytes * more)


def _start_s(costs: NcclCosts, protocol: Protocol) -> float:
    return costs.ll_start_s if protocol == "LL" else costs.start_s


def _fraction(costs: NcclCosts, protocol: Protocol) -> float:
    """Return the bandwidth of a protocol over that of Simple."""
    return {"LL": costs.ll_efficiency, "LL128": LL128_FRACTION, "Simple": 1.0}[protocol]


def _ring(costs: NcclCosts, protocol: Protocol, num_nodes: int, ranks_per_node: int, ways: int = 2) -> Candidate:
    """Return a ring in one protocol; an all-reduce goes round in two ways, reducing and then gathering."""
    ranks = num_nodes * ranks_per_node
    intra_s, inter_s = RING_HOP_S[protocol]
    if protocol == "LL":
        intra_s = costs.ll_hop_s
    crossings = ways * (num_nodes - 1)
    hops_s = (ways * (ranks - 1) - crossings) * intra_s + crossings * (inter_s + costs.inter_node_hop_s)
    sends = ways * (ranks - 1) + (costs.exposed * ways / 2 if num_nodes == 1 else 0.0)
    sent = sends / ranks / _fraction(costs, protocol)
    return Candidate(
        algorithm="ring",
        protocol=protocol,
        latency_s=_start_s(costs, protocol) + hops_s,
        intra_bytes=sent if ranks_per_node > 1 else 0.0,
        inter_bytes=sent if num_nodes > 1 else 0.0,
    )


def _tree(costs: NcclCosts, protocol: Protocol, num_nodes: int, ranks_per_node: int) -> Candidate:
    ranks = num_nodes * ranks_per_node
    intra_s, inter_s = TREE_HOP_S[protocol]
    hops_s = 2 * ((ranks_per_node - 1) * intra_s + log2(num_nodes) * (inter_s + costs.inter_node_hop_s))
    fraction = _fraction(costs, protocol) * TREE_FRACTION * (TWO_NODE_GAIN if num_nodes == 2 else 1.0)
    return Candidate(
        algorithm="tree",
        protocol=protocol,
        latency_s=_start_s(costs, protocol) + hops_s,
        intra_bytes=2 * (ranks_per_node - 1) / ranks_per_node / fraction,
        # A tree is never faster than a ring for very large messages: what limits is the same kernel and the same NIC.
        inter_bytes=largest(2 / fraction, 2 * (ranks - 1) / ranks),
    )
