"""Rounds of sends as arrays over ranks: when each rank is done with them, where no two sends share a link by chance.

A rank enters the next repetition once its own send and what it receives are done, as in the exact executor. Around a
ring that is a recurrence in max and plus, T[r] = max(T[r] + c[r], T[r-1] + c[r-1]), which has a closed form from equal
starts: the critical path waits at the slowest hop and then follows the ring (Baccelli et al., "Synchronization and
Linearity", 1992, on such recurrences).
"""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from simnet.cluster.hardware import LinkKind
from simnet.cluster.schedule import Round, Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.collectives.link_loads import HopLatency
from simnet.engine.uneven_links import UnevenLinks

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray, IntArray

# Relative: what ends so near each other ends together, as on the clock.
_SAME_TIME = 1e-12


class Hops(NamedTuple):
    """Sends of one repetition, or of several with the same pairs.

    Attributes:
        round_: whose they are.
        numbers: of the rounds that begin with them.
        times: repetitions in a row.
        src: rank that sends, of each send.
        dst: rank that receives it.
        width: chunks of it.
        posts: sends of the rank that sends it, in this repetition.
        before: rank from which each rank receives, where each sends once and receives once; else None.
        ring: ranks in the order of their rings, one ring a row, where all are equally long and there are several
            repetitions; else None.
    """

    round_: Round
    numbers: tuple[int, ...]
    times: int
    src: "IntArray"
    dst: "IntArray"
    width: "FloatArray"
    posts: "IntArray"
    before: "IntArray | None"
    ring: "IntArray | None"


class TooManySendsError(Exception):
    """More sends than can be looked at one by one."""


@lru_cache(maxsize=256)
def hops_of(schedule: Schedule) -> tuple[Hops, ...]:
    """Return the sends of all rounds that wait for each other; equal ones that follow each other are joined.

    Raises:
        TooManySendsError: there are too many.
    """
    world = schedule.group.num_nodes * schedule.group.ranks_per_node
    kinds: list[Hops] = []
    seen = 0
    for number, round_ in enumerate(schedule.rounds):
        indices = range(1) if round_.same_pairs else range(round_.repeat)
        seen += world * len(indices)
        if seen > link_loads.MOST_FOLLOWED:
            raise TooManySendsError
        for index in indices:
            hops = _hops(round_, index, world, round_.repeat if round_.same_pairs else 1)
            hops = hops._replace(numbers=() if index else (number,))
            if kinds and _are_equal(kinds[-1], hops):
                last = kinds[-1]
                kinds[-1] = last._replace(times=last.times + hops.times, numbers=last.numbers + hops.numbers)
            elif len(hops.src):
                kinds.append(hops)
    return tuple(_with_rings(hops) for hops in kinds)


def _with_rings(hops: Hops) -> Hops:
    if hops.before is None or hops.times == 1:
        return hops
    return hops._replace(ring=_rings(hops.before))


def _hops(round_: Round, index: int, world: int, times: int) -> Hops:
    sends = [(rank, send.dst, send.width) for rank in range(world) for send in round_.sends(rank, index)]
    src: IntArray = np.array([send[0] for send in sends], dtype=np.intp)
    dst: IntArray = np.array([send[1] for send in sends], dtype=np.intp)
    width: FloatArray = np.array([send[2] for send in sends], dtype=np.float64)
    posts = np.bincount(src, minlength=world)[src] if len(src) else src
    before = None
    if len(sends) == world and len(set(dst)) == world and (posts == 1).all():
        before = np.empty(world, dtype=int)
        before[dst] = src
    return Hops(round_, (), times, src, dst, width, posts, before, None)


def _rings(before: "IntArray") -> "IntArray | None":
    """Return the ranks in the order in which they send to each other, one ring a row."""
    after = np.empty_like(before)
    after[before] = np.arange(len(before))
    following, is_seen, rings = after.tolist(), bytearray(len(before)), list[list[int]]()
    for first in range(len(before)):
        ring, rank = list[int](), first
        while not is_seen[rank]:
            is_seen[rank] = True
            ring.append(rank)
            rank = following[rank]
        if ring:
            rings.append(ring)
    return np.array(rings) if len({len(ring) for ring in rings}) == 1 else None


def _are_equal(hops: Hops, other: Hops) -> bool:
    return (
        hops.round_.crossing_fraction == other.round_.crossing_fraction
        and hops.round_.passes_on == other.round_.passes_on
        and len(hops.src) == len(other.src)
        and all((a == b).all() for a, b in ((hops.src, other.src), (hops.dst, other.dst), (hops.width, other.width)))
    )


