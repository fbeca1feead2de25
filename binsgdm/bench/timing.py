"""Repeat trials until their medians are known well enough: trials are interleaved, and the slowest rank counts.

Calls on a GPU's stream are timed with its queue full, so that no launch by the host counts, and from a cold L2 cache.
A call that is launched to an idle GPU takes as long as the host takes to launch it, which is more than a small kernel
itself. So the GPU is first held by a kernel that only waits; meanwhile the host enqueues calls between events. Before
each call the L2 cache is emptied, as the rest of a training step does.
"""

import math
import random
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, Generic, TypeVar

import torch

from binsgdm.bench.ranks import Ranks

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], object]
Progress = Callable[[float], object]  # called with the part that is done, from 0 to 1
# Runs the measured code once and returns times of this rank [s]; the stop rule looks at the first.
Trial = Callable[[], Sequence[float]]

WARM_UP = 3
BLOCK = 5
BLOCK_S = 1.0
PAUSE_S = 0.02  # torch's threads spin for a while after their work, which costs the next trial up to 2 ms
SHARED_S = 0.02  # several time slices of the scheduler
SIGNIFICANCE = 0.05
MIN_FLUSH_BYTES, FLUSHED_CACHES = 2**26, 4


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When to stop.

    Attributes:
        relative_error: the 95 % interval of the median reaches no further from it, as a part of it.
        min_repetitions: at least; fewer than 6 have no such interval.
        max_repetitions: at most.
        max_seconds: of one trial in all, its pauses included, once it has `min_repetitions`.
    """

    relative_error: float = 0.03
    min_repetitions: int = 8
    max_repetitions: int = 100
    max_seconds: float = 5.0

    def is_met(self, values: Sequence[float], spent_s: float) -> bool:
        """Tell whether to stop after these samples."""
        if len(values) < self.min_repetitions:
            return False
        return self.part_done(values, spent_s) >= 1 or relative_error(values) <= self.relative_error

    def part_done(self, values: Sequence[float], spent_s: float) -> float:
        """Return how near the limits are, from 0 to 1."""
        used = max(len(values) / self.max_repetitions, spent_s / self.max_seconds)
        return min(1.0, used, len(values) / self.min_repetitions)


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, free of any distribution: two of the samples, chosen by their rank.

    Fewer than 6 samples have none: (0, inf).

    Example:
        >>> interval_of_median([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
        (1.0, 6.0)
        >>> interval_of_median([float(n) for n in range(1, 101)])
        (40.0, 61.0)
    """
    count = len(values)
    if count < 6:
        return 0.0, math.inf
    ordered, outside = sorted(values), _outside(count)
    return ordered[outside], ordered[count - 1 - outside]


@lru_cache
def _outside(count: int) -> int:
    """Return how many of `count` samples the interval may leave out at each end."""
    left_out, tail = 0, 0.0
    # A sample is above the median with probability 1/2, so the number of samples below it is binomial: no assumption on
    # the distribution of times, which have long tails.
    while (tail := tail + math.comb(count, left_out) / 2.0**count) <= SIGNIFICANCE / 2:
        left_out += 1
    return left_out - 1


def relative_error(values: Sequence[float]) -> float:
    """Return how far the 95 % interval of the median reaches from it, as a part of it; inf below 6 samples."""
    low, high = interval_of_median(values)
    middle = median(values)
    return max(high - middle, middle - low) / middle


