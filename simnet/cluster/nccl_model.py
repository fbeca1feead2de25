"""The time of NCCL's collectives: by algorithm and protocol, each a latency plus bytes over a bandwidth.

Symbols: n ranks on N nodes of G = n / N ranks, S bytes of the message. A ring passes 2(n - 1) hops, 2(N - 1) of them
between nodes, and 2(n - 1)/n S bytes through every link; a double binary tree passes 2((G - 1) + log2(N)) hops, and
2 S bytes through the NICs of its busiest node, S at two nodes. An all-gather is the second half of a ring: n - 1 hops,
N - 1 of them between nodes, and (n - 1)/n S bytes; a reduce-scatter is the first half. A broadcast or a reduce goes
once round, too, with S bytes. NVLSTree reduces in the NVSwitches of each node and goes up and down a tree between
them, 2(log2(N) - 1) hops: S bytes through the NICs of a node at two nodes, 2 S beyond. All are pipelines: all links
carry bytes at once, and the busiest one decides.

A cluster whose latency is more than that of the fabric that was measured adds the difference to hops between nodes
(`added_hop_s`, `added_s`). In a ring every rank has bytes of its own to send meanwhile, so that all hops of a way but
the first hide behind bytes; what goes down a tree, or once round, waits for every hop.

Source: NCCL, src/graph/tuning.cc @5067397, for the form, hop latencies and fractions of the bandwidth. Differs: NCCL
chooses by its own table of bandwidths, this model takes the fastest; start costs, bandwidths, the fraction of LL and
what a hop between nodes takes beyond the table are fitted (docs/evidence/simulator.md: why, and what else was tried).
"""

from functools import lru_cache
from math import isinf, log2
from typing import Literal, NamedTuple

from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.schedule import Protocol
from simnet.core.lanes import largest

Algorithm = Literal["ring", "tree", "nvls_tree"]

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
LL_FLAGS = 2.0
"""Bytes that LL sends for each byte of data: half of them are flags."""
TREE_FRACTION = 0.85
"""Bandwidth of a tree over that of a ring, in NCCL's table."""
TWO_NODE_GAIN = 23.6 / 17.8
"""Bandwidth of a channel of a tree over two nodes over that over more, in NCCL's table for Ampere."""


Limit = Literal["in_node", "across", "nvls", "ll_tree"]


class Candidate(NamedTuple):
    """One algorithm in one protocol on some nodes.

    Attributes:
        algorithm: ring or tree.
        protocol: LL, LL128 or Simple.
        latency_s: time of a message of no bytes [s].
        intra_bytes: bytes that the busiest port of a rank carries for each byte of the message; at the full bandwidth
            of a ring they take as long as the bytes do.
        inter_bytes: the same of the busiest node's NICs.
        crossings: hops between nodes that a byte passes one after the other.
        exposed_crossings: those of them that no bytes hide.
        limit: what `intra_bytes` go through: links in a node; these across nodes, where they carry at least what the
            NICs do, since a ring that leaves a node has more channels; NVSwitches; the levels of a tree in LL.
    """

    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    intra_bytes: float
    inter_bytes: float
    crossings: float
    exposed_crossings: float
    limit: Limit = "in_node"

    @property
    def name(self) -> str:
        """For people: "ring LL128"."""
        return f"{self.algorithm} {self.protocol}"


class BusBandwidths(NamedTuple):
    """Bus bandwidths of very large messages, and the rates of NVLSTree in a node and of LL's trees [B/s]."""

    intra_node: float
    inter_node: float
    nvls: float = float("inf")
    ll_tree: float = float("inf")

    def in_node(self, limit: Limit) -> float:
        """Return the rate of what a candidate's bytes in a node go through."""
        if limit in {"nvls", "ll_tree"}:
            return self.nvls if limit == "nvls" else self.ll_tree
        is_known = not (isinstance(self.inter_node, float) and isinf(self.inter_node))
        return largest(self.intra_node, self.inter_node) if limit == "across" and is_known else self.intra_node


def rates(costs: NcclCosts, intra_bytes_per_s: float, inter_bytes_per_s: float) -> BusBandwidths:
    """Return the bus bandwidths on links of these nominal ones: of a link in a node, of a node's NICs together.

    What was not measured is at the nominal rate.
    """
    efficiencies = costs.intra_node_efficiency, costs.inter_node_efficiency, costs.nvls_efficiency
    intra_node, inter_node, nvls = (1.0 if efficiency is None else efficiency for efficiency in efficiencies)
    return BusBandwidths(
        intra_node * intra_bytes_per_s,
        inter_node * inter_bytes_per_s,
        nvls * intra_bytes_per_s,
        float("inf") if costs.ll_tree_rate is None else costs.ll_tree_rate,
    )


def s_per_byte(candidate: Candidate, at: BusBandwidths) -> float:
    """Return the time of each byte of the message [s]."""
    # Both levels work at once on a message in chunks: the slower one sets the pace.
    return largest(candidate.intra_bytes / at.in_node(candidate.limit), candidate.inter_bytes / at.inter_node)


