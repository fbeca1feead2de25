"""The links of a cluster whose links are not alike, as arrays: what each gives while no fault begins or ends."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, get_args

import numpy as np
from msgspec.structs import replace

from simnet.cluster.hardware import Fault, LinkId, LinkKind
from simnet.cluster.topology import Topology, touched, without_faults

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray

_PLACES: dict[LinkKind, str] = {"port_tx": "rank", "port_rx": "rank", "nic_tx": "node", "nic_rx": "node"}


_KINDS: tuple[LinkKind, ...] = get_args(LinkKind)
_State = tuple[tuple[LinkKind, int, float, float], ...]


class _Frozen(Fault, frozen=True, kw_only=True):
    """A link that is for good as faults make it at one time."""

    link: LinkId
    rate: float
    added: float

    def link_limit(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return its bandwidth [B/s]."""
        return self.rate if link == self.link else math.inf

    def added_latency_s(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return what it adds to the latency of a send [s]."""
        return self.added if link == self.link else 0.0


class UnevenLinks:
    """Bandwidths and latencies by kind and place, from one time until the next change.

    Those of a topology that give the same are equal, whenever that is: a link that flaps has two states.

    Attributes:
        topology: the cluster.
    """

    def __init__(self, topology: Topology, since_s: float) -> None:
        """Take the cluster, and the time at which faults are asked [s]."""
        self.topology = topology
        self._bytes_per_s: dict[LinkKind, FloatArray] = {}
        self._added_s: dict[LinkKind, FloatArray] = {}
        self._state: _State = tuple(unusual for kind in _KINDS for unusual in self._unusual(kind, since_s))
        self._hash = hash((topology, self._state))

    def __eq__(self, other: object) -> bool:
        """Tell whether all links are as those of the other."""
        return isinstance(other, UnevenLinks) and (self.topology, self._state) == (other.topology, other._state)

    def __hash__(self) -> int:
        """Return what equal links share."""
        return self._hash

    @property
    def are_usual(self) -> bool:
        """Tell whether no fault touches any link just now."""
        return not self._state

    @property
    def are_usual_between_nodes(self) -> bool:
        """Tell whether no fault touches a link between nodes just now."""
        return all(kind in ("port_tx", "port_rx") for kind, *_ in self._state)

    def bytes_per_s(self, kind: LinkKind) -> "FloatArray":
        """Return the bandwidth of every link of a kind [B/s]."""
        if kind not in self._bytes_per_s:
            rates = np.full(self._number(kind), without_faults(self.topology).capacity(LinkId(kind, 0)))
            for place, bytes_per_s, _ in self._places(kind):
                rates[place] = bytes_per_s
            self._bytes_per_s[kind] = rates
        return self._bytes_per_s[kind]

    def added_s(self, kind: LinkKind) -> "FloatArray":
        """Return what faults add to the latency of a send over every link of a kind [s]."""
        if kind not in self._added_s:
            seconds = np.zeros(self._number(kind))
            for place, _, added_s in self._places(kind):
                seconds[place] = added_s
            self._added_s[kind] = seconds
        return self._added_s[kind]

    def frozen(self) -> Topology:
        """Return a cluster whose links are for good as these are."""
        faults = (_Frozen(link=LinkId(kind, place), rate=rate, added=added) for kind, place, rate, added in self._state)
        return replace(self.topology, faults=tuple(faults))

    def _places(self, kind: LinkKind) -> Iterator[tuple[int, float, float]]:
        return ((place, rate, added_s) for of_kind, place, rate, added_s in self._state if of_kind == kind)

    def _number(self, kind: LinkKind) -> int:
        topology = self.topology
        leaves = -(-topology.num_nodes // topology.nodes_per_leaf)
        return {"rank": topology.world_size, "node": topology.num_nodes}.get(_PLACES.get(kind, ""), leaves)

    def _unusual(self, kind: LinkKind, since_s: float) -> Iterator[tuple[LinkKind, int, float, float]]:
        """Yield the links of a kind that some fault changes just now, with bandwidth [B/s] and latency [s]."""
        usual = without_faults(self.topology).capacity(LinkId(kind, 0))
        for place, with_faults in touched(self.topology, kind).items():
            link = LinkId(kind, place)
            rate, added_s = with_faults.capacity(link, since_s), with_faults.added_latency_s((link,), since_s)
            if rate != usual or added_s:
                yield kind, place, rate, added_s


@lru_cache(maxsize=64)
def links_since(topology: Topology, since_s: float) -> UnevenLinks:
    """Return the links as they are from a time on."""
    return _first_like(UnevenLinks(topology, since_s))


@lru_cache(maxsize=64)
def _first_like(links: UnevenLinks) -> UnevenLinks:
    """Return the first of equal links, so that their arrays are made and kept once."""
    return links
