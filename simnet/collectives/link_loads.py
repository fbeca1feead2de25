"""The load of each phase of a schedule on the busiest links: the base of the folded executor.

A phase is one `Round` with all its repetitions, or all rounds of a pipeline. The sends inside nodes and the sends
between nodes of a phase overlap; each of the two takes its latencies plus its bytes over its busiest link, and the
phase takes the longer time. Chunks are counted once for a schedule (`_Tally`); bytes, efficiencies and rates, which
sweeps vary, are multiplied in later.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.kernel_times import HostCost
from simnet.cluster.schedule import Round, Schedule
from simnet.cluster.topology import Level, Topology, path
from simnet.collectives import pipelines
from simnet.collectives.representatives import busiest, representatives

NO_HOST_COST = HostCost()


class LevelLoad(NamedTuple):
    """Sends of one phase on one level.

    Attributes:
        latency_s: latencies of all rounds in a row [s].
        inflated_bytes: `wire_bytes` divided by the efficiency of sends of this size: at the nominal rate these bytes
            take the real time.
        wire_bytes: bytes sent over the busiest link of each kind.
        duration_s: time of the level on an idle symmetric cluster [s].
    """

    latency_s: float
    inflated_bytes: dict[LinkKind, float]
    wire_bytes: dict[LinkKind, float]
    duration_s: float


Phase = tuple[LevelLoad, ...]


@lru_cache(maxsize=65_536)
def phases(topology: Topology, schedule: Schedule, message_bytes: float) -> tuple[Phase, ...]:
    """Return the load of every phase of `schedule` for a message of `message_bytes` in each group.

    Args:
        topology: must be symmetric.
        schedule: made for this topology's ranks.
        message_bytes: whole message of one group (per rank before a reduction, in all after an all-gather).
    """
    found = _phases_without_rates(_without_rates(topology), schedule, message_bytes)
    return tuple(tuple(_timed(topology, load) for load in phase) for phase in found)


@lru_cache(maxsize=65_536)
def _phases_without_rates(topology: Topology, schedule: Schedule, message_bytes: float) -> tuple[Phase, ...]:
    """Return the phases without the time of their bytes: a search over bandwidths counts the chunks only once."""
    if schedule.protocol:
        return _pipeline_phases(topology, schedule, message_bytes)
    chunk_bytes = message_bytes / schedule.num_chunks
    return tuple(
        _phase(topology, round_, tallies, chunk_bytes)
        for round_, entries in zip(schedule.rounds, _tallies_of(schedule, topology), strict=True)
        for tallies in entries
    )


# One topology for all rates makes one cache entry for a whole search over bandwidths.
@lru_cache(maxsize=1024)
def _without_rates(topology: Topology) -> Topology:
    intra_node, inter_node = (level._replace(bytes_per_s=0.0) for level in (topology.intra_node, topology.inter_node))
    return replace(topology, intra_node=intra_node, inter_node=inter_node, leaf_bytes_per_s=0.0)


def _timed(topology: Topology, load: LevelLoad) -> LevelLoad:
    busiest_s = max(size / topology.capacity(LinkId(kind, 0)) for kind, size in load.inflated_bytes.items())
    return LevelLoad(load.latency_s, load.inflated_bytes, load.wire_bytes, load.latency_s + busiest_s)


@lru_cache(maxsize=65_536)
def duration_s(topology: Topology, schedule: Schedule, message_bytes: float) -> float:
    """Return the time of a collective on an idle symmetric cluster [s]."""
    found = phases(topology, schedule, message_bytes)
    wire_s = sum(max(load.duration_s for load in phase) for phase in found)
    return max(launch_s(topology, schedule) + wire_s, host_s(topology, schedule, message_bytes))


def launch_s(topology: Topology, schedule: Schedule) -> float:
    """Return what a collective pays once [s]; that of a pipeline is in its latency."""
    return topology.launch_s if schedule.rounds and not schedule.protocol else 0.0


def lower_bound_s(topology: Topology, schedule: Schedule) -> float:
    """Return a lower bound of the time of a collective, whatever the size of its message [s].

    The bound holds the latencies of the rounds alone. Counting loads is the expensive part of `duration_s`; an
    algorithm whose latencies alone exceed the time of another algorithm need not be counted.
    """
    if schedule.protocol and schedule.rounds:
        return pipelines.cost(topology, schedule).latency_s
    alphas = topology.intra_node.alpha_s, topology.inter_node.alpha_s
    total_s = launch_s(topology, schedule)
    for round_ in schedule.rounds:
        # A bool as index: the second of the two latencies where every send leaves the node.
        alpha_s = min(alphas) if round_.inter_node is None else alphas[round_.inter_node]
        if round_.crossing_fraction is not None and topology.mean_ring_latency:
            alpha_s = min(alphas)
        total_s += (1 if round_.at_once else round_.repeat) * alpha_s
    return total_s * (1 - 1e-9)  # sums of equal numbers in another order may differ in the last digits


def host_s(topology: Topology, schedule: Schedule, message_bytes: float) -> float:
    """Return the CPU time that a collective needs of its busiest rank [s], which passes while the wire works."""
    host = topology.host
    if host == NO_HOST_COST:
        return 0.0
    chunk_bytes = message_bytes / schedule.num_chunks
    times = (
        host.launch_s + host.round_s * rounds + host.message_s * sends + host.s_per_byte * chunks * chunk_bytes
        for rounds, sends, chunks in _work_of_ranks(schedule, topology.nodes_per_leaf)
    )
    return float(max(times, default=0.0))


@lru_cache(maxsize=16_384)
def _work_of_ranks(schedule: Schedule, nodes_per_leaf: int) -> tuple[tuple[int, int, int], ...]:
    """Return rounds that a rank waits for, sends and chunks sent, of every rank that stands for others."""
    ranks = representatives(schedule, nodes_per_leaf)
    return tuple(dict.fromkeys(_work_of(schedule, rank) for rank in ranks)) if schedule.rounds else ()


def _work_of(schedule: Schedule, rank: int) -> tuple[int, int, int]:
    rounds, sends, chunks = 0, 0, 0
    for round_ in schedule.rounds:
        # Where every repetition is alike for the rank, one of them counts for all.
        alike = round_.repeat if round_.same_pairs else 1
        posted = [round_.sends(rank, index) for index in range(0, round_.repeat, alike)]
        busy = alike * sum(bool(mine) for mine in posted)
        rounds += min(busy, 1) if round_.at_once else busy
        sends += alike * sum(map(len, posted))
        chunks += alike * sum(send.width for mine in posted for send in mine)
    return rounds, sends, chunks


def nic_bytes_per_node(topology: Topology, schedule: Schedule, message_bytes: float) -> float:
    """Return the bytes that leave the busiest node [B]."""
    if schedule.collective in ("broadcast", "reduce") and schedule.busiest_nodes and not schedule.protocol:
        return _chunks_out_of_node(schedule) * message_bytes / schedule.num_chunks
    found = phases(topology, schedule, message_bytes)
    return sum(load.wire_bytes.get("nic_tx", 0.0) for phase in found for load in phase)


@lru_cache(maxsize=16_384)
def _chunks_out_of_node(schedule: Schedule) -> int:
    """Return the chunks that leave the busiest node: not one node is the busiest of every round of a chain or tree."""
    per_node, sent = schedule.group.ranks_per_node, Counter[int]()
    for rank in representatives(schedule, schedule.group.num_nodes):
        posted = (send for one in schedule.rounds for index in range(one.repeat) for send in one.sends(rank, index))
        sent[rank // per_node] += sum(send.width for send in posted if send.dst // per_node != rank // per_node)
    return max(sent.values(), default=0)


def _pipeline_phases(topology: Topology, schedule: Schedule, message_bytes: float) -> tuple[Phase, ...]:
    """Return the one phase of a pipeline, whose links all carry bytes at once."""
    if not schedule.rounds:
        return ()
    cost, chunk_bytes = pipelines.cost(topology, schedule), message_bytes / schedule.num_chunks
    wire = {kind: number * chunk_bytes for kind, number in pipelines.most_chunks(schedule, topology.nodes_per_leaf)}
    inflated = {kind: size * cost.inflation(kind) for kind, size in wire.items()}
    return ((LevelLoad(cost.latency_s, inflated, wire, duration_s=cost.latency_s),),)


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


@lru_cache(maxsize=16_384)
def _all_tallies(schedule: Schedule, nodes_per_leaf: int, has_leaves: bool) -> tuple[Tallies, ...]:
    ranks = tuple(representatives(schedule, nodes_per_leaf))
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
        for send in sends:
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
            chunks=busiest(counted, every_link=not schedule.nodes_are_symmetric),
        )
        for inter_node, counted in loads.items()
        if counted
    )


def _phase(topology: Topology, round_: Round, tallies: tuple[_Tally, ...], chunk_bytes: float) -> Phase:
    posts = max(tally.posts for tally in tallies)
    posting_s = topology.posting_s(posts, at_once=tallies[0].at_once)
    loads = []
    for tally in tallies:
        level = topology.inter_node if tally.inter_node else topology.intra_node
        latency_s = posting_s + tally.rounds * topology.alpha_s(level, round_)
        loads.append(_level_load(topology, level, tally, chunk_bytes, latency_s))
    return tuple(loads)


def _level_load(topology: Topology, level: Level, tally: _Tally, chunk_bytes: float, latency_s: float) -> LevelLoad:
    efficiency = send_efficiency(topology, level, tally.chunks_per_send * chunk_bytes, at_once=tally.at_once)
    wire = {kind: number * chunk_bytes for kind, number in tally.chunks}
    inflated = {kind: size / efficiency for kind, size in wire.items()}
    # The time of the bytes is added by `_timed`, which knows the rates.
    return LevelLoad(latency_s, inflated, wire, duration_s=latency_s)


def send_efficiency(topology: Topology, level: Level, send_bytes: float, *, at_once: bool) -> float:
    """Return the fraction of the bandwidth that a send reaches; sends to many peers at once reach less of a NIC."""
    # Incast and congestion are of the network between nodes: NVLink and PCIe keep their rate.
    many = topology.all_to_all_efficiency if at_once and level is topology.inter_node else 1.0
    return level.efficiency(send_bytes) * many