def seconds(candidate: Candidate, at: BusBandwidths, message_bytes: float, hop_s: float = 0.0) -> float:
    """Return the time of an all-reduce, where each hop between nodes takes so much more than was measured [s]."""
    return latency_s(candidate, at, message_bytes, hop_s) + message_bytes * s_per_byte(candidate, at)


def latency_s(candidate: Candidate, at: BusBandwidths, message_bytes: float, hop_s: float) -> float:
    """Return what of the time its bytes do not take [s]."""
    # In one node nothing crosses, and a latency between nodes adds nothing.
    if not candidate.crossings:
        return candidate.latency_s
    # Between two crossings a chunk passes through a node, in whose time each NIC sends as many bytes.
    bytes_s = message_bytes * s_per_byte(candidate, at) / candidate.crossings
    hidden = candidate.crossings - candidate.exposed_crossings
    return candidate.latency_s + candidate.exposed_crossings * hop_s + hidden * largest(hop_s - bytes_s, 0.0)


def added_hop_s(costs: NcclCosts, alpha_s: float) -> float:
    """Return what a cluster's latency adds to a hop between nodes beyond that of the fabric that was measured [s].

    How much of a fitted hop is the wire's is not known, but the wire's latency is in it: a fabric with a hop of h has
    at most h. Files of clusters, too, give a hop of NCCL's table where nobody has measured the wire. So a latency up to
    the hop of Simple, the longest, is taken for the fabric's own, and what is beyond adds to each hop. The most that
    this leaves out is h. Where the file of the cluster that was measured gives more than h, only what is beyond that.

    Args:
        costs: fitted on some fabric.
        alpha_s: latency between the nodes of the cluster [s].
    """
    known_s = RING_HOP_S["Simple"][1] + costs.inter_node_hop_s
    if costs.fabric_alpha_s is not None:
        known_s = largest(known_s, costs.fabric_alpha_s)
    return largest(alpha_s - known_s, 0.0)


def fastest(
    candidates: tuple[Candidate, ...], at: BusBandwidths, message_bytes: float, hop_s: float = 0.0
) -> Candidate:
    """Return the fastest of some candidates for a message, the first of equals."""
    return min(candidates, key=lambda candidate: seconds(candidate, at, message_bytes, hop_s))


def candidates(costs: NcclCosts, num_nodes: int, ranks_per_node: int) -> tuple[Candidate, ...]:
    """Return every algorithm in every protocol; trees run only across nodes."""
    candidates = [_ring(costs, protocol, num_nodes, ranks_per_node) for protocol in PROTOCOLS]
    if num_nodes > 1:
        candidates += [_tree(costs, protocol, num_nodes, ranks_per_node) for protocol in PROTOCOLS]
    if num_nodes > 1 and has_nvls(costs, ranks_per_node):
        candidates.append(_nvls_tree(costs, num_nodes))
    return tuple(candidate for candidate in candidates if costs.allows(candidate.algorithm, candidate.protocol))


def has_nvls(costs: NcclCosts, ranks_per_node: int) -> bool:
    """Tell whether NCCL may reduce in NVSwitches."""
    return costs.nvls_start_s is not None and ranks_per_node > 1


known_candidates = lru_cache(maxsize=4096)(candidates)
"""As `candidates`, kept: a simulation asks for the same costs and nodes again and again, a fit never does."""


@lru_cache(maxsize=4096)
def gather_candidates(costs: NcclCosts, num_nodes: int, ranks_per_node: int) -> tuple[Candidate, ...]:
    """Return the ring all-gather in every protocol, at the costs that were fitted to all-reduces."""
    return tuple(
        _ring(costs, protocol, num_nodes, ranks_per_node, ways=1)
        for protocol in PROTOCOLS
        if costs.allows("ring", protocol)
    )


@lru_cache(maxsize=4096)
def broadcast_candidates(costs: NcclCosts, num_nodes: int, ranks_per_node: int) -> tuple[Candidate, ...]:
    """Return the ring of a broadcast or reduce in every protocol: the hops of an all-gather, S bytes on every link."""
    ranks = num_nodes * ranks_per_node
    return tuple(
        _of_whole_message(candidate, ranks) for candidate in gather_candidates(costs, num_nodes, ranks_per_node)
    )


def candidate(  # noqa: PLR0913, PLR0917 - what names one
    costs: NcclCosts, collective: str, algorithm: str, protocol: Protocol, num_nodes: int, ranks_per_node: int
) -> Candidate:
    """Return what one algorithm in one protocol takes of a collective; costs may be arrays over lanes."""
    if algorithm == "nvls_tree":
        return _nvls_tree(costs, num_nodes)
    if collective == "all_reduce":
        return (_tree if algorithm == "tree" else _ring)(costs, protocol, num_nodes, ranks_per_node)
    ring = _ring(costs, protocol, num_nodes, ranks_per_node, ways=1)
    return _of_whole_message(ring, num_nodes * ranks_per_node) if collective in {"broadcast", "reduce"} else ring


