"""When each rank is done with a collective, on links that need not be alike and that may change meanwhile.

Every group begins when its last rank arrives, and all that share links are taken to begin together. Pipelines and
direct exchanges go on at the pace of their most loaded link; rounds that wait for each other are followed rank by rank
(`hops`). Where that does not hold, a collective of few sends is followed send by send; of one with many the answer is
an approximation, and says so.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np

from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology, without_faults
from simnet.collectives import link_loads, pace
from simnet.collectives.link_loads import TX, rails_per_node
from simnet.collectives.pace import OverlappedCost
from simnet.engine import hops
from simnet.engine.uneven_links import UnevenLinks, links_since
from simnet.strategies.program import Communicate

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray, IntArray

_SAME_TIME = 1e-12
_MOST_CHANGES = 10_000
"""That are gone through to come to a time."""
MOST_SENDS = 2_000
"""That are followed one by one: some 30 ms."""


class Changes:
    """The times at which links change, found as they are asked for."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._times_s = [0.0, topology.next_change_s(0.0)]

    def around(self, time_s: float) -> tuple[float, float]:
        """Return a time since which links are as at a time, such as the last change, and the next change [s]."""
        for _ in range(_MOST_CHANGES):
            if self._times_s[-1] > time_s:
                break
            self._times_s.append(self._topology.next_change_s(self._times_s[-1]))
        else:  # a long pause amid quick changes
            self._times_s = [time_s, self._topology.next_change_s(time_s)]
        place = bisect_right(self._times_s, time_s)
        if not place:
            return time_s, self._topology.next_change_s(time_s)
        return self._times_s[place - 1], self._times_s[place]


