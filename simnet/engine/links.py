"""Links shared fluidly: every running flow gets a max-min fair rate, recomputed when a flow starts or ends.

A fluid model sends no packets: a flow has a rate that is constant until the next start or end, so its end is known by
division. Fairness is in bytes on each flow's most loaded link (progressive filling; Bertsekas and Gallager, "Data
Networks", section 6.5.2). How far this holds for TCP: Velho et al., "On the validity of flow-level TCP network models
for grid and cloud simulations", TOMACS 2013. Only flows that share a link with a changed flow, directly or through
others, are recomputed.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import count

import simpy
from simpy.events import EventPriority

_AFTER_ALL = EventPriority(2)
"""After all other events of one instant: SimPy's own are 0 (urgent) and 1 (normal)."""
# Relative. Equal flows that started together end together in the model, and links that equal flows fill are full
# together; the computed times and rates differ by rounding alone.
_ROUNDING = 1e-12


def call_after_all(env: simpy.Environment, function: Callable[[simpy.Event], None], delay_s: float = 0.0) -> None:
    """Call a function after a delay, once all other events of that instant have happened."""
    # A timeout has no priority: an event that has already succeeded is scheduled by hand.
    event = simpy.Event(env)
    event._ok, event._value = True, None
    event.callbacks.append(function)
    env.schedule(event, priority=_AFTER_ALL, delay=delay_s)


class Flow:
    """Bytes under way.

    Attributes:
        done: the event that the flow has ended.
        links: each link with its load relative to that of the most loaded link, 0 to 1.
        rate: bytes per second on the most loaded link.
        remaining: bytes left on the most loaded link at `updated_s`.
        version: counts changes of the rate; an end that was planned with another version is void.
    """

    __slots__ = ("done", "links", "rate", "remaining", "updated_s", "version")

    def __init__(self, done: simpy.Event, loads: Mapping[Hashable, float], now_s: float) -> None:
        self.done = done
        self.remaining = max(loads.values())
        self.links = tuple((link, load / self.remaining) for link, load in loads.items() if load > 0)
        self.rate = 0.0
        self.updated_s = now_s
        self.version = 0


class Network:
    """Links by name, each with a capacity in bytes per second, and the flows that load them."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._capacity: dict[Hashable, float] = {}
        self._running: dict[Hashable, dict[Flow, float]] = {}  # flows on each link with their relative loads
        # Heap of planned ends: time, order of planning (equal ends come in that order), version of the flow, flow.
        self._ends: list[tuple[float, int, int, Flow]] = []
        self._touched: set[Hashable] = set()  # links whose flows or capacity changed at this instant
        self._settling = False
        self._wake_s = float("inf")
        self._order = count()
        self.bytes_sent: dict[Hashable, float] = {}

    def add_link(self, link: Hashable, bytes_per_s: float) -> None:
        """Add a link, or change the capacity of one, from now on."""
        self._capacity[link] = bytes_per_s
        self._running.setdefault(link, {})
        self.bytes_sent.setdefault(link, 0.0)
        if self._running[link]:
            self._touch((link,))

    def transfer(self, loads: Mapping[Hashable, float]) -> simpy.Event:
        """Start a flow that puts these bytes on each link.

        Returns:
            The event that the flow has ended. Its rates on different links have the ratio of the loads.
        """
        done = self._env.event()
        if max(loads.values()) <= 0:
            return done.succeed()
        flow = Flow(done, loads, self._env.now)
        for link, coefficient in flow.links:
            self._running[link][flow] = coefficient
            self.bytes_sent[link] += loads[link]
        self._touch(loads)
        return done

    def _touch(self, links: Iterable[Hashable]) -> None:
        """Have the rates around these links recomputed after all other events of this instant."""
        # A round starts hundreds of flows at one instant: one recomputation serves all of them.
        self._touched.update(links)
        if not self._settling:
            self._settling = True
            call_after_all(self._env, self._settle)

    def _settle(self, _event: simpy.Event) -> None:
        """Recompute the rates of all flows that share a link with a change, directly or through other flows."""
        self._settling = False
        touched, self._touched = self._touched, set()
        seen: set[Hashable] = set()
        for link in touched:
            if link not in seen and self._running[link]:
                self._refill(self._component(link, seen))
        self._wake_at_next_end()

    def _component(self, link: Hashable, seen: set[Hashable]) -> dict[Flow, None]:
        """Return the flows joined to a link through shared links, in the order of discovery, so that runs repeat."""
        flows: dict[Flow, None] = {}
        frontier = [link]
        seen.add(link)
        while frontier:
            for flow in self._running[frontier.pop()]:
                if flow not in flows:
                    flows[flow] = None
                    fresh = [other for other, _ in flow.links if other not in seen]
                    seen.update(fresh)
                    frontier += fresh
        return flows

    def _refill(self, flows: dict[Flow, None]) -> None:
        now = self._env.now
        for flow, rate in self._fair_rates(flows):
            # The old rate held from the last change until now.
            flow.remaining -= flow.rate * (now - flow.updated_s)
            flow.updated_s, flow.rate = now, rate
            flow.version += 1
            end_s = now + max(flow.remaining, 0.0) / rate
            # The end planned before stays in the heap; its version tells that it is void.
            heapq.heappush(self._ends, (end_s, next(self._order), flow.version, flow))

    def _fair_rates(self, flows: dict[Flow, None]) -> list[tuple[Flow, float]]:
        """Raise all rates equally until a link is full, fix the rates of its flows, and go on with the other flows."""
        if len(flows) == 1:
            only = next(iter(flows))
            return [(only, min(self._capacity[link] / share for link, share in only.links))]
        free = {link: self._capacity[link] for flow in flows for link, _ in flow.links}
        weight = {link: sum(self._running[link].values()) for link in free}
        waiting, rates = dict(flows), []
        while waiting:
            # Every flow still waiting can rise to this rate: the bottleneck is the link with the least capacity for
            # each unit of load on it.
            level = min(free[link] / weight[link] for link in free)
            full = [link for link in free if free[link] / weight[link] <= level * (1 + _ROUNDING)]
            fixed = {flow: None for link in full for flow in self._running[link] if flow in waiting}
            for flow in fixed:
                rates.append((flow, level))
                del waiting[flow]
                for link, share in flow.links:
                    free[link] -= level * share
                    weight[link] -= share
            # Links without a waiting flow would divide by a weight of zero.
            held = {link for flow in waiting for link, _ in flow.links}
            free = {link: max(free[link], 0.0) for link in free if link in held}
        return rates

    def _wake_at_next_end(self) -> None:
        while self._ends and self._ends[0][2] != self._ends[0][3].version:
            heapq.heappop(self._ends)
        if self._ends and self._ends[0][0] < self._wake_s:
            self._wake_s = self._ends[0][0]
            call_after_all(self._env, self._finish, max(self._wake_s - self._env.now, 0.0))

    def _finish(self, _event: simpy.Event) -> None:
        """End every flow whose time has come."""
        if self._env.now < self._wake_s * (1 - _ROUNDING):
            return  # planned before an earlier end came in between; that end has planned the next call
        self._wake_s = float("inf")
        latest = self._env.now * (1 + _ROUNDING)
        while self._ends and self._ends[0][0] <= latest:
            _, _, version, flow = heapq.heappop(self._ends)
            if version == flow.version:
                self._end(flow)
        self._wake_at_next_end()

    def _end(self, flow: Flow) -> None:
        flow.version = -1
        for link, _ in flow.links:
            del self._running[link][flow]
        self._touch(link for link, _ in flow.links)
        flow.done.succeed()