def l2_flush(device: torch.device) -> Call:
    """Return a call that empties the L2 cache of a GPU; on a CPU it does nothing.

    It reads a buffer of several times the cache: a buffer that is written leaves lines in the cache that the next
    kernel has to write back.
    """
    if device.type != "cuda":
        return lambda: None
    cache_bytes = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
    buffer = torch.zeros(max(MIN_FLUSH_BYTES, FLUSHED_CACHES * cache_bytes) // 4, device=device)
    sink = torch.zeros((), device=device)
    return lambda: torch.sum(buffer, dim=0, out=sink)


class Stopwatch:
    """Takes times of what was given to a device: CUDA events on a GPU, the clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"

    def stamp(self) -> Any:
        """Mark this moment; on a GPU, the moment when its queue of work gets here."""
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        # The stream of this device: a new thread's current device is the first one, wherever its tensors are.
        event.record(torch.cuda.current_stream(self._device))
        return event

    def since(self, first: Any, stamps: Sequence[Any]) -> list[float]:
        """Return the seconds from `first` to each of `stamps`; waits for a GPU."""
        if not self._is_cuda:
            return [stamp - first for stamp in stamps]
        torch.cuda.synchronize(self._device)
        return [first.elapsed_time(stamp) / 1e3 for stamp in stamps]

    def phases(self, marks: Sequence[Any]) -> list[float]:
        """Return the seconds between each mark and the next; waits for a GPU."""
        return [self.since(start, [end])[0] for start, end in pairwise(marks)]


def trial_of(call: Call, device: torch.device, min_s: float = 0.0) -> Trial:
    """Return a trial of a call alone; on a GPU from an idle queue, so that it holds the time of its launches.

    On a CPU it is called again and again for `min_s`, and the mean is taken: ranks that share cores run in turns of a
    few ms, and a call that is shorter than that is alone on its core, as it is not in training.
    """
    watch = Stopwatch(device)

    def trial() -> Sequence[float]:
        start = watch.stamp()
        call()
        return watch.since(start, [watch.stamp()])

    def trials() -> Sequence[float]:
        start, count, spent_s = time.perf_counter(), 0, 0.0
        while spent_s < min_s:
            call()
            count, spent_s = count + 1, time.perf_counter() - start
        return [spent_s / count]

    return trials if min_s and device.type == "cpu" else trial


def pause_s(device: torch.device) -> float:
    """Return for how long to let torch's threads come to rest before a trial: 0 where there are none."""
    return PAUSE_S if device.type == "cpu" and torch.get_num_threads() > 1 else 0.0


def repeat_until_known(
    keys: Iterable[Key],
    take: Callable[[Sequence[Key]], Mapping[Key, tuple[Sequence[float], float]]],
    stop_rule: StopRule,
    progress: Progress = lambda _: None,
) -> None:
    """Take samples of several things in turns, of each until the rule is met.

    `take` adds samples of those that are not known well enough, and returns for each all of its times, and the time
    spent on it [s].
    """
    active = list(keys)
    while active:
        known = take(active)
        active = [key for key in active if not stop_rule.is_met(*known[key])]
        progress(min((stop_rule.part_done(*known[key]) for key in active), default=1.0))


def interleave(
    trials: Mapping[Key, Trial],
    stop_rule: StopRule,
    ranks: Ranks,
    *,
    pause_s: float = 0.0,
    progress: Progress = lambda _: None,
) -> dict[Key, list[list[float]]]:
    """Repeat trials in turns, in an order that is shuffled for every turn.

    Every rank must call it with the same trials, each of which has tensors of its own, and a pause before it. All
    ranks stop together, since they see the same times.

    Returns:
        For every key its repetitions, in the order of time, each with the times that its trial returns, those of the
        slowest rank [s].
    """
    samples: dict[Key, list[list[float]]] = {key: [] for key in trials}
    flush, order = l2_flush(ranks.device), random.Random(0)  # the same order on all ranks

    def time_once(key: Key) -> Sequence[float]:
        if pause_s:
            time.sleep(pause_s)
        flush()
        ranks.barrier()
        return trials[key]()

    def of_turns(keys: Sequence[Key], turns: int) -> dict[Key, list[list[float]]]:
        taken: list[tuple[Key, Sequence[float]]] = []
        for _ in range(turns):
            # Shuffled in every turn, so that no trial always runs after the same other one (caches, clock frequency).
            taken += [(key, time_once(key)) for key in order.sample(keys, len(keys))]
        # One all-reduce after all turns: a message between trials would be timed with the next one.
        flat = iter(ranks.slowest([value for _, values in taken for value in values]))
        by_key: dict[Key, list[list[float]]] = {key: [] for key in keys}
        for key, values in taken:
            by_key[key].append([next(flat) for _ in values])
        return by_key

    def take(keys: Sequence[Key]) -> dict[Key, tuple[list[float], float]]:
        round_s = sum(warm[key][0][0] for key in keys)
        for key, rows in of_turns(keys, min(BLOCK, max(1, int(BLOCK_S / round_s)))).items():
            samples[key] += rows
        decisive = {key: [row[0] for row in samples[key]] for key in keys}
        return {key: (values, sum(values) + pause_s * len(values)) for key, values in decisive.items()}

    # The first turns compile kernels and allocate memory; they are no samples. The last of them sets the size of a
    # block: one message for the times of several turns, and about BLOCK_S between two looks at the stop rule.
    warm = [of_turns(list(trials), 1) for _ in range(WARM_UP)][-1]
    repeat_until_known(trials, take, stop_rule, progress)
    return samples


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
    """The current stream of a GPU, whose clocks have risen from those of an idle one.

    Attributes:
        flush: enqueues what empties the L2 cache.
        stamp: enqueues an event, and returns it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.flush = l2_flush(device)
        self.stamp = Stopwatch(device).stamp
        self._held = self.stamp()
        end_s = time.perf_counter() + WARM_S
        while time.perf_counter() < end_s:
            for _ in range(WARM_FLUSHES):
                self.flush()
            self.wait()
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

    def _sleep(self, cycles: int) -> None:
        with torch.cuda.device(self._device):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def interleave_on_stream(
    queue: CudaQueue, calls: Mapping[Key, Call], stop_rule: StopRule, ranks: Ranks
) -> dict[Key, tuple[str, list[float]]]:
    """Repeat calls in turns, as `interleave` does, and time each on the stream.

    Every rank must call it with the same calls; the slowest rank counts.

    Returns:
        `KERNEL` and the times of each call [s]; or `LAUNCH` for a call that waits for the GPU itself, or that the host
        cannot launch in time.
    """
    timer = _StreamTimer(queue, ranks, calls)
    repeat_until_known(calls, timer.take, stop_rule)
    return {key: (timer.timings[key], timer.values[key]) for key in calls}


class _StreamTimer(Generic[Key]):
    """Times calls in groups, in an order that is shuffled for every turn."""

    def __init__(self, queue: CudaQueue, ranks: Ranks, calls: Mapping[Key, Call]) -> None:
        self._queue, self._ranks, self._calls = queue, ranks, calls
        self.values: dict[Key, list[float]] = {key: [] for key in calls}
        self._spent_s = dict.fromkeys(calls, 0.0)  # by repetitions and all that belongs to them
        self._hold_s = FIRST_HOLD_S
        self._order = random.Random(0)  # the same on all ranks
        for call in calls.values():  # compile kernels and allocate memory
            for _ in range(WARM_UP):
                call()
        queue.wait()
        # A call that waits returns only after the GPU has done what was enqueued before it.
        self.timings = {
            key: KERNEL
            if self._agreed(any(self._queued_times([key], PROBE_HOLD_S)[1] for _ in range(TRIES)))
            else LAUNCH
            for key in calls
        }

    def _agreed(self, is_so: bool) -> bool:
        """Tell whether it is so on all ranks."""
        return not any(self._ranks.slowest([float(not is_so)]))

    def take(self, keys: Sequence[Key]) -> dict[Key, tuple[list[float], float]]:
        """Add a repetition of these calls, and return what is known of them, as `repeat_until_known` asks for it."""
        start = time.perf_counter()
        order = self._order.sample(keys, len(keys))
        queued = [key for key in order if self.timings[key] == KERNEL]
        groups = [queued[first : first + GROUP] for first in range(0, len(queued), GROUP)]
        groups += [[key] for key in order if self.timings[key] == LAUNCH]
        for group in groups:
            self._ranks.barrier()
            for key, seconds in zip(group, self._ranks.slowest(self._times(group)), strict=True):
                self.values[key].append(seconds)
        # What it costs in time must be equal on all ranks, since they must stop together.
        (each_s,) = self._ranks.slowest([(time.perf_counter() - start) / len(keys)])
        for key in keys:
            self._spent_s[key] += each_s
        return {key: (self.values[key], self._spent_s[key]) for key in keys}

    def _times(self, group: Sequence[Key]) -> list[float]:
        """Return the time of each call of a group; of one that the queue cannot hold, with its launches."""
        tries = 0
        while self.timings[group[0]] == KERNEL:
            times, was_held = self._queued_times(group, self._hold_s)
            if self._agreed(was_held):
                return times
            tries += self._hold_s >= LONGEST_HOLD_S
            self._hold_s = min(2 * self._hold_s, LONGEST_HOLD_S)
            if tries == TRIES:
                self._hold_s = FIRST_HOLD_S
                for key in group:
                    self.timings[key], self.values[key], self._spent_s[key] = LAUNCH, [], 0.0
        return [self._queued_times([key], 0.0)[0][0] for key in group]

    def _queued_times(self, group: Sequence[Key], hold_s: float) -> tuple[list[float], bool]:
        """Return the time of each call, and whether the host was done before the GPU began; no hold: idle."""
        queue, stamps = self._queue, []
        queue.wait()
        if hold_s:
            queue.hold(hold_s)
        for key in group:
            queue.flush()
            if not hold_s:
                queue.wait()
            first = queue.stamp()
            self._calls[key]()
            stamps.append((first, queue.stamp()))
        was_held = queue.is_held()
        queue.wait()
        return [queue.seconds(*both) for both in stamps], was_held
