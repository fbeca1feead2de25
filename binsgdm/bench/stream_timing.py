"""Time calls on a GPU's stream: with its queue full, so that no launch by the host counts, and from a cold L2 cache.

A call that is launched to an idle GPU takes as long as the host takes to launch it, which is more than a small kernel
itself. So the GPU is first held by a kernel that only waits; meanwhile the host enqueues calls between events. Before
each call the L2 cache is emptied, as the rest of a training step does.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import torch

from binsgdm.bench.ranks import Ranks
from binsgdm.bench.timing import WARM_UP, Call, Key, Progress, StopRule, Stopwatch, l2_flush, repeat_until_known

KERNEL, LAUNCH = "kernel", "launch"
"""Labels: times of the GPU alone, or from an idle queue, with the host's launches."""
FIRST_HOLD_S, LONGEST_HOLD_S = 1e-3, 32e-3
TRIES = 3  # of the longest hold: the host may have been at something else for once
PROBE_HOLD_S = 8e-3
# A queue holds about 1,000 launches, and the host waits where it is full: a call may have a hundred of them.
GROUP = 8
SLEEP_CYCLES = 2**22
WARM_S, WARM_FLUSHES = 0.2, 20


class CudaQueue:
    """The current stream of a GPU.

    Attributes:
        flush: enqueues what empties the L2 cache.
        stamp: enqueues an event, and returns it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.flush = l2_flush(device)
        self.stamp = Stopwatch(device).stamp
        self._held = self.stamp()
        self._warm_up()
        start = self.stamp()
        self._sleep(SLEEP_CYCLES)
        end = self.stamp()
        self.wait()
        self._cycles_per_s = SLEEP_CYCLES / self.seconds(start, end)

    def hold(self, seconds: float) -> None:
        """Enqueue a wait."""
        self._sleep(int(seconds * self._cycles_per_s))
        self._held = self.stamp()

    def is_held(self) -> bool:
        """Tell whether the last wait has not ended."""
        return not self._held.query()

    def seconds(self, first: Any, last: Any) -> float:
        """Return the time between two events."""
        return float(first.elapsed_time(last)) / 1e3

    def wait(self) -> None:
        """Wait until the GPU has no more to do."""
        torch.cuda.synchronize(self._device)

    def _warm_up(self) -> None:
        """Keep the GPU busy until its clocks have risen from those of an idle one."""
        end_s = time.perf_counter() + WARM_S
        while time.perf_counter() < end_s:
            for _ in range(WARM_FLUSHES):
                self.flush()
            self.wait()

    def _sleep(self, cycles: int) -> None:
        with torch.cuda.device(self._device):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


@dataclass
class StreamTimes:
    """The times of a call.

    Attributes:
        timing: `KERNEL`, or `LAUNCH` for a call that waits for the GPU itself, or that the host cannot launch in time.
        values: one a repetition [s].
        spent_s: time of the repetitions and all that belongs to them.
    """

    timing: str = KERNEL
    values: list[float] = field(default_factory=list)
    spent_s: float = 0.0


class StreamTimer(Generic[Key]):
    """Times calls in groups, in an order that is shuffled for every turn."""

    def __init__(self, queue: CudaQueue, ranks: Ranks, calls: Mapping[Key, Call]) -> None:
        self.found: dict[Key, StreamTimes] = {key: StreamTimes() for key in calls}
        self._queue, self._ranks, self._calls = queue, ranks, calls
        self._hold_s = FIRST_HOLD_S
        self._order = random.Random(0)  # the same on all ranks
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile kernels and allocate memory, and find the calls that wait for the GPU."""
        for call in self._calls.values():
            for _ in range(WARM_UP):
                call()
        self._queue.wait()
        for key, call in self._calls.items():
            if not self._agreed(not all(self._waits(call) for _ in range(TRIES))):
                self.found[key].timing = LAUNCH

    def take(self, keys: Sequence[Key]) -> dict[Key, tuple[list[float], float]]:
        """Add a repetition of these calls, and return what is known of them, as `repeat_until_known` asks for it."""
        start = time.perf_counter()
        order = self._order.sample(keys, len(keys))
        queued = [key for key in order if self.found[key].timing == KERNEL]
        groups = [queued[first : first + GROUP] for first in range(0, len(queued), GROUP)]
        groups += [[key] for key in order if self.found[key].timing == LAUNCH]
        for group in groups:
            self._ranks.barrier()
            times = self._ranks.slowest(self._times(group))
            for key, seconds in zip(group, times, strict=True):
                self.found[key].values.append(seconds)
        each_s = (time.perf_counter() - start) / len(keys)
        # What it costs in time must be equal on all ranks, since they must stop together.
        (each_s,) = self._ranks.slowest([each_s])
        for key in keys:
            self.found[key].spent_s += each_s
        return {key: (self.found[key].values, self.found[key].spent_s) for key in keys}

    def _times(self, group: Sequence[Key]) -> list[float]:
        """Return the time of each call of a group; of one that the queue cannot hold, with its launches."""
        tries = 0
        while self.found[group[0]].timing == KERNEL:
            times, was_held = self._held_times(group)
            if self._agreed(was_held):
                return times
            tries += self._hold_s >= LONGEST_HOLD_S
            self._hold_s = min(2 * self._hold_s, LONGEST_HOLD_S)
            if tries == TRIES:
                self._hold_s = FIRST_HOLD_S
                for key in group:
                    self.found[key] = StreamTimes(timing=LAUNCH)
        return [self._idle_time(self._calls[key]) for key in group]

    def _agreed(self, is_so: bool) -> bool:
        """Tell whether it is so on all ranks."""
        return not any(self._ranks.slowest([float(not is_so)]))

    def _held_times(self, group: Sequence[Key]) -> tuple[list[float], bool]:
        """Return the time of each call, and whether the host was done before the GPU began."""
        queue, stamps = self._queue, []
        queue.wait()
        queue.hold(self._hold_s)
        for key in group:
            queue.flush()
            first = queue.stamp()
            self._calls[key]()
            stamps.append((first, queue.stamp()))
        was_held = queue.is_held()
        queue.wait()
        return [queue.seconds(*both) for both in stamps], was_held

    def _idle_time(self, call: Call) -> float:
        """Return the time of a call from an idle queue."""
        queue = self._queue
        queue.flush()
        queue.wait()
        first = queue.stamp()
        call()
        last = queue.stamp()
        queue.wait()
        return queue.seconds(first, last)

    def _waits(self, call: Call) -> bool:
        """Tell whether a call returns only after the GPU has done what was enqueued before it."""
        self._queue.hold(PROBE_HOLD_S)
        call()
        is_done = not self._queue.is_held()
        self._queue.wait()
        return is_done


def interleave_on_stream(
    queue: CudaQueue,
    calls: Mapping[Key, Call],
    stop_rule: StopRule,
    ranks: Ranks,
    *,
    progress: Progress = lambda _: None,
) -> dict[Key, StreamTimes]:
    """Repeat calls in turns, as `timing.interleave` does, and time each on the stream.

    Every rank must call it with the same calls; the slowest rank counts.
    """
    timer = StreamTimer(queue, ranks, calls)
    repeat_until_known(calls, timer.take, stop_rule, progress)
    return timer.found