def _of_whole_message(gather: Candidate, ranks: int) -> Candidate:
    """Return an all-gather's ring with the whole message on every link, as of a broadcast."""
    more = ranks / (ranks - 1) if ranks > 1 else 1.0
    return gather._replace(
        intra_bytes=gather.intra_bytes * more,
        inter_bytes=gather.inter_bytes * more,
        exposed_crossings=gather.crossings,
    )


def _start_s(costs: NcclCosts, protocol: Protocol) -> float:
    return costs.ll_start_s if protocol == "LL" else costs.start_s


def _fraction(costs: NcclCosts, protocol: Protocol) -> float:
    """Return the bandwidth of a protocol over that of Simple."""
    return {"LL": costs.ll_efficiency, "LL128": LL128_FRACTION, "Simple": 1.0}[protocol]


def _ring(costs: NcclCosts, protocol: Protocol, num_nodes: int, ranks_per_node: int, ways: int = 2) -> Candidate:
    """Return a ring in one protocol; an all-reduce goes round in two ways, reducing and then gathering."""
    ranks = num_nodes * ranks_per_node
    intra_s, inter_s = RING_HOP_S[protocol]
    # Fitted, unlike the hops of the other protocols inside a node.
    if protocol == "LL":
        intra_s = costs.ll_hop_s
    crossings = ways * (num_nodes - 1)
    hops_s = (ways * (ranks - 1) - crossings) * intra_s + crossings * (inter_s + _further_hop_s(costs, protocol))
    sends = ways * (ranks - 1) + (costs.exposed * ways / 2 if num_nodes == 1 else 0.0)
    sent = sends / ranks / _fraction(costs, protocol)
    return Candidate(
        algorithm="ring",
        protocol=protocol,
        latency_s=_start_s(costs, protocol) + hops_s,
        intra_bytes=sent if ranks_per_node > 1 else 0.0,
        inter_bytes=sent if num_nodes > 1 else 0.0,
        crossings=crossings,
        exposed_crossings=min(ways, crossings),
        limit="across" if num_nodes > 1 else "in_node",
    )


def _tree(costs: NcclCosts, protocol: Protocol, num_nodes: int, ranks_per_node: int) -> Candidate:
    # Up the tree and down again, with a crossing for each of its levels.
    ranks, crossings = num_nodes * ranks_per_node, 2 * log2(num_nodes)
    intra_s, inter_s = TREE_HOP_S[protocol]
    hops_s = 2 * ((ranks_per_node - 1) * intra_s + log2(num_nodes) * (inter_s + _further_hop_s(costs, protocol)))
    if protocol == "LL" and costs.ll_tree_rate is not None:
        return _ll_tree(_start_s(costs, protocol) + hops_s, num_nodes, ranks)
    fraction = _fraction(costs, protocol) * TREE_FRACTION * (TWO_NODE_GAIN if num_nodes == 2 else 1.0)
    return Candidate(
        algorithm="tree",
        protocol=protocol,
        latency_s=_start_s(costs, protocol) + hops_s,
        intra_bytes=2 * (ranks_per_node - 1) / ranks_per_node / fraction,
        # A tree is never faster than a ring for very large messages: what limits is the same kernel and the same NIC.
        inter_bytes=largest(2 / fraction, 2 * (ranks - 1) / ranks),
        crossings=crossings,
        exposed_crossings=crossings,
        limit="across",
    )


def _ll_tree(latency_s: float, num_nodes: int, ranks: int) -> Candidate:
    """Return a tree in LL: each of its levels passes on what it has stored, S bytes up and S down."""
    return Candidate(
        algorithm="tree",
        protocol="LL",
        latency_s=latency_s,
        intra_bytes=1 + log2(num_nodes),
        inter_bytes=2 * LL_FLAGS * (ranks - 1) / ranks,
        crossings=2 * log2(num_nodes),
        exposed_crossings=2 * log2(num_nodes),
        limit="ll_tree",
    )


def _nvls_tree(costs: NcclCosts, num_nodes: int) -> Candidate:
    assert costs.nvls_start_s is not None
    hops_s = 2 * (log2(num_nodes) - 1) * (TREE_HOP_S["Simple"][1] + costs.inter_node_hop_s)
    return Candidate(
        algorithm="nvls_tree",
        protocol="Simple",
        latency_s=costs.nvls_start_s + hops_s,
        intra_bytes=1.0,
        # Of two nodes each sends the message once; with more, an inner node of the tree sends it up and down.
        inter_bytes=1.0 if num_nodes == 2 else 2.0,
        crossings=2 * log2(num_nodes),  # the first of each way is in the start, but not what a cluster adds
        exposed_crossings=2 * log2(num_nodes),
        limit="nvls",
    )


def _further_hop_s(costs: NcclCosts, protocol: Protocol) -> float:
    if protocol == "LL" and costs.ll_inter_node_hop_s is not None:
        return costs.ll_inter_node_hop_s
    return costs.inter_node_hop_s
