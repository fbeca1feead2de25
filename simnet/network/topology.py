"""Which links a send loads, what they give and how long it takes to start: a cluster and its calibration as numbers."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from simnet.collectives.schedule import Group, GroupKind, Round
from simnet.hardware import Calibration, Cluster, HostCost, LinkCalibration, SlowNode

LinkKind = Literal["port_tx", "port_rx", "nic_tx", "nic_rx", "leaf_up", "leaf_down"]


class LinkId(NamedTuple):
    """One direction of one link: the port of a rank, the NICs of a node, or the uplinks of a leaf."""

    kind: LinkKind
    place: int


class Level(NamedTuple):
    """Effective numbers of a level of the network: bandwidth [B/s], latency of one send [s], efficiency curve."""

    bytes_per_s: float
    alpha_s: float
    curve: tuple[tuple[float, float], ...]

    def efficiency(self, send_bytes: float) -> float:
        """Return the fraction of the bandwidth that sends of this size reach, log-linear between the points."""
        if len(self.curve) == 1:
            return self.curve[0][1]
        return _interpolate(self.curve, max(send_bytes, 1e-9))


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A cluster as links: nodes x ranks, two levels, and the costs that every message and collective pays [s]."""

    num_nodes: int
    ranks_per_node: int
    intra: Level
    inter: Level
    nodes_per_leaf: int
    leaf_bytes_per_s: float
    message_s: float
    poll_s: float
    launch_s: float
    host: HostCost
    all_to_all_efficiency: float
    mean_ring_latency: bool
    slow_nodes: tuple[SlowNode, ...] = ()

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
        return not self.slow_nodes and self.num_nodes % self.nodes_per_leaf == 0

    def posting_s(self, sends: int, *, at_once: bool) -> float:
        """Return the time that a rank takes to post so many sends, one after the other or all at once [s]."""
        return sends * self.message_s + (sends * sends * self.poll_s if at_once else 0.0)

    def alpha_s(self, level: Level, round_: Round) -> float:
        """Return the latency of a send of this level in this round [s]."""
        if self.mean_ring_latency and round_.crossing is not None:
            return round_.crossing * self.inter.alpha_s + (1 - round_.crossing) * self.intra.alpha_s
        return level.alpha_s

    def group(self, kind: GroupKind) -> Group:
        """Return the process groups of this kind."""
        return _group(kind, self.num_nodes, self.ranks_per_node)

    def level(self, src: int, dst: int) -> Level:
        """Return the level that joins two ranks."""
        same_node = src // self.ranks_per_node == dst // self.ranks_per_node
        return self.intra if same_node else self.inter

    def path(self, src: int, dst: int) -> tuple[LinkId, ...]:
        """Return the links that a send from `src` to `dst` loads."""
        return path(src, dst, self.ranks_per_node, self.nodes_per_leaf)

    def capacity(self, link: LinkId) -> float:
        """Return the bytes per second of a link, its node's slowness counted."""
        if link.kind in ("port_tx", "port_rx"):
            return self.intra.bytes_per_s
        if link.kind in ("leaf_up", "leaf_down"):
            return self.leaf_bytes_per_s
        return self.inter.bytes_per_s / self._nic_slowdown.get(link.place, 1.0)

    def compute_slowdown(self, rank: int) -> float:
        """Return the factor on compute time of a rank's node."""
        return self._compute_slowdown.get(rank // self.ranks_per_node, 1.0)

    @cached_property
    def _nic_slowdown(self) -> dict[int, float]:
        return {slow.node: slow.nic_slowdown for slow in self.slow_nodes}

    @cached_property
    def _compute_slowdown(self) -> dict[int, float]:
        return {slow.node: slow.compute_slowdown for slow in self.slow_nodes}


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


def build(cluster: Cluster, calibration: Calibration) -> Topology:
    """Return the topology of a cluster as the calibration says that it performs."""
    nic_bytes_per_s = float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node
    fabric = cluster.fabric
    per_leaf = min(fabric.nodes_per_leaf, cluster.num_nodes) if fabric else cluster.num_nodes
    return Topology(
        num_nodes=cluster.num_nodes,
        ranks_per_node=cluster.ranks_per_node,
        intra=_level(float(cluster.intra_node.bytes_per_s), cluster.intra_node.alpha_s, calibration.intra_node),
        inter=_level(nic_bytes_per_s, cluster.inter_node.alpha_s, calibration.inter_node),
        nodes_per_leaf=per_leaf,
        leaf_bytes_per_s=per_leaf * nic_bytes_per_s / (fabric.oversubscription if fabric else 1.0),
        message_s=float(calibration.message_s),
        poll_s=float(calibration.poll_s),
        launch_s=float(calibration.collective_launch_s),
        host=calibration.host,
        all_to_all_efficiency=calibration.all_to_all_efficiency,
        mean_ring_latency=calibration.flat_ring_latency == "mean",
        slow_nodes=cluster.slow_nodes,
    )


@lru_cache(maxsize=1024)
def _group(kind: GroupKind, num_nodes: int, ranks_per_node: int) -> Group:
    return Group(kind=kind, num_nodes=num_nodes, ranks_per_node=ranks_per_node)


def _level(bytes_per_s: float, alpha_s: float, calibration: LinkCalibration) -> Level:
    latency = alpha_s if calibration.alpha_s is None else calibration.alpha_s
    efficiency = calibration.efficiency
    curve = efficiency if isinstance(efficiency, tuple) else ((1.0, efficiency),)
    return Level(bytes_per_s, float(latency), tuple((float(size), float(value)) for size, value in curve))


def _interpolate(curve: tuple[tuple[float, float], ...], size: float) -> float:
    place = bisect_right(curve, size, key=lambda point: point[0])
    if place == 0 or place == len(curve):
        return curve[min(place, len(curve) - 1)][1]
    (low, at_low), (high, at_high) = curve[place - 1], curve[place]
    part = math.log(size / low) / math.log(high / low)
    return at_low + part * (at_high - at_low)
