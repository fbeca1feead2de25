"""A cluster and its calibration as numbers: the links that a send loads, their rates, and the latency of a send."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from simnet.cluster import nccl_model, network_costs
from simnet.cluster.hardware import Calibration, Cluster, Fault, LinkCalibration, LinkId, LinkKind
from simnet.cluster.kernel_times import HostCost
from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.schedule import Group, GroupKind, Round, group_of
from simnet.core.errors import SimnetError, blamed_on_package
from simnet.core.lanes import largest, least, smallest, stacked
from simnet.core.schema import tag_of

LEAST_FAULT_FACTOR, MAX_FAULT_FACTOR = 1e-3, 1e6
LEAST_BYTES_PER_S = 1.0
NO_HOST_COST = HostCost()
NCCL_HOP_S = nccl_model.RING_HOP_S["Simple"][1]
"""What NCCL itself takes for a hop between nodes (src/graph/tuning.cc), which bytes do not hide.

Hiding it, too, makes published rows worse: HKBU on 100GbE from 4.2 to 4.6 %, HiPress on AWS from 6.3 to 6.7 %.
"""
HIDDEN = 0.75
"""Part of a window's bytes that its latencies do not hide: gloo's iteration i waits for the receive of i - 2 alone.

Source: gloo, allreduce.cc (ring, segments of at most 1 MiB, two or more a chunk) and transport/tcp/pair.cc (a send
starts when the receiver's "ready" has come); exact for chunks of two segments.
"""


class Level(NamedTuple):
    """Effective numbers of a level of the network.

    Attributes:
        bytes_per_s: bandwidth [B/s].
        alpha_s: latency of one send [s].
        curve: efficiency by the size of a send.
        overlap_efficiency: further fraction of the bandwidth while the GPUs compute.
        window_bytes: of a send, under way at once; None: all.
        waited_bytes: what the nominal rate would carry while a window waits for both of its latencies [B].
    """

    bytes_per_s: float
    alpha_s: float
    curve: tuple[tuple[float, float], ...]
    overlap_efficiency: float = 1.0
    window_bytes: float | None = None
    waited_bytes: float = 0.0

    def efficiency(self, send_bytes: float, *, is_whole: bool = False) -> float:
        """Return the fraction of the bandwidth that sends of this size reach, log-linear between the points.

        Args:
            send_bytes: of one send [B].
            is_whole: whether no window holds for it.
        """
        # A message of no bytes still has an efficiency: its logarithm must exist.
        size = max(send_bytes, 1e-9)
        fraction = self.curve[0][1] if len(self.curve) == 1 else network_costs.interpolate(self.curve, size)
        if self.window_bytes is None or is_whole:
            return fraction
        # As `LinkCalibration.window` says: the longer of the bytes of a window and of the wait for its receiver.
        window = least(self.window_bytes, size)
        return fraction * least(1.0, window / (self.waited_bytes * fraction + HIDDEN * window))


class Topology(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A cluster as links: nodes x ranks, two levels, and the costs that every message and collective pays [s].

    Its hash is kept, since it is the key of every cache of what a collective takes. With `lanes` it is so many
    topologies at once (`lanes_of`), whose numbers are arrays and which has no hash.
    """

    num_nodes: int
    ranks_per_node: int
    intra_node: Level
    inter_node: Level
    nodes_per_leaf: int
    leaf_bytes_per_s: float
    message_s: float
    poll_s: float
    launch_s: float
    host: HostCost | None
    all_to_all_efficiency: float
    mean_ring_latency: bool
    hops_hide: bool = True
    nccl: NcclCosts | None = None
    nccl_added_s: float = 0.0
    all_reduce: str | None = None
    faults: tuple[Fault, ...] = ()
    lanes: int = 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.ranks_per_node

    @property
    def has_leaves(self) -> bool:
        """Tell whether traffic between leaves can be slower than that of the NICs."""
        return self.nodes_per_leaf < self.num_nodes

    @property
    def is_symmetric(self) -> bool:
        """Tell whether all nodes are alike, so that one may stand for all."""
        return not self.faults and self.leaves_are_filled

    @property
    def leaves_are_filled(self) -> bool:
        """Tell whether every leaf joins as many nodes."""
        return self.num_nodes % self.nodes_per_leaf == 0

    def posting_s(self, sends: int, *, at_once: bool) -> float:
        """Return the time in which a rank posts `sends` sends, one after the other or all at once [s]."""
        # A progress engine polls every open connection for each send: n sends posted together cost n * n polls.
        return sends * self.message_s + (sends * sends * self.poll_s if at_once else 0.0)

    def alpha_s(self, level: Level, round_: Round) -> float:
        """Return the latency of a send of this level in this round [s]."""
        if round_.is_whole and level.window_bytes is not None:
            # A window waits for both latencies; a message that no window holds pays one of them.
            return level.waited_bytes / 2 / level.bytes_per_s
        if self.mean_ring_latency and round_.crossing_fraction is not None:
            return (
                round_.crossing_fraction * self.inter_node.alpha_s
                + (1 - round_.crossing_fraction) * self.intra_node.alpha_s
            )
        return level.alpha_s

    def wire_alpha_s(self, level: Level, round_: Round) -> float:
        """Return the part of `alpha_s` that hides behind bytes [s].

        What NCCL's kernels and proxies take for a hop adds to the bytes, as in its cost model. What is beyond is the
        wire's, which passes while a rank sends what it has. Links inside a node have none.
        """
        if not (self.hops_hide and round_.passes_on):
            return 0.0
        beyond_s = largest(self.inter_node.alpha_s - NCCL_HOP_S, 0.0)
        if self.mean_ring_latency and round_.crossing_fraction is not None:
            return round_.crossing_fraction * beyond_s
        return beyond_s if level is self.inter_node else 0.0

    def group(self, kind: GroupKind) -> Group:
        """Return the process groups of this kind."""
        return group_of(kind, self.num_nodes, self.ranks_per_node)

    def level(self, src: int, dst: int) -> Level:
        """Return the level that joins two ranks."""
        same_node = src // self.ranks_per_node == dst // self.ranks_per_node
        return self.intra_node if same_node else self.inter_node

    def path(self, src: int, dst: int) -> tuple[LinkId, ...]:
        """Return the links that a send from `src` to `dst` loads."""
        return path(src, dst, self.ranks_per_node, self.nodes_per_leaf)

    @property
    def compute_slows_links(self) -> bool:
        """Tell whether any link is slower while GPUs compute."""
        least = smallest(self.intra_node.overlap_efficiency), smallest(self.inter_node.overlap_efficiency)
        return min(least) < 1

    def capacity(self, link: LinkId, time_s: float = 0.0, computing: float = 0.0) -> float:
        """Return the bytes per second of a link at a time, its faults counted.

        Args:
            link: the link.
            time_s: from the start of the iteration.
            computing: part of the GPUs at the link that compute, 0 to 1.
        """
        nominal = self.rate(link.kind)
        if computing and (level := self._level_of(link)) is not None:
            # In proportion: where half of the GPUs compute, the link loses half of what all would take.
            nominal *= 1 - computing * (1 - level.overlap_efficiency)
        for fault in self.faults:
            # Faults that meet on a link multiply: each slows what the others have left.
            nominal /= _factor(fault, "link_factor", link, time_s)
        # A limit holds whatever the rate: it is no factor, and the lowest of several counts.
        limits = (_answered(fault, "link_limit", LEAST_BYTES_PER_S, math.inf, link, time_s) for fault in self.faults)
        return min(nominal, *limits) if self.faults else nominal

    def added_latency_s(self, links: Iterable[LinkId], time_s: float) -> float:
        """Return what faults add to the latency of a send over these links at a time [s]."""
        # Asked for every send of the exact executor.
        if not self.faults:
            return 0.0
        return sum(
            _answered(fault, "added_latency_s", 0.0, 1e6, link, time_s) for fault in self.faults for link in links
        )

    def rate(self, kind: LinkKind, *, computing: bool = False) -> float:
        """Return the bandwidth of a kind of link without faults, also while the GPUs at its ends compute [B/s]."""
        if kind in ("leaf_up", "leaf_down"):
            return self.leaf_bytes_per_s
        level = self.intra_node if kind in ("port_tx", "port_rx") else self.inter_node
        return level.bytes_per_s * level.overlap_efficiency if computing else level.bytes_per_s

    def _level_of(self, link: LinkId) -> Level | None:
        """Return the level of a link that ends at GPUs; None for the uplinks of a leaf."""
        if link.kind in ("leaf_up", "leaf_down"):
            return None
        return self.intra_node if link.kind in ("port_tx", "port_rx") else self.inter_node

    def next_change_s(self, after_s: float) -> float:
        """Return when some link changes first after a time, infinity if none does [s].

        Raises:
            SimnetError: a fault, which may be foreign code, gives no later time.
        """
        # Strictly later: a fault that gives the same time again would stop the clock.
        later = math.nextafter(after_s, math.inf)
        return min(
            (_answered(fault, "next_change_s", later, math.inf, after_s) for fault in self.faults), default=math.inf
        )

    @property
    def adds_latency(self) -> bool:
        """Tell whether some fault may add to the latency of sends."""
        return any(_says(fault, "added_latency_s") for fault in self.faults)

    @property
    def varies(self) -> bool:
        """Tell whether some fault draws anything."""
        return any(fault.varies for fault in self.faults)

    def places_of(self, kind: LinkKind, nodes: Sequence[int]) -> Iterable[int]:
        """Return the places of the links of a kind that belong to nodes."""
        if kind in ("nic_tx", "nic_rx"):
            return nodes
        if kind in ("leaf_up", "leaf_down"):
            return {node // self.nodes_per_leaf for node in nodes}
        return (node * self.ranks_per_node + local for node in nodes for local in range(self.ranks_per_node))

    def nodes_of(self, fault: Fault) -> Sequence[int]:
        """Return the nodes whose ranks and links a fault may change."""
        return range(self.num_nodes) if fault.nodes is None else sorted(set(fault.nodes))

    def slowed_ranks(self) -> dict[int, float]:
        """Return the factor on the time of compute of each rank that some fault slows."""
        factors: dict[int, float] = {}
        for fault in self.faults:
            # Most faults say nothing of compute, and a million ranks need not be asked.
            if _says(fault, "compute_factor"):
                for rank in self.places_of("port_tx", self.nodes_of(fault)):
                    factor = _factor(fault, "compute_factor", *divmod(rank, self.ranks_per_node))
                    if factor != 1.0:
                        factors[rank] = factors.get(rank, 1.0) * factor
        return {rank: factors[rank] for rank in sorted(factors) if factors[rank] != 1.0}

    def compute_factor(self, rank: int) -> float:
        """Return the factor on the time of compute on a rank."""
        node, local_rank = divmod(rank, self.ranks_per_node)
        factors = (_factor(fault, "compute_factor", node, local_rank) for fault in self.faults)
        return math.prod(factors, start=1.0)


def lanes_of(topologies: Sequence[Topology]) -> Topology:
    """Return topologies that differ in numbers as one.

    Raises:
        UnlikeLanesError: they differ in something else.
    """
    together = stacked(topologies)
    return together if together is topologies[0] else replace(together, lanes=len(topologies))


def without_faults(topology: Topology) -> Topology:
    """Return a topology as it would be without faults."""
    return _stripped(topology) if topology.faults else topology


@lru_cache(maxsize=64)
def _stripped(topology: Topology) -> Topology:
    return replace(topology, faults=())


@lru_cache(maxsize=24)
def touched(topology: Topology, kind: LinkKind) -> Mapping[int, Topology]:
    """Return the places of the links of a kind that some fault may change, each with a topology of these faults alone.

    One of all faults would ask each of them about every link.
    """
    numbers_of: dict[int, list[int]] = {}
    for number, fault in enumerate(topology.faults):
        if any(_says(fault, which) for which in ("link_factor", "link_limit", "added_latency_s")):
            for place in topology.places_of(kind, topology.nodes_of(fault)):
                numbers_of.setdefault(place, []).append(number)
    made: dict[tuple[int, ...], Topology] = {}
    for numbers in map(tuple, numbers_of.values()):
        # Places that the same faults touch share a topology, and with it all that is cached by it.
        if numbers not in made:
            made[numbers] = replace(topology, faults=tuple(topology.faults[number] for number in numbers))
    return {place: made[tuple(numbers_of[place])] for place in sorted(numbers_of)}


def around(topology: Topology, link: LinkId) -> Topology:
    """Return a topology with those faults alone that may change a link."""
    return touched(topology, link.kind).get(link.place) or without_faults(topology)


def _says(fault: Fault, which: str) -> bool:
    """Tell whether a fault answers a question in its own way: most ask nothing of most links."""
    return getattr(type(fault), which) is not getattr(Fault, which)


def _factor(fault: Fault, which: str, *where_and_when: object) -> float:
    """Return a factor of a fault, which may be foreign code."""
    return _answered(fault, which, LEAST_FAULT_FACTOR, MAX_FAULT_FACTOR, *where_and_when)


def _answered(fault: Fault, which: str, least: float, most: float, *where_and_when: object) -> float:
    """Return what a fault says, which may be foreign code."""
    where = f"cluster.faults: {tag_of(fault)!r}: {which}"
    with blamed_on_package(where):
        said = float(getattr(fault, which)(*where_and_when))
    if not least <= said <= most:
        raise SimnetError(f"{where}: {said}: must be from {least:g} to {most:g}, also for a link that is down")
    return said


def path(src: int, dst: int, ranks_per_node: int, nodes_per_leaf: int) -> tuple[LinkId, ...]:
    """Return the links that a send from rank `src` to rank `dst` loads."""
    source, target = src // ranks_per_node, dst // ranks_per_node
    if source == target:
        return LinkId("port_tx", src), LinkId("port_rx", dst)
    nics = LinkId("nic_tx", source), LinkId("nic_rx", target)
    leaves = source // nodes_per_leaf, target // nodes_per_leaf
    if leaves[0] == leaves[1]:
        return nics
    return *nics, LinkId("leaf_up", leaves[0]), LinkId("leaf_down", leaves[1])


def build(cluster: Cluster, calibration: Calibration, strategy: str = "") -> Topology:
    """Return the topology of a cluster as the calibration says that it performs.

    Args:
        cluster: nodes, links and faults.
        calibration: its costs are taken at the cluster's number of nodes.
        strategy: name of the strategy whose exchange it is for, which a library of its own may carry.
    """
    # An exchange that another library carries runs none of NCCL's collectives.
    nccl = calibration.nccl if calibration.library_of(strategy) is None else None
    added_s = nccl_model.added_hop_s(nccl, cluster.inter_node.alpha_s) if nccl is not None else 0.0
    calibration = calibration.at_nodes(cluster.num_nodes).for_strategy(strategy)
    nic_bytes_per_s = float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node
    fabric = cluster.fabric
    per_leaf = min(fabric.nodes_per_leaf, cluster.num_nodes) if fabric else cluster.num_nodes
    return Topology(
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.ranks_per_node,
        intra_node=_level(float(cluster.intra_node.bytes_per_s), cluster.intra_node.alpha_s, calibration.intra_node),
        inter_node=_level(nic_bytes_per_s, cluster.inter_node.alpha_s, calibration.inter_node, added_s),
        nodes_per_leaf=per_leaf,
        leaf_bytes_per_s=per_leaf * nic_bytes_per_s / (fabric.oversubscription if fabric else 1.0),
        message_s=float(calibration.message_s),
        poll_s=float(calibration.poll_s),
        launch_s=float(calibration.collective_launch_s),
        host=None if calibration.host == NO_HOST_COST else calibration.host,
        all_to_all_efficiency=calibration.all_to_all_efficiency,
        mean_ring_latency=calibration.flat_ring_latency == "mean",
        hops_hide=calibration.hides_hops,
        nccl=nccl,
        nccl_added_s=added_s,
        all_reduce=calibration.all_reduce,
        faults=cluster.all_faults,
    )


def _level(bytes_per_s: float, alpha_s: float, calibration: LinkCalibration, added_s: float = 0.0) -> Level:
    """Return a level: nominal bandwidth, latency as calibrated or else nominal, and the efficiency as a curve.

    Args:
        bytes_per_s: nominal bandwidth [B/s].
        alpha_s: nominal latency [s].
        calibration: what the link really gives.
        added_s: what a cluster adds to a calibrated latency [s].
    """
    latency = alpha_s if calibration.alpha_s is None else calibration.alpha_s + added_s
    efficiency = calibration.efficiency
    # One number holds at every size: a curve of one point.
    curve = efficiency if isinstance(efficiency, tuple) else ((1.0, efficiency),)
    points = tuple((float(size), float(value)) for size, value in curve)
    if calibration.window is None:
        return Level(bytes_per_s, float(latency), points, calibration.overlap_efficiency)
    # The efficiency holds what the latency costs, so that it is not paid once more.
    return Level(
        bytes_per_s,
        0.0,
        points,
        calibration.overlap_efficiency,
        window_bytes=float(calibration.window),
        waited_bytes=2 * float(latency) * bytes_per_s,
    )
