"""The load of each phase of a schedule on the busiest links: the base of the folded executor.

A phase is one `Round` with all its repetitions, or all rounds of a pipeline. The sends inside nodes and the sends
between nodes of a phase overlap; each of the two takes its latencies plus its bytes over its busiest link, and the
phase takes the longer time. Chunks are counted once for a schedule (`_Tally`); bytes, efficiencies and rates, which
sweeps vary, are multiplied in later. A pipeline, a schedule with a protocol of NCCL, is one stream on the links: it
takes its latency, then all its links carry bytes at once, at the pace of the busiest one.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from simnet.cluster import nccl_model
from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.schedule import Group, Round, Schedule
from simnet.cluster.topology import Level, Topology, path
from simnet.core.errors import SimnetError
from simnet.core.lanes import Number, largest, least, smallest

TX = ("port_tx", "nic_tx", "leaf_up")
PORTS = ("port_tx", "port_rx")
UNEVEN = 0.12
"""How far an upper bound may be off, as a part of the time (docs/explanation/network.md)."""
MOST_FOLLOWED = 2_000_000
"""Most sends of a collective that are looked at one by one to know when each rank is done: some seconds."""


class LevelLoad(NamedTuple):
    """Sends of one phase on one level.

    Attributes:
        latency_s: latencies of all rounds in a row [s].
        inflated_bytes: `wire_bytes` divided by the efficiency of sends of this size: at the nominal rate these bytes
            take the real time.
        wire_bytes: bytes sent over the busiest link of each kind.
        rounds: in a row, each of which waits for the one before.
        fill_s: part of the latencies that only the first of them has [s].
    """

    latency_s: Number
    inflated_bytes: dict[LinkKind, Number]
    wire_bytes: dict[LinkKind, float]
    rounds: int = 1
    fill_s: Number = 0.0

    def duration_s(self, topology: Topology) -> Number:
        """Return the time on an idle symmetric cluster [s]."""
        return self.latency_s + self.transfer_s(topology)

    def transfer_s(self, topology: Topology) -> Number:
        """Return what its bytes take there [s]."""
        return largest(*[size / topology.rate(kind) for kind, size in self.inflated_bytes.items()])


Phase = tuple[LevelLoad, ...]


@lru_cache(maxsize=65_536)
def duration_s(topology: Topology, schedule: Schedule, message_bytes: float) -> float:
    """Return the time of a collective on an idle symmetric cluster [s]; see `seconds`."""
    return float(seconds(topology, schedule, message_bytes))


def seconds(topology: Topology, schedule: Schedule, message_bytes: float) -> Number:
    """Return the time of a collective on idle links that are all alike [s].

    Args:
        topology: made of numbers, or of arrays over lanes (`topology.lanes_of`), as the result is then.
        schedule: made for this topology's ranks.
        message_bytes: whole message of one group (per rank before a reduction, in all after an all-gather).
    """
    # In lanes each takes the fastest of what the schedule stands for, as a tuner does on one cluster.
    if schedule.alternatives:
        return least(*(seconds(topology, alternative, message_bytes) for alternative in schedule.alternatives))
    wire_s: Number = 0.0
    for phase in phases(topology, schedule, message_bytes):
        wire_s = wire_s + largest(*[load.duration_s(topology) for load in phase])
    return largest(launch_s(topology, schedule) + wire_s, host_s(topology, schedule, message_bytes))


def is_upper_bound(topology: Topology, schedule: Schedule) -> bool:
    """Tell whether `seconds` is an upper bound, `UNEVEN` of it too long at most: ranks are done at different times.

    Each phase is taken to wait for its busiest node. That is not so of trees with branches of different length, or
    whose nodes post different numbers of sends, and of a chain some of whose hops alone go through uplinks.
    """
    if schedule.protocol or not schedule.rounds:
        return False
    posts_differ = schedule.algorithm == "tree" and schedule.collective == "all_reduce" and bool(topology.message_s)
    is_chain = schedule.algorithm == "pipeline" and topology.has_leaves
    return schedule.folded_is_upper_bound or posts_differ or is_chain


def phases(topology: Topology, schedule: Schedule, message_bytes: float) -> tuple[Phase, ...]:
    """Return the load of every phase; arguments as of `seconds`."""
    chunk_bytes = message_bytes / schedule.num_chunks
    if schedule.protocol:
        return _pipeline_phases(topology, schedule, chunk_bytes) if schedule.rounds else ()
    return tuple(
        _phase(topology, round_, entry, chunk_bytes)
        for round_, entries in zip(schedule.rounds, _tallies_of(schedule, topology), strict=True)
        for entry in entries
    )


class HopLatency(NamedTuple):
    """What the hops of a round cost beyond their bytes [s].

    Attributes:
        fill_s: once, before the first repetition.
        intra_node: of each repetition, inside a node.
        inter_node: of each repetition, between nodes.
    """

    fill_s: Number
    intra_node: Number
    inter_node: Number


def hop_latency(topology: Topology, schedule: Schedule, number: int, chunk_bytes: float) -> HopLatency:
    """Return the latencies of round `number` of a schedule on links that are all alike."""
    round_ = schedule.rounds[number]
    entries = _tallies_of(schedule, topology)[number] if round_.passes_on else ()
    return _hop_latency(topology, round_, entries[0] if entries else (), chunk_bytes)


def _hop_latency(topology: Topology, round_: Round, entry: "tuple[_Tally, ...]", chunk_bytes: float) -> HopLatency:
    """Return the latencies of a round.

    Where a rank passes on what it has of a chunk, a hop whose bytes take c and whose wire has latency w ends max(w, c)
    after the one before: w - c is left to wait for. The first hop has none before it, and takes w + c.
    """
    levels = topology.intra_node, topology.inter_node
    alphas, wires = ([of(level, round_) for level in levels] for of in (topology.alpha_s, topology.wire_alpha_s))
    if not entry or all(smallest(-wire_s) >= 0 for wire_s in wires):
        return HopLatency(0.0, *alphas)
    bytes_s: list[Number] = [0.0, 0.0]
    for tally in entry:
        inflated = _inflated(topology, round_, tally, chunk_bytes)
        taken_s = largest(*(size / topology.rate(kind) for kind, size in inflated.items()))
        bytes_s[tally.inter_node] = taken_s / tally.rounds
    rest = [alpha_s - wire_s for alpha_s, wire_s in zip(alphas, wires, strict=True)]
    used = {tally.inter_node for tally in entry}
    first_s = largest(*(alphas[level] + bytes_s[level] for level in used))
    later_s = largest(*(rest[level] + largest(wires[level], bytes_s[level]) for level in used))
    waits = [largest(wire_s - sent_s, 0.0) for wire_s, sent_s in zip(wires, bytes_s, strict=True)]
    return HopLatency(first_s - later_s, rest[0] + waits[0], rest[1] + waits[1])


def launch_s(topology: Topology, schedule: Schedule) -> Number:
    """Return what a collective pays once [s]; that of a pipeline is in its latency."""
    return topology.launch_s if schedule.rounds and not schedule.protocol else 0.0


def lower_bound_s(topology: Topology, schedule: Schedule) -> float:
    """Return a lower bound of the time of a collective, whatever the size of its message [s].

    The bound holds the latencies of the rounds alone. Counting loads is the expensive part of `duration_s`; an
    algorithm whose latencies alone exceed the time of another algorithm need not be counted.
    """
    if schedule.protocol and schedule.rounds:
        return _least_pipeline_latency_s(topology, schedule)
    alphas = topology.intra_node.alpha_s, topology.inter_node.alpha_s
    total_s = launch_s(topology, schedule)
    for round_ in schedule.rounds:
        # A bool as index: the second of the two latencies where every send leaves the node.
        alpha_s = min(alphas) if round_.inter_node is None else alphas[round_.inter_node]
        if round_.crossing_fraction is not None and topology.mean_ring_latency:
            alpha_s = min(alphas)
        total_s += (1 if round_.at_once else round_.repeat) * alpha_s
    return total_s * (1 - 1e-9)  # sums of equal numbers in another order may differ in the last digits


def host_s(topology: Topology, schedule: Schedule, message_bytes: float) -> Number:
    """Return the CPU time that a collective needs of its busiest rank [s], which passes while the wire works."""
    host = topology.host
    if host is None or not schedule.rounds:
        return 0.0
    chunk_bytes = message_bytes / schedule.num_chunks
    return largest(
        *(
            host.launch_s + host.round_s * rounds + host.message_s * sends + host.s_per_byte * chunks * chunk_bytes
            for rounds, sends, chunks in _work_of_ranks(schedule, topology.nodes_per_leaf)
        )
    )


@lru_cache(maxsize=16_384)
def _work_of_ranks(schedule: Schedule, nodes_per_leaf: int) -> tuple[tuple[int, int, int], ...]:
    """Return rounds that a rank waits for, sends and chunks sent, of every rank that stands for others."""
    ranks = _representatives(schedule, nodes_per_leaf)
    return tuple(dict.fromkeys(_work_of(schedule, rank) for rank in ranks))


def _work_of(schedule: Schedule, rank: int) -> tuple[int, int, int]:
    rounds, sends, chunks = 0, 0, 0
    for round_ in schedule.rounds:
        # Where every repetition is alike for the rank, one of them counts for all.
        alike = round_.repeat if round_.same_pairs else 1
        posted = [round_.sends(rank, index) for index in range(0, round_.repeat, alike)]
        busy = alike * sum(bool(sends_of_rank) for sends_of_rank in posted)
        rounds += min(busy, 1) if round_.at_once else busy
        sends += alike * sum(map(len, posted))
        chunks += alike * sum(send.width for sends_of_rank in posted for send in sends_of_rank)
    return rounds, sends, chunks


def nic_bytes_per_node(topology: Topology, schedule: Schedule, message_bytes: float) -> float:
    """Return the bytes that leave the busiest node [B]."""
    return (
        _chunks_out_of_node(schedule, topology.nodes_per_leaf, topology.has_leaves)
        * message_bytes
        / schedule.num_chunks
    )


@lru_cache(maxsize=16_384)
def _chunks_out_of_node(schedule: Schedule, nodes_per_leaf: int, has_leaves: bool) -> float:
    if not schedule.rounds:
        return 0.0
    if schedule.protocol:
        return dict(_most_chunks(schedule, nodes_per_leaf)).get("nic_tx", 0.0)
    if schedule.collective in ("broadcast", "reduce") and schedule.busiest_nodes:
        return _chunks_out_of_busiest(schedule)
    tallies = (
        tally
        for of_round in _all_tallies(schedule, nodes_per_leaf, has_leaves)
        for entry in of_round
        for tally in entry
    )
    return sum(number for tally in tallies for kind, number in tally.chunks if kind == "nic_tx")


def _chunks_out_of_busiest(schedule: Schedule) -> int:
    """Return the chunks that leave the busiest node: not one node is the busiest of every round of a chain or tree."""
    per_node, sent = schedule.group.ranks_per_node, Counter[int]()
    for rank in _representatives(schedule, schedule.group.num_nodes):
        posted = (
            send for round_ in schedule.rounds for index in range(round_.repeat) for send in round_.sends(rank, index)
        )
        sent[rank // per_node] += sum(send.width for send in posted if send.dst // per_node != rank // per_node)
    return max(sent.values(), default=0)


def _pipeline_phases(topology: Topology, schedule: Schedule, chunk_bytes: float) -> tuple[Phase, ...]:
    """Return the one phase of a pipeline, whose links all carry bytes at once."""
    cost = pipeline_cost(topology, schedule, chunk_bytes * schedule.num_chunks)
    wire = {kind: number * chunk_bytes for kind, number in _most_chunks(schedule, topology.nodes_per_leaf)}
    inflated = {kind: size * cost.inflation(kind) for kind, size in wire.items()}
    return ((LevelLoad(cost.latency_s, inflated, wire),),)


class _Tally(NamedTuple):
    """Chunks on the busiest link of each kind, for `rounds` rounds that each wait for the round before.

    Attributes:
        rounds: rounds in a row, each with a latency of its own.
        posts: most sends that one rank posts, in all rounds together.
        at_once: whether the sends of all repetitions are posted together.
        inter_node: whether the sends leave the node.
        chunks_per_send: most chunks of one send, whose size decides the efficiency.
        chunks: chunks on the busiest link of each kind.
    """

    rounds: int
    posts: int
    at_once: bool
    inter_node: bool
    chunks_per_send: int
    chunks: tuple[tuple[LinkKind, float], ...]


Tallies = tuple[tuple[_Tally, ...], ...]


# By the shape of the fabric alone: sweeps over rates and latencies count each schedule once.
@lru_cache(maxsize=16_384)
def _all_tallies(schedule: Schedule, nodes_per_leaf: int, has_leaves: bool) -> tuple[Tallies, ...]:
    ranks = tuple(_representatives(schedule, nodes_per_leaf))
    return tuple(_tallies(schedule, ranks, round_, nodes_per_leaf, has_leaves) for round_ in schedule.rounds)


def _tallies_of(schedule: Schedule, topology: Topology) -> tuple[Tallies, ...]:
    """Return the load of each round of a schedule, which depends on the shape of the fabric but not on its rates."""
    return _all_tallies(schedule, topology.nodes_per_leaf, topology.has_leaves)


def _tallies(schedule: Schedule, ranks: Sequence[int], round_: Round, nodes_per_leaf: int, has_leaves: bool) -> Tallies:
    """Return one entry for each set of repetitions with equal loads; each has at most one tally a level."""
    distinct = round_.distinct_loads
    # `distinct_loads` speaks of NICs and ports alone: with leaf switches, repetitions that are posted together may
    # differ on the uplinks, so that all of them are counted.
    if distinct is None or (round_.at_once and has_leaves):
        distinct = tuple((index, 1) for index in range(round_.repeat))
    seen = [(_tally_one(schedule, ranks, round_, index, nodes_per_leaf), times) for index, times in distinct]
    if round_.at_once:
        return (tuple(_joined(seen, round_.repeat)),)
    runs: Counter[tuple[_Tally, ...]] = Counter()
    for entry, times in seen:
        if entry:
            runs[entry] += times
    return tuple(tuple(_times(tally, times) for tally in entry) for entry, times in runs.items())


def _times(tally: _Tally, rounds: int) -> _Tally:
    """Return the tally of `rounds` equal rounds."""
    return _Tally(
        rounds=rounds,
        posts=tally.posts * rounds,
        at_once=False,
        inter_node=tally.inter_node,
        chunks_per_send=tally.chunks_per_send,
        chunks=tuple((kind, number * rounds) for kind, number in tally.chunks),
    )


def _joined(seen: list[tuple[tuple[_Tally, ...], int]], posts: int) -> Iterator[_Tally]:
    """Join repetitions that are posted at once: one latency a level, all their chunks."""
    for inter_node in (False, True):
        same = [(tally, times) for entry, times in seen for tally in entry if tally.inter_node is inter_node]
        if same:
            total: Counter[LinkKind] = Counter()
            for tally, times in same:
                total.update({kind: number * times for kind, number in tally.chunks})
            yield _Tally(
                rounds=1,
                posts=posts,
                at_once=True,
                inter_node=inter_node,
                # Sends of the one schedule that posts all at once, the direct all-to-all, have one width.
                chunks_per_send=same[0][0].chunks_per_send,
                chunks=tuple(total.items()),
            )


def _tally_one(
    schedule: Schedule, ranks: Sequence[int], round_: Round, index: int, nodes_per_leaf: int
) -> tuple[_Tally, ...]:
    """Count one repetition over the ranks that stand for all."""
    group = schedule.group
    per_node = group.ranks_per_node
    loads: dict[bool, Counter[LinkId]] = {False: Counter(), True: Counter()}
    widths = {False: 0, True: 0}
    posts = 0
    for rank in ranks:
        sends = round_.sends(rank, index)
        posts = max(posts, len(sends))
        for send in filter(attrgetter("width"), sends):
            inter_node = rank // per_node != send.dst // per_node
            widths[inter_node] = max(widths[inter_node], send.width)
            for link in path(rank, send.dst, per_node, nodes_per_leaf):
                # Local rank 0 was enumerated for all: the NIC carries what each local rank sends.
                rails = per_node if schedule.rails_are_symmetric and inter_node else 1
                loads[inter_node][link] += send.width * rails
    return tuple(
        _Tally(
            rounds=1,
            posts=posts,
            at_once=round_.at_once,
            inter_node=inter_node,
            chunks_per_send=widths[inter_node],
            chunks=_busiest(counted, every_link=not schedule.nodes_are_symmetric),
        )
        for inter_node, counted in loads.items()
        if counted
    )


def _phase(topology: Topology, round_: Round, entry: tuple[_Tally, ...], chunk_bytes: float) -> Phase:
    hops = _hop_latency(topology, round_, entry, chunk_bytes)
    return tuple(_level_load(topology, round_, tally, entry, chunk_bytes, hops) for tally in entry)


def _level_load(  # noqa: PLR0913, PLR0917 - a round on one level
    topology: Topology, round_: Round, tally: _Tally, entry: tuple[_Tally, ...], chunk_bytes: float, hops: HopLatency
) -> LevelLoad:
    posting_s = topology.posting_s(max(other.posts for other in entry), at_once=tally.at_once)
    return LevelLoad(
        posting_s + hops.fill_s + tally.rounds * (hops.inter_node if tally.inter_node else hops.intra_node),
        _inflated(topology, round_, tally, chunk_bytes),
        {kind: number * chunk_bytes for kind, number in tally.chunks},
        tally.rounds,
        hops.fill_s,
    )


def _inflated(topology: Topology, round_: Round, tally: _Tally, chunk_bytes: float) -> dict[LinkKind, Number]:
    level = topology.inter_node if tally.inter_node else topology.intra_node
    efficiency = send_efficiency(topology, level, tally.chunks_per_send * chunk_bytes, round_)
    return {kind: number * chunk_bytes / efficiency for kind, number in tally.chunks}


def send_efficiency(topology: Topology, level: Level, send_bytes: float, round_: Round) -> Number:
    """Return the fraction of the bandwidth that a send reaches; sends to many peers at once reach less of a NIC."""
    # Incast and congestion are of the network between nodes: NVLink and PCIe keep their rate.
    many = topology.all_to_all_efficiency if round_.at_once and level is topology.inter_node else 1.0
    return level.efficiency(send_bytes, is_whole=round_.is_whole) * many


class PipelineCost(NamedTuple):
    """What a schedule with a protocol takes: one latency, and factors on the bytes that it sends over links.

    Attributes:
        latency_s: what of the time its bytes do not take [s].
        intra_node: factor on bytes over the ports of ranks, by which the nominal rate gives the real time.
        inter_node: the same of NICs and uplinks.
    """

    latency_s: float
    intra_node: float
    inter_node: float

    def inflation(self, kind: LinkKind) -> float:
        """Return the factor of a link."""
        return self.intra_node if kind in PORTS else self.inter_node


def pipeline_cost(topology: Topology, schedule: Schedule, message_bytes: float) -> PipelineCost:
    """Return what a schedule with a protocol takes of a message, from the costs of NCCL."""
    costs, group = topology.nccl, schedule.group
    if costs is None:
        raise SimnetError(
            f"{schedule.name}: needs calibration.nccl, which simnet calibrate writes; fit nccl-tests logs"
        )
    assert schedule.protocol
    candidate = nccl_model.candidate(
        costs, schedule.collective, schedule.algorithm, schedule.protocol, group.nodes, group.members_per_node
    )
    most = dict(_most_chunks(schedule, topology.nodes_per_leaf))
    nominal = topology.intra_node.bytes_per_s, topology.inter_node.bytes_per_s
    at = nccl_model.rates(costs, *nominal)
    rails = rails_per_node(group)
    slower = costs.factor(message_bytes * rails)

    # The closed form says what the busiest link carries as if at full rate; the schedule says what it really carries.
    def factor(carried: float, kind: LinkKind, efficiency: float) -> float:
        return slower * carried * schedule.num_chunks / most[kind] / efficiency if kind in most else 1.0

    # Of a message of no bytes all hops count, as its factor does.
    latency_s = nccl_model.latency_s(candidate, at, message_bytes * rails, topology.nccl_added_s)
    return PipelineCost(
        slower * latency_s,
        factor(candidate.intra_bytes, "port_tx", at.in_node(candidate.limit) / nominal[0]),
        # The closed form knows one group; the NICs of a node carry what all of its rails send.
        factor(candidate.inter_bytes * rails, "nic_tx", at.inter_node / nominal[1]),
    )


def _least_pipeline_latency_s(topology: Topology, schedule: Schedule) -> float:
    """Return what a schedule with a protocol takes at least, whatever its message [s].

    Hops that hide behind bytes take no more time than these: a message of no bytes takes the least.
    """
    costs = topology.nccl
    assert costs is not None
    plain_s = pipeline_cost(topology, schedule, 0.0).latency_s / costs.below_1_mib
    return plain_s * least(costs.below_1_mib, costs.below_16_mib, costs.from_16_mib)


def added_pipeline_latency_s(schedule: Schedule, added_s: Collection[float]) -> float:
    """Return what latencies that faults add to the links of a group add to a pipeline on it [s].

    A chunk passes every link of a ring, of an all-reduce twice; in a tree, those between the deepest leaf and the root.

    Args:
        schedule: the pipeline.
        added_s: of every link that carries it [s].
    """
    nodes = schedule.group.nodes
    passes = 2 if schedule.collective == "all_reduce" else 1
    in_a_row = sum(added_s)
    if schedule.algorithm in {"tree", "nvls_tree"}:
        in_a_row = min(in_a_row, 2 * math.ceil(math.log2(max(nodes, 2))) * max(added_s, default=0.0))
    return passes * in_a_row


def rails_per_node(group: Group) -> int:
    """Return how many equal groups run side by side through the NICs of a node."""
    return group.ranks_per_node // group.members_per_node if group.nodes > 1 else 1


def count_chunks(schedule: Schedule, ranks: Iterable[int], nodes_per_leaf: int) -> Counter[LinkId]:
    """Return the chunks on each link in all rounds together, as these ranks send them."""
    per_node = schedule.group.ranks_per_node
    chunks: Counter[LinkId] = Counter()
    for rank in ranks:
        for round_ in schedule.rounds:
            for index, times in round_.distinct_loads or tuple((index, 1) for index in range(round_.repeat)):
                for send in round_.sends(rank, index):
                    for link in path(rank, send.dst, per_node, nodes_per_leaf):
                        chunks[link] += send.width * times
    return chunks


@lru_cache(maxsize=16_384)
def _most_chunks(schedule: Schedule, nodes_per_leaf: int) -> tuple[tuple[LinkKind, float], ...]:
    """Return the chunks on the busiest link of each kind in all rounds together."""
    counted = count_chunks(schedule, _representatives(schedule, nodes_per_leaf), nodes_per_leaf)
    # Local rank 0 was enumerated for all: NICs and uplinks carry what each local rank sends.
    rails = schedule.group.ranks_per_node if schedule.rails_are_symmetric else 1
    most = _busiest(counted, every_link=not schedule.nodes_are_symmetric)
    return tuple((kind, number if kind in PORTS else number * rails) for kind, number in most)


def _busiest(counted: Counter[LinkId], *, every_link: bool) -> tuple[tuple[LinkKind, float], ...]:
    """Return the most chunks on a link of each kind.

    Where nodes are symmetric, a few ranks stand for all and only what they send counts: what they receive comes from
    ranks that are not enumerated, and is as much by symmetry. Elsewhere all senders to a busiest NIC are enumerated,
    so that the receiving side counts, too.
    """
    most: dict[LinkKind, float] = {}
    for (kind, _), number in counted.items():
        if every_link or kind in TX:
            most[kind] = max(most.get(kind, 0), number)
    return tuple(most.items())


def _representatives(schedule: Schedule, nodes_per_leaf: int) -> Iterator[int]:
    """Return the ranks whose sends load a busiest link of each kind."""
    group = schedule.group
    # A leaf's uplinks carry what all its nodes send: with several leaves a whole leaf is enumerated.
    one_leaf = nodes_per_leaf >= group.num_nodes
    nodes: Iterable[int] = range(group.num_nodes)
    if schedule.nodes_are_symmetric:
        nodes = range(1 if one_leaf else _nodes_of_a_period(group, nodes_per_leaf))
    elif one_leaf and schedule.busiest_nodes:
        _, first_rail = group.levels()
        nodes = (first_rail.rank_at(0, position) // group.ranks_per_node for position in schedule.busiest_nodes)
    rails = 1 if schedule.rails_are_symmetric else group.ranks_per_node
    return (node * group.ranks_per_node + rail for node in nodes for rail in range(rails))


def _nodes_of_a_period(group: Group, nodes_per_leaf: int) -> int:
    """Return after how many nodes leaves are loaded alike again: groups that end within a leaf do not turn with it."""
    reached = max(group.size * group.stride // group.ranks_per_node, 1)
    return nodes_per_leaf if reached == group.num_nodes else math.lcm(reached, nodes_per_leaf)