class CollectiveTimes:
    """What one collective of the program takes in one iteration, from when its groups begin.

    Attributes:
        operation: the collective.
        stretch: how many times as long as usual it takes.
    """

    def __init__(self, operation: Communicate, topology: Topology, changes: Changes, stretch: float) -> None:
        """Take the links, when they change, and a factor on the time of the collective."""
        self.operation = operation
        self._topology = topology
        self._changes = changes
        self.stretch = stretch
        self._begun_s = math.inf, -math.inf  # when the first group began, and when the last one did
        # By how much it may be off, by what makes it so: counted once, in however many parts its groups begin.
        self._off_s: dict[tuple[str, float], float] = {}

    @property
    def off_s(self) -> float:
        """By how much its times may be off [s]."""
        schedule, off_s = self.operation.schedule, sum(self._off_s.values())
        apart_s = max(self._begun_s[1] - self._begun_s[0], 0.0)
        if not apart_s or not shares_nics(schedule.group, self._topology):
            return off_s
        # A group that begins before others on its links has more of them than is counted here. From then on its rounds
        # have theirs while those of the others are in latency, of each of them once.
        rounds = 0 if any(round_.at_once for round_ in schedule.rounds) else schedule.num_rounds
        others = max(rails_per_node(schedule.group) - 1, 1)
        hidden_s = min(rounds * others * apart_s, link_loads.lower_bound_s(without_faults(self._topology), schedule))
        return off_s + apart_s + hidden_s

    @property
    def can_be_followed(self) -> bool:
        """Tell whether it sends between nodes, on links that do not change."""
        schedule, topology = self.operation.schedule, self._topology
        return (
            schedule.group.nodes > 1
            and bool(schedule.rounds)
            and not topology.has_leaves
            and self._changes.around(0.0)[1] == math.inf
        )

    @property
    def are_even(self) -> bool:
        """Tell whether rails that begin together end together, over all nodes on links as they always are."""
        schedule, links = self.operation.schedule, links_since(self._topology, 0.0)
        is_over_all = schedule.group.nodes == self._topology.num_nodes
        is_usual = links.are_usual_between_nodes and _ends_together(self._topology, schedule)
        return is_over_all and not schedule.protocol and is_usual

    def ends_s(
        self, groups: "IntArray", starts_s: "FloatArray", computing_s: "FloatArray | None" = None
    ) -> "FloatArray":
        """Return when each rank of groups is done, links followed from one change to the next [s].

        Args:
            groups: ranks, a group a row.
            starts_s: when each group begins [s].
            computing_s: for how long the GPU of each rank goes on to compute [s]; None where links do not mind.
        """
        first_s, last_s = float(starts_s.min()), float(starts_s.max())
        self._begun_s = min(self._begun_s[0], first_s), max(self._begun_s[1], last_s)
        slowed = 1.0 if computing_s is None else self._slowed_by_compute(groups, computing_s)
        since_s, until_s = self._changes.around(first_s)
        ends_s = starts_s[:, None] + self._taken_s(groups, since_s) * slowed
        if until_s == math.inf or ends_s.max() <= until_s:
            return ends_s if ends_s.shape == groups.shape else np.asarray(np.broadcast_to(ends_s, groups.shape))
        is_alone = len(groups) == 1 and groups.size == self._topology.world_size
        if computing_s is None and is_alone and num_sends(self.operation.schedule) <= MOST_SENDS:
            return self._send_by_send(groups, starts_s, since_s)
        return self._across_changes(groups, starts_s, slowed)

    def _send_by_send(self, groups: "IntArray", starts_s: "FloatArray", since_s: float) -> "FloatArray":
        from simnet.engine import every_send

        of_ranks = np.empty(groups.size)
        of_ranks[groups] = starts_s[:, None]
        begun = every_send.Begun(self.operation.schedule, self.operation.message_bytes, of_ranks, self.stretch)
        return every_send.ends_s(self._topology, [begun], since_s)[0][groups]

    def _across_changes(self, groups: "IntArray", starts_s: "FloatArray", slowed: "FloatArray | float") -> "FloatArray":
        now = np.broadcast_to(starts_s[:, None], groups.shape).copy()
        left = np.ones(groups.shape)
        since_s, until_s = self._changes.around(float(starts_s.min()))
        while True:
            is_here = (now < until_s) & (left > 0)
            if is_here.any():
                taken_s = np.broadcast_to(self._taken_s(groups, since_s) * slowed, groups.shape)
                ends_s = now + left * taken_s
                over = is_here & (ends_s <= until_s)
                now[over], left[over] = ends_s[over], 0.0
                crossing = is_here & ~over
                if crossing.any():
                    left[crossing] -= (until_s - now[crossing]) / taken_s[crossing]
                    now[crossing] = until_s
                    self._note_error(("a link changes", until_s), self._of_a_round_s(float(taken_s.max())))
                if not (left > 0).any():
                    return now
            since_s, until_s = self._changes.around(until_s)

    def _taken_s(self, groups: "IntArray", since_s: float) -> "FloatArray | float":
        """Return what it takes on links as they are since a time, of each rank or of all [s]."""
        operation = self.operation
        seconds, off_s = rank_times(self._topology, operation.schedule, operation.message_bytes, since_s)
        if off_s:
            self._note_error(("links are uneven", since_s), self.stretch * off_s)
        return self.stretch * (seconds if isinstance(seconds, float) else seconds[groups])

    def _note_error(self, why: tuple[str, float], by_s: float) -> None:
        self._off_s[why] = max(self._off_s.get(why, 0.0), by_s)

    def _of_a_round_s(self, taken_s: float) -> float:
        """Return how long the part takes that a change of a link may catch anywhere: a round, and all latencies."""
        schedule = self.operation.schedule
        rounds = 1 if any(round_.at_once for round_ in schedule.rounds) else max(schedule.num_rounds, 1)
        latencies_s = link_loads.lower_bound_s(without_faults(self._topology), schedule)
        return latencies_s + (taken_s / rounds if rounds > 1 else 0.0)

    def _slowed_by_compute(self, groups: "IntArray", computing_s: "FloatArray") -> "FloatArray":
        """Return how many times as long each group takes since its GPUs compute meanwhile, which slows their links."""
        usual = without_faults(self._topology)
        cost = _paced(usual, self.operation.schedule, self.operation.message_bytes)
        alone_s = cost.seconds(0.0)
        first, last = (cost.seconds(float(computing_s[groups].min())), cost.seconds(float(computing_s[groups].max())))
        self._note_error(("compute slows links", 0.0), last - first)
        slowest = computing_s[groups].max(axis=1)
        return np.array([[cost.seconds(float(computing_s)) / alone_s] for computing_s in slowest])


