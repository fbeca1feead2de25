"""Links shared fluidly: every running activity gets a max-min fair rate, recomputed when one starts or ends.

Fairness is in bytes on each activity's most loaded link (progressive filling; Bertsekas and Gallager, "Data Networks",
section 6.5.2). Only the activities that share a link, directly or through others, with one that changed are recomputed.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import count

import simpy
from simpy.events import EventPriority

_AFTER_ALL = EventPriority(2)
"""After all other events of one instant: SimPy's own are 0 (urgent) and 1 (normal)."""
_SAME_TIME = 1e-12


class Flow:
    """Bytes on their way: `remaining` on the most loaded link, and how much of that each link carries."""

    __slots__ = ("done", "links", "rate", "remaining", "updated_s", "version")

    def __init__(self, done: simpy.Event, loads: Mapping[Hashable, float], now_s: float) -> None:
        self.done = done
        self.remaining = max(loads.values())
        self.links = tuple((link, load / self.remaining) for link, load in loads.items() if load > 0)
        self.rate = 0.0
        self.updated_s = now_s
        self.version = 0


class Network:
    """Links by name, each with a capacity in bytes per second, and the activities that load them."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._capacity: dict[Hashable, float] = {}
        self._running: dict[Hashable, dict[Flow, float]] = {}
        self._ends: list[tuple[float, int, int, Flow]] = []
        self._touched: set[Hashable] = set()
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
        """Start an activity that puts so many bytes on each link.

        Returns:
            The event that it is done. Bytes on different links flow at rates in the ratio of the loads.
        """
        done = self._env.event()
        if max(loads.values()) <= 0:
            return done.succeed()
        activity = Flow(done, loads, self._env.now)
        for link, coefficient in activity.links:
            self._running[link][activity] = coefficient
            self.bytes_sent[link] += loads[link]
        self._touch(loads)
        return done

    def _touch(self, links: Iterable[Hashable]) -> None:
        """Have the rates around these links recomputed after all that happens at this instant."""
        self._touched.update(links)
        if not self._settling:
            self._settling = True
            self._call(self._settle, 0.0)

    def _call(self, function: Callable[[simpy.Event], None], delay_s: float) -> None:
        event = simpy.Event(self._env)
        event._ok, event._value = True, None
        event.callbacks.append(function)
        self._env.schedule(event, priority=_AFTER_ALL, delay=delay_s)

    def _settle(self, _event: simpy.Event) -> None:
        self._settling = False
        touched, self._touched = self._touched, set()
        seen: set[Hashable] = set()
        for link in touched:
            if link not in seen and self._running[link]:
                self._refill(self._component(link, seen))
        self._wake_at_next_end()

    def _component(self, link: Hashable, seen: set[Hashable]) -> dict[Flow, None]:
        """Return the activities joined to a link through shared links, in the order in which they are met."""
        found: dict[Flow, None] = {}
        frontier = [link]
        seen.add(link)
        while frontier:
            for activity in self._running[frontier.pop()]:
                if activity not in found:
                    found[activity] = None
                    fresh = [other for other, _ in activity.links if other not in seen]
                    seen.update(fresh)
                    frontier += fresh
        return found

    def _refill(self, activities: dict[Flow, None]) -> None:
        now = self._env.now
        for activity, rate in self._fair_rates(activities):
            activity.remaining -= activity.rate * (now - activity.updated_s)
            activity.updated_s, activity.rate = now, rate
            activity.version += 1
            end_s = now + max(activity.remaining, 0.0) / rate
            heapq.heappush(self._ends, (end_s, next(self._order), activity.version, activity))

    def _fair_rates(self, activities: dict[Flow, None]) -> list[tuple[Flow, float]]:
        """Fill all rates alike until a link is full, fix those on it, go on with the rest."""
        if len(activities) == 1:
            only = next(iter(activities))
            return [(only, min(self._capacity[link] / share for link, share in only.links))]
        free = {link: self._capacity[link] for activity in activities for link, _ in activity.links}
        weight = {link: sum(self._running[link].values()) for link in free}
        waiting, rates = dict(activities), []
        while waiting:
            level = min(free[link] / weight[link] for link in free)
            full = [link for link in free if free[link] / weight[link] <= level * (1 + _SAME_TIME)]
            fixed = {a: None for link in full for a in self._running[link] if a in waiting}
            for activity in fixed:
                rates.append((activity, level))
                del waiting[activity]
                for link, share in activity.links:
                    free[link] -= level * share
                    weight[link] -= share
            held = {link for activity in waiting for link, _ in activity.links}
            free = {link: max(free[link], 0.0) for link in free if link in held}
        return rates

    def _wake_at_next_end(self) -> None:
        while self._ends and self._ends[0][2] != self._ends[0][3].version:
            heapq.heappop(self._ends)
        if self._ends and self._ends[0][0] < self._wake_s:
            self._wake_s = self._ends[0][0]
            self._call(self._finish, max(self._wake_s - self._env.now, 0.0))

    def _finish(self, _event: simpy.Event) -> None:
        """End every activity whose time has come."""
        if self._env.now < self._wake_s * (1 - _SAME_TIME):
            return
        self._wake_s = float("inf")
        latest = self._env.now * (1 + _SAME_TIME)
        while self._ends and self._ends[0][0] <= latest:
            _, _, version, activity = heapq.heappop(self._ends)
            if version == activity.version:
                self._end(activity)
        self._wake_at_next_end()

    def _end(self, activity: Flow) -> None:
        activity.version = -1
        for link, _ in activity.links:
            del self._running[link][activity]
        self._touch(link for link, _ in activity.links)
        activity.done.succeed()