def run(links: UnevenLinks, schedule: Schedule, message_bytes: float) -> tuple["FloatArray", bool]:
    """Go through all rounds from equal starts.

    Returns:
        When each rank is done [s], and whether the exact executor gives the same but for rounding.

    Raises:
        TooManySendsError: there are too many sends.
    """
    topology = links.topology
    now = np.zeros(topology.world_size)
    is_exact, on_levels = True, dict[bool, Hops]()
    chunk_bytes = message_bytes / schedule.num_chunks
    for hops in hops_of(schedule):
        cost = _HopCost(links, hops, chunk_bytes, schedule)
        is_exact = is_exact and cost.shares_evenly(now) and _keeps_links(topology, hops, on_levels, now)
        # What each round pays once moves all ranks alike, whenever that is.
        fills_s = sum(link_loads.hop_latency(topology, schedule, number, chunk_bytes).fill_s for number in hops.numbers)
        now = _advance(now + fills_s, hops, cost.seconds)
    return now, is_exact


def _keeps_links(topology: Topology, hops: Hops, on_levels: dict[bool, Hops], now: "FloatArray") -> bool:
    """Tell whether ranks that have drifted apart go on to use the links that they used before.

    A rank that is ahead could else send over a link that another still uses.
    """
    has_drifted = not _is_uniform(now)
    per_node, kept = topology.ranks_per_node, True
    for is_between in _distinct(hops.src // per_node != hops.dst // per_node):
        former = on_levels.setdefault(bool(is_between), hops)
        same = former is hops or (len(former.dst) == len(hops.dst) and bool((former.dst == hops.dst).all()))
        kept = kept and (same or not has_drifted)
        on_levels[bool(is_between)] = hops
    return kept


def _is_uniform(times: "FloatArray") -> bool:
    return bool(np.ptp(times) <= _SAME_TIME * times.max())


class _HopCost:
    """What each send takes if all that share a link start together.

    Attributes:
        seconds: of each send, latency included.
    """

    def __init__(self, links: UnevenLinks, hops: Hops, chunk_bytes: float, schedule: Schedule) -> None:
        topology, self._hops = links.topology, hops
        per_node = topology.ranks_per_node
        nodes = hops.src // per_node, hops.dst // per_node
        self._between = nodes[0] != nodes[1]
        leaves = tuple(node // topology.nodes_per_leaf for node in nodes)
        crosses = leaves[0] != leaves[1]
        # Each kind of link with the sends that load it, and its place for each of them.
        self._loaded: tuple[tuple[LinkKind, FloatArray, IntArray], ...] = (
            ("port_tx", ~self._between, hops.src),
            ("port_rx", ~self._between, hops.dst),
            ("nic_tx", self._between, nodes[0]),
            ("nic_rx", self._between, nodes[1]),
            ("leaf_up", crosses, leaves[0]),
            ("leaf_down", crosses, leaves[1]),
        )
        rate = np.full(len(hops.src), np.inf)
        number = schedule.rounds.index(hops.round_)
        latency = self._latency_s(topology, link_loads.hop_latency(topology, schedule, number, chunk_bytes))
        self._most_on_a_link = 1
        for kind, mask, place in self._loaded:
            if mask.any():
                flows = np.bincount(place[mask])
                self._most_on_a_link = max(self._most_on_a_link, int(flows.max()))
                rate[mask] = np.minimum(rate[mask], (links.bytes_per_s(kind)[place] / _at(flows, place))[mask])
                latency[mask] += links.added_s(kind)[place][mask]
        self._inflated = self._inflated_bytes(topology, chunk_bytes)
        self._rate = rate
        self.seconds = latency + self._inflated / rate

    def _latency_s(self, topology: Topology, latency: HopLatency) -> "FloatArray":
        hops = self._hops
        inside, between = latency.intra_node, latency.inter_node
        posting = {n: topology.posting_s(int(n), at_once=False) for n in _distinct(hops.posts)}
        latency_s = np.where(self._between, between, inside)
        for number, posting_s in posting.items():
            latency_s[hops.posts == number] += posting_s
        return latency_s

    def _inflated_bytes(self, topology: Topology, chunk_bytes: float) -> "FloatArray":
        inflated_bytes = np.empty(len(self._hops.src))
        for width in _distinct(self._hops.width):
            for is_between, level in ((False, topology.intra_node), (True, topology.inter_node)):
                size = float(width) * chunk_bytes
                efficiency = link_loads.send_efficiency(topology, level, size, self._hops.round_)
                inflated_bytes[(self._hops.width == width) & (self._between == is_between)] = size / efficiency
        return inflated_bytes

    def shares_evenly(self, now: "FloatArray") -> bool:
        """Tell whether sends that share a link start and end together."""
        if self._most_on_a_link == 1:
            return True
        starts, ends = now[self._hops.src], now[self._hops.src] + self.seconds
        limit = _SAME_TIME * (float(ends.max()) or 1.0)
        for _, mask, place in self._loaded:
            if mask.any():
                for times in (starts[mask], ends[mask]):
                    first, last = np.full(int(place.max()) + 1, np.inf), np.full(int(place.max()) + 1, -np.inf)
                    np.minimum.at(first, place[mask], times)
                    np.maximum.at(last, place[mask], times)
                    if ((last - first)[np.isfinite(first)] > limit).any():
                        return False
        return True


def _distinct(values: "np.ndarray[Any, Any]") -> list[Any]:
    """Return the values of an array, each once; `np.unique` would load a module that takes longer than a simulation."""
    ordered = np.sort(values)
    return [*ordered[:1].tolist(), *ordered[1:][ordered[1:] != ordered[:-1]].tolist()]


def _at(flows: "IntArray", place: "IntArray") -> "FloatArray":
    """Return the flows on the link of each send, at least 1."""
    padded = np.ones(int(place.max()) + 1)
    padded[: len(flows)] = np.maximum(flows, 1)
    return padded[place]


def _advance(now: "FloatArray", hops: Hops, seconds: "FloatArray") -> "FloatArray":
    if hops.before is None:
        for _ in range(hops.times):
            ends, after = now[hops.src] + seconds, now.copy()
            np.maximum.at(after, hops.src, ends)
            np.maximum.at(after, hops.dst, ends)
            now = after
        return now
    of_rank = np.empty(len(now))
    of_rank[hops.src] = seconds
    if hops.ring is not None and hops.times > 1:
        closed = around_rings(now[hops.ring], of_rank[hops.ring], hops.times)
        if closed is not None:
            ends_s = np.empty(len(now))
            ends_s[hops.ring] = closed
            return ends_s
    for _ in range(hops.times):
        ends = now + of_rank
        now = np.maximum(ends, ends[hops.before])
    return now


def around_rings(now: "FloatArray", cost: "FloatArray", times: int) -> "FloatArray | None":
    """Return when each rank is done after so many rounds, rings in rows; None unless the ranks of a ring start alike.

    A critical path waits at one place of the ring and then follows the hops to the rank: where it waits, no hop on the
    way is slower. Such places lie one behind the other upstream, each slower than all between: few as a rule.
    """
    rings, size = now.shape
    if not (now == now[:, :1]).all():
        return None
    if (cost == cost[:, :1]).all():
        return np.asarray(now + times * cost)
    twice = np.concatenate((cost, cost), axis=1)
    before = np.concatenate((np.zeros((rings, 1)), np.cumsum(twice, axis=1)), axis=1)
    slower = _nearest_slower(twice)
    ring, rank = (axis.ravel() for axis in np.indices(now.shape))
    place = rank + size
    best, waits_at = times * twice[ring, place], slower[ring, place]
    first = np.maximum(place - min(size - 1, times), 0)
    left = np.arange(len(place))
    while len(left := left[waits_at[left] >= first[left]]):
        at, from_, of = place[left], waits_at[left], ring[left]
        path = before[of, at] - before[of, from_] + (times - (at - from_)) * twice[of, from_]
        best[left] = np.maximum(best[left], path)
        waits_at[left] = slower[of, from_]
    return np.asarray(now + best.reshape(now.shape))


def _nearest_slower(cost: "FloatArray") -> "IntArray":
    """Return for each place of a row the nearest one before it where a hop takes longer, -1 where there is none.

    All between a place and where it points to are no slower than it: what is no slower either points further.
    """
    nearest = np.broadcast_to(np.arange(cost.shape[1]) - 1, cost.shape).copy()
    row, place = (axis.ravel() for axis in np.indices(cost.shape))
    while len(row):
        points_to = nearest[row, place]
        passes = (points_to >= 0) & (cost[row, points_to] <= cost[row, place])
        row, place, points_to = row[passes], place[passes], points_to[passes]
        nearest[row, place] = nearest[row, points_to]
    return nearest