@lru_cache(maxsize=4096)
def _paced(topology: Topology, schedule: Schedule, message_bytes: float) -> OverlappedCost:
    return pace.pace(topology, schedule, message_bytes)


def shares_nics(group: Group, topology: Topology) -> bool:
    """Tell whether groups side by side send over the same NICs or uplinks."""
    return group.nodes > 1 and (rails_per_node(group) > 1 or (topology.has_leaves and group.nodes < group.num_nodes))


_Wire = tuple["FloatArray | float", bool]
"""Seconds of each rank, and whether they are those of the exact executor."""


class RankTimes(NamedTuple):
    """How long after the start of its group each rank is done.

    Attributes:
        seconds: of each rank, or one number for all.
        off_s: by how much that may be off; 0 where the exact executor gives the same but for rounding, if groups that
            share links start together [s].
    """

    seconds: "FloatArray | float"
    off_s: float = 0.0


@lru_cache(maxsize=512)
def rank_times(topology: Topology, schedule: Schedule, message_bytes: float, since_s: float) -> RankTimes:
    """Return how long a collective takes each rank.

    Args:
        topology: filled leaves, each as large as the others.
        schedule: made for this topology's ranks.
        message_bytes: whole message of one group.
        since_s: time from which the links are as they are; they stay so.
    """
    return _times_on(links_since(topology, since_s), schedule, message_bytes)


def rank_times_of_draws(topologies: Sequence[Topology], schedule: Schedule, message_bytes: float) -> "FloatArray":
    """Return how long a collective takes each rank in draws of one cluster, a draw a row [s].

    One draw alone is followed send by send where that is needed: the others are as far off their forms as it is.
    """
    world = topologies[0].world_size
    forms = [
        _times_on(links_since(topology, 0.0), schedule, message_bytes, follows=False).seconds for topology in topologies
    ]
    seconds = np.stack([np.broadcast_to(form, world) for form in forms])
    first = rank_times(topologies[0], schedule, message_bytes, 0.0).seconds
    return np.asarray(seconds * np.divide(first, seconds[0], out=np.ones(world), where=seconds[0] > 0))


# By what links give and not since when: one that flaps a thousand times has two states.
@lru_cache(maxsize=512)
def _times_on(links: UnevenLinks, schedule: Schedule, message_bytes: float, *, follows: bool = True) -> RankTimes:
    usual = without_faults(links.topology)
    usual_s = link_loads.duration_s(usual, schedule, message_bytes)
    # One number for all ranks wherever it holds: arrays over a million ranks are not made for nothing.
    if links.are_usual and _ends_together(usual, schedule):
        return RankTimes(usual_s)
    launch_s, host_s = link_loads.launch_s(usual, schedule), link_loads.host_s(usual, schedule, message_bytes)
    wire_s, is_exact = _wire_times(links, schedule, message_bytes)
    seconds = np.maximum(launch_s + wire_s, host_s)
    if is_exact:
        return RankTimes(seconds)
    # Send by send where no form is exact and it does not take long, so that most answers have no error to name.
    if follows and num_sends(schedule) <= MOST_SENDS:
        from simnet.engine import every_send

        (ends_s,) = every_send.ends_s(
            links.frozen(), [every_send.Begun(schedule, message_bytes, np.zeros(len(seconds)))]
        )
        return RankTimes(ends_s)
    longest_s = float(np.max(seconds))
    return RankTimes(seconds, max(longest_s - usual_s, link_loads.UNEVEN * longest_s))


@lru_cache(maxsize=512)
def num_sends(schedule: Schedule) -> float:
    """Return the sends of all ranks, infinity where they are too many to be followed."""
    world, sends = schedule.group.num_nodes * schedule.group.ranks_per_node, 0
    for round_ in schedule.rounds:
        if round_.repeat * world > MOST_SENDS:
            return math.inf
        sends += sum(len(round_.sends(rank, index)) for index in range(round_.repeat) for rank in range(world))
    return sends


def ends_as_usual(topology: Topology, schedule: Schedule) -> bool:
    """Tell whether all ranks of a group end together, as on links without faults: at the start no fault is there."""
    return links_since(topology, 0.0).are_usual and _ends_together(topology, schedule)


