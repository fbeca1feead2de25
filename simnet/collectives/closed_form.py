"""Alpha-beta times of the collectives on idle equal links, as the literature writes them: the judge of the executors.

Symbols: N nodes of G ranks, P = N G ranks, S bytes of the message, a latency of one send, B bytes/s of a link; index i
inside a node (per rank), e between nodes (of a node's NICs together). Nothing here uses a schedule: a wrong schedule
must not agree with its own closed form.
"""

from math import ceil, log2

from msgspec import Struct


class AlphaBeta(Struct, frozen=True, kw_only=True):
    """A level of links: latency of one send, the part of it that hides behind bytes [s], and bandwidth [B/s]."""

    alpha_s: float
    bytes_per_s: float
    wire_alpha_s: float = 0.0


class Shape(Struct, frozen=True, kw_only=True):
    """N nodes of G ranks with their two levels."""

    num_nodes: int
    ranks_per_node: int
    intra_node: AlphaBeta
    inter_node: AlphaBeta


def ring_all_reduce_s(ranks: int, message_bytes: float, link: AlphaBeta) -> float:
    """Return 2(P-1)(a + S/(P B)): the flat ring, whose every round waits for its slowest link.

    Of a, a part w hides behind the bytes of the hop before, or these behind it: 2(P-1)(a - w + max(w, c)) + 2 min(w, c)
    with c = S/(P B).

    Args:
        ranks: P.
        message_bytes: S.
        link: the slowest link of the ring: a NIC if there is more than one node.
    """
    if ranks == 1:
        return 0.0
    bytes_s, wire_s = message_bytes / ranks / link.bytes_per_s, link.wire_alpha_s
    return 2 * (ranks - 1) * (link.alpha_s - wire_s + max(wire_s, bytes_s)) + 2 * min(wire_s, bytes_s)


def ring_all_gather_s(ranks: int, message_bytes: float, link: AlphaBeta) -> float:
    """Return half of an all-reduce, (P-1)(a + S/(P B)); a reduce-scatter takes the same."""
    return ring_all_reduce_s(ranks, message_bytes, link) / 2


def hierarchical_all_reduce_s(shape: Shape, message_bytes: float) -> float:
    """Return 2(G-1)(a_i + S/(G B_i)) + 2(N-1)(a_e + S/(N B_e)); the G rings of a node share its NICs."""
    intra_s = ring_all_reduce_s(shape.ranks_per_node, message_bytes, shape.intra_node)
    return intra_s + ring_all_reduce_s(shape.num_nodes, message_bytes, shape.inter_node)


def halving_doubling_all_reduce_s(shape: Shape, message_bytes: float) -> float:
    """Return 2(log2(G) a_i + (G-1)/G S/B_i + log2(N) a_e + (N-1)/N S/B_e)."""
    total_s = 0.0
    for size, link in ((shape.ranks_per_node, shape.intra_node), (shape.num_nodes, shape.inter_node)):
        total_s += log2(size) * link.alpha_s + (size - 1) / size * message_bytes / link.bytes_per_s
    return 2 * total_s


def tree_all_reduce_s(shape: Shape, message_bytes: float, num_chunks: int) -> float:
    """Return the time of the double binary tree with each half in c chunks, N >= 4 a power of two, D = log2(N).

    2(G-1)(a_i + S/(G B_i)) + 2[(D + c - 1) a_e + (2(D + c - 1) - 1) S/(2c)/B_e]: each of D + c - 1 rounds up (and as
    many down) brings two chunks to a node, but the last, in which the root gets one.
    """
    rounds = int(log2(shape.num_nodes)) + num_chunks - 1
    chunk_s = message_bytes / 2 / num_chunks / shape.inter_node.bytes_per_s
    intra_s = ring_all_reduce_s(shape.ranks_per_node, message_bytes, shape.intra_node)
    return intra_s + 2 * (rounds * shape.inter_node.alpha_s + (2 * rounds - 1) * chunk_s)


def tree_broadcast_s(shape: Shape, message_bytes: float) -> float:
    """Return log2(G) (a_i + S/B_i) + ceil(log2 N) (a_e + G S/B_e) of a binomial tree, G a power of two.

    In a round between nodes each of the G ranks of a node sends the whole message.
    """
    local, nodes = shape.ranks_per_node, shape.num_nodes
    inside_s = log2(local) * (shape.intra_node.alpha_s + message_bytes / shape.intra_node.bytes_per_s)
    between_s = shape.inter_node.alpha_s + local * message_bytes / shape.inter_node.bytes_per_s
    return inside_s + ceil(log2(nodes)) * between_s


def pipeline_broadcast_s(shape: Shape, message_bytes: float, num_chunks: int) -> float:
    """Return (N + c - 2) (a_e + S/(c B_e)) + (G - 1) (a_i + S/(c B_i)), where a hop in a node is no slower.

    The first chunk goes through N - 1 nodes, c - 1 follow, and the last goes through its node; in one node
    (G + c - 2) (a_i + S/(c B_i)).
    """
    chunk_bytes = message_bytes / num_chunks
    inside_s = shape.intra_node.alpha_s + chunk_bytes / shape.intra_node.bytes_per_s
    between_s = shape.inter_node.alpha_s + chunk_bytes / shape.inter_node.bytes_per_s
    if shape.num_nodes == 1:
        return (shape.ranks_per_node + num_chunks - 2) * inside_s if shape.ranks_per_node > 1 else 0.0
    return (shape.num_nodes + num_chunks - 2) * between_s + (shape.ranks_per_node - 1) * inside_s


def all_to_all_s(shape: Shape, message_bytes: float) -> float:
    """Return the longer of a_i + (G-1)/P S/B_i and a_e + G (P-G)/P S/B_e: all sends at once, one latency.

    The G ranks of a node send P - G of P chunks each over the node's NICs.
    """
    local, ranks = shape.ranks_per_node, shape.num_nodes * shape.ranks_per_node
    times = [0.0]
    if local > 1:
        times.append(shape.intra_node.alpha_s + (local - 1) / ranks * message_bytes / shape.intra_node.bytes_per_s)
    if shape.num_nodes > 1:
        crossing_bytes = local * (ranks - local) / ranks * message_bytes
        times.append(shape.inter_node.alpha_s + crossing_bytes / shape.inter_node.bytes_per_s)
    return max(times)
