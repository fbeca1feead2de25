"""One representative rank on SimPy's clock, whose phases are flows: what the recurrence of one rank is judged by."""

from collections.abc import Generator, Hashable
from typing import get_args

import numpy as np
import simpy

from simnet.cluster.hardware import LinkId, LinkKind
from simnet.cluster.schedule import Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.engine import exact
from simnet.engine.every_send import Steps
from simnet.engine.links import Network
from simnet.engine.random_factors import Varied
from simnet.engine.timeline import Streams, Timeline, make_timeline


class Folded:
    """One representative rank on representative links."""

    num_ranks = 1

    def __init__(self, env: simpy.Environment, topology: Topology) -> None:
        self._env = env
        self.topology = topology
        self._network = Network(env)
        for kind in get_args(LinkKind):
            self._network.add_link(LinkId(kind, 0), topology.capacity(LinkId(kind, 0)))

    def run(
        self,
        rank: int,
        sequence: Hashable,
        schedule: Schedule,
        message_bytes: float,
        stretch: float = 1.0,
    ) -> Steps:
        """Run every phase as one flow a level."""
        start_s = self._env.now
        phases = link_loads.phases(self.topology, schedule, message_bytes)
        if launch_s := link_loads.launch_s(self.topology, schedule):
            yield self._env.timeout(launch_s)
        for phase in phases:
            if len(phase) == 1:
                yield from self._level(phase[0])
            else:
                yield self._env.all_of([self._env.process(self._level(load)) for load in phase])
        host_s = start_s + link_loads.host_s(self.topology, schedule, message_bytes)
        if host_s > self._env.now:
            yield self._env.timeout(host_s - self._env.now)
        return start_s, self._env.now

    def compute_changes(self, rank: int, is_computing: bool) -> None:
        """Set the rates of all links anew."""
        for kind in get_args(LinkKind):
            link = LinkId(kind, 0)
            self._network.add_link(link, self.topology.capacity(link, computing=float(is_computing)))

    def _level(self, load: link_loads.LevelLoad) -> Generator[simpy.Event]:
        yield self._env.timeout(load.latency_s)
        yield self._network.transfer({LinkId(kind, 0): size for kind, size in load.inflated_bytes.items()})


def run(streams: Streams, network: Topology, slowdown: float) -> Timeline:
    """Return one iteration of the representative rank."""
    (ranks,) = exact.run_steps([streams], network, slowdown, Folded, [Varied(np.ones(1))])
    (rank,) = ranks
    return make_timeline(rank.end_s, rank.busy_s, rank.spans)