def _ends_together(topology: Topology, schedule: Schedule) -> bool:
    """Tell whether all ranks of a group that start together end together where links are alike."""
    if not schedule.rounds or schedule.protocol:
        return True
    is_symmetric = schedule.nodes_are_symmetric and schedule.rails_are_symmetric
    return is_symmetric and not link_loads.is_upper_bound(topology, schedule)


def _wire_times(links: UnevenLinks, schedule: Schedule, message_bytes: float) -> _Wire:
    if schedule.protocol:
        return _pipeline(links, schedule, message_bytes)
    if any(round_.at_once for round_ in schedule.rounds):
        if len(schedule.rounds) == 1 and schedule.nodes_are_symmetric:
            return _posted_at_once(links, schedule, message_bytes)
        return _as_slowest(links, schedule, message_bytes)
    try:
        return hops.run(links, schedule, message_bytes)
    except hops.TooManySendsError:
        return _as_slowest(links, schedule, message_bytes)


def _as_slowest(links: UnevenLinks, schedule: Schedule, message_bytes: float) -> _Wire:
    """Return the usual time, as many times as long as the slowest link any of whose kind is used makes it."""
    usual = without_faults(links.topology)
    phases = link_loads.phases(usual, schedule, message_bytes)
    kinds = {kind for phase in phases for load in phase for kind, size in load.inflated_bytes.items() if size > 0}
    slower, added_s = 1.0, 0.0
    for kind in kinds:
        rates = links.bytes_per_s(kind)
        slower = max(slower, float(UnevenLinks(usual, 0.0).bytes_per_s(kind)[0] / rates.min()))
        added_s = max(added_s, float(links.added_s(kind).max()))
    wire_s = link_loads.duration_s(usual, schedule, message_bytes) - link_loads.launch_s(usual, schedule)
    return wire_s * slower + schedule.num_rounds * added_s, False


def _posted_at_once(links: UnevenLinks, schedule: Schedule, message_bytes: float) -> _Wire:
    """Return the times of sends of one size to all others at once.

    Max-min fair shares of equal flows leave those on the link that has most of them for its rate to end last, at its
    pace: a flow that another link holds back has more than that. Every rank has a flow over each such link of its
    group, or of its node where the sends stay inside.
    """
    usual, group = without_faults(links.topology), schedule.group
    (phase,) = link_loads.phases(usual, schedule, message_bytes)
    busiest_s = np.zeros(group.num_nodes * group.ranks_per_node)
    for load in phase:
        is_between = any(kind not in ("port_tx", "port_rx") for kind in load.inflated_bytes)
        scope = group if is_between else group.levels()[0]
        seconds = load.latency_s + _busiest_s(links, load.inflated_bytes) + _added_s(links, is_between)
        busiest_s = np.maximum(busiest_s, _of_groups(scope, seconds, np.maximum))
    is_exact = not (links.topology.has_leaves and group.nodes < group.num_nodes)
    return busiest_s, is_exact and not any(links.added_s(kind).any() for kind in get_args(LinkKind))


def _busiest_s(links: UnevenLinks, inflated_bytes: dict[LinkKind, float]) -> "FloatArray":
    """Return what the links at each rank take for their bytes, both directions loaded alike [s]."""
    busiest_s = np.zeros(links.topology.world_size)
    for kind, size in inflated_bytes.items():
        for direction in _both(kind):
            busiest_s = np.maximum(
                busiest_s, size / links.bytes_per_s(direction)[_place_of_ranks(links.topology, direction)]
            )
    return busiest_s


def _added_s(links: UnevenLinks, is_between: bool) -> "FloatArray":
    """Return the most that faults add to the latency of a send that a rank takes part in [s]."""
    kinds: tuple[LinkKind, ...] = ("nic_tx", "nic_rx", "leaf_up", "leaf_down") if is_between else ("port_tx", "port_rx")
    return sum((links.added_s(kind)[_place_of_ranks(links.topology, kind)] for kind in kinds), np.zeros(1))


def _both(kind: LinkKind) -> tuple[LinkKind, ...]:
    pairs: dict[LinkKind, tuple[LinkKind, ...]] = {
        "port_tx": ("port_tx", "port_rx"),
        "nic_tx": ("nic_tx", "nic_rx"),
        "leaf_up": ("leaf_up", "leaf_down"),
    }
    return pairs[kind] if kind in TX else ()


def _place_of_ranks(topology: Topology, kind: LinkKind) -> "IntArray":
    ranks = np.arange(topology.world_size)
    if kind in ("port_tx", "port_rx"):
        return ranks
    nodes = ranks // topology.ranks_per_node
    return nodes if kind in ("nic_tx", "nic_rx") else nodes // topology.nodes_per_leaf


@lru_cache(maxsize=256)
def group_order(group: Group) -> "IntArray":
    """Return the ranks of each group in a row, in the order of their positions."""
    ranks = np.arange(group.num_nodes * group.ranks_per_node)
    position = (ranks - group.first) // group.stride % group.size
    first = ranks - position * group.stride
    return np.lexsort((position, first)).reshape(-1, group.size)


def _of_groups(group: Group, values: "FloatArray", combine: np.ufunc) -> "FloatArray":
    """Return for each rank the combined value of its group."""
    order = group_order(group)
    combined = np.empty(order.size)
    combined[order] = combine.reduce(values[order], axis=1)[:, None]
    return combined


def _pipeline(links: UnevenLinks, schedule: Schedule, message_bytes: float) -> _Wire:
    """Return the times of a pipeline: all links of a group carry its bytes at the pace of the most loaded one."""
    topology, group = links.topology, schedule.group
    cost = link_loads.pipeline_cost(without_faults(topology), schedule, message_bytes)
    chunk_bytes = message_bytes / schedule.num_chunks
    seconds = np.zeros(topology.world_size)
    sent = _links_by_rank(schedule, topology.nodes_per_leaf)
    for kind, ranks, places, chunks in sent:
        of_links_s = chunks * chunk_bytes * cost.inflation(kind) / links.bytes_per_s(kind)[places]
        np.maximum.at(seconds, ranks, of_links_s)
    taken_s = cost.latency_s + _of_groups(group, seconds, np.maximum)
    if any(links.added_s(kind).any() for kind in get_args(LinkKind)):
        taken_s += _added_to_pipelines_s(links, schedule, sent)
    is_alone = link_loads.rails_per_node(group) == 1
    alike = bool(np.ptp(taken_s) <= _SAME_TIME * taken_s.max())
    return taken_s, is_alone or alike


def _added_to_pipelines_s(links: UnevenLinks, schedule: Schedule, sent: "tuple[_LoadedLinks, ...]") -> "FloatArray":
    """Return what faults add to the latency of the pipeline of each rank's group [s]."""
    firsts = np.array([schedule.group.group_id(rank) for rank in range(links.topology.world_size)])
    added: dict[int, dict[LinkId, float]] = {}
    for kind, ranks, places, _ in sent:
        of_places = links.added_s(kind)
        for first, place in set(zip(firsts[ranks].tolist(), places.tolist(), strict=True)):
            added.setdefault(first, {})[LinkId(kind, place)] = float(of_places[place])
    of_groups = {first: link_loads.added_pipeline_latency_s(schedule, links.values()) for first, links in added.items()}
    return np.array([of_groups.get(first, 0.0) for first in firsts.tolist()])


class _LoadedLinks(NamedTuple):
    """Links of a kind, each once for every rank that sends over it, with the chunks of all these ranks together."""

    kind: LinkKind
    ranks: "IntArray"
    places: "IntArray"
    chunks: "FloatArray"


@lru_cache(maxsize=64)
def _links_by_rank(schedule: Schedule, nodes_per_leaf: int) -> tuple[_LoadedLinks, ...]:
    chunks_by_kind: dict[LinkKind, dict[tuple[int, int], float]] = {}
    for rank in range(schedule.group.world_size):
        for (kind, place), chunks in link_loads.count_chunks(schedule, (rank,), nodes_per_leaf).items():
            chunks_by_kind.setdefault(kind, {})[rank, place] = float(chunks)
    return tuple(_sent(kind, of_kind) for kind, of_kind in chunks_by_kind.items())


def _sent(kind: LinkKind, of_kind: dict[tuple[int, int], float]) -> _LoadedLinks:
    ranks, places = np.array(list(of_kind), dtype=np.intp).T
    return _LoadedLinks(kind, ranks, places, np.bincount(places, list(of_kind.values()))[places])
