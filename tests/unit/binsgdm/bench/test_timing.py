"""How long something is repeated, and how sure its median is; times on a GPU's stream, by a device that only counts."""

from collections.abc import Callable

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.timing import (
    KERNEL,
    LAUNCH,
    LONGEST_HOLD_S,
    StopRule,
    interleave,
    interleave_on_stream,
    interval_of_median,
    relative_error,
)


@pytest.mark.parametrize(
    ("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (25, 8, 18), (100, 40, 61)]
)
def test_the_interval_of_the_median_is_that_of_the_tables_of_order_statistics(count, low, high):
    assert interval_of_median([float(n) for n in range(1, count + 1)]) == (low, high)
    # Few samples have none.
    assert relative_error([1.0] * 5) == float("inf")
    assert relative_error([1.0] * 6) == 0


def test_a_steady_thing_stops_at_the_least_repetitions_and_an_unsteady_one_at_the_most():
    taken: list[str] = []

    class Alone:
        device = torch.device("cpu")

        def barrier(self) -> None:
            pass

        def slowest(self, seconds):
            return list(seconds)

    def trial(name, times):
        def once():
            taken.append(name)
            return [times[len(taken) % len(times)], 7.0]

        return once

    trials = {"steady": trial("steady", [1e-6]), "unsteady": trial("unsteady", [1e-6, 5e-6, 25e-6])}
    stop_rule = StopRule(relative_error=0.01, min_repetitions=8, max_repetitions=30, max_seconds=1.0)
    seen: list[float] = []
    samples = interleave(trials, stop_rule, Alone(), progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert 8 <= len(samples["steady"]) < 14
    assert len(samples["unsteady"]) == 30
    assert all(row[1] == 7.0 for rows in samples.values() for row in rows)
    assert taken[:20] != sorted(taken[:20])


LAUNCH_S, FLUSH_S, STAMP_S = 20e-6, 60e-6, 1e-6
RULE = StopRule(min_repetitions=6, max_repetitions=8)


class Ranks:
    device = torch.device("cpu")

    def barrier(self) -> None:
        pass

    def slowest(self, seconds):
        return list(seconds)


class Device:
    """A queue on a clock of its own: work begins when it was enqueued and all before it has ended."""

    def __init__(self) -> None:
        self.host_s = self.free_s = self.held_until_s = 0.0
        self.is_cold = True
        self.holds: list[float] = []

    def enqueue(self, work_s: float, host_s: float) -> None:
        self.host_s += host_s
        self.free_s = max(self.free_s, self.host_s) + work_s

    def hold(self, seconds: float) -> None:
        self.holds.append(seconds)
        self.enqueue(seconds, LAUNCH_S)
        self.held_until_s = self.free_s

    def is_held(self) -> bool:
        return self.host_s < self.held_until_s

    def flush(self) -> None:
        self.is_cold = True
        self.enqueue(FLUSH_S, LAUNCH_S)

    def stamp(self) -> float:
        self.enqueue(0.0, STAMP_S)
        return self.free_s

    def seconds(self, first: float, last: float) -> float:
        return last - first

    def wait(self) -> None:
        self.host_s = max(self.host_s, self.free_s)

    def kernel(self, seconds: float, *, launch_s: float = LAUNCH_S, waits: bool = False) -> Callable[[], None]:
        """Return a call: twice as fast where its data still lies in the cache."""

        def call() -> None:
            self.enqueue(seconds if self.is_cold else seconds / 2, launch_s)
            self.is_cold = False
            if waits:
                self.wait()

        return call


def test_a_small_kernel_takes_what_the_gpu_takes_from_a_cold_cache():
    device = Device()
    calls = {name: device.kernel(seconds) for name, seconds in (("small", 2e-6), ("large", 1e-3))}
    timed = interleave_on_stream(device, calls, RULE, Ranks())
    assert {name: timing for name, (timing, _) in timed.items()} == {"small": KERNEL, "large": KERNEL}
    assert timed["small"][1] == pytest.approx([2e-6] * len(timed["small"][1]), rel=1e-6)
    assert timed["large"][1] == pytest.approx([1e-3] * len(timed["large"][1]), rel=1e-6)
    assert len(timed["small"][1]) >= RULE.min_repetitions


def test_the_queue_is_held_as_long_as_the_host_takes_to_launch():
    device = Device()
    timed = interleave_on_stream(device, {"slow to launch": device.kernel(2e-6, launch_s=3e-3)}, RULE, Ranks())
    assert timed["slow to launch"][0] == KERNEL
    assert timed["slow to launch"][1] == pytest.approx([2e-6] * 6, rel=1e-3)
    assert 3e-3 < max(device.holds[3:]) < 10e-3


def test_a_call_that_waits_for_the_gpu_or_is_launched_too_slowly_is_timed_with_its_launches():
    device = Device()
    calls = {
        "waits": device.kernel(2e-6, waits=True),
        "slow": device.kernel(2e-6, launch_s=2 * LONGEST_HOLD_S),
        "other": device.kernel(2e-6),
    }
    timed = interleave_on_stream(device, calls, RULE, Ranks())
    assert {name: timing for name, (timing, _) in timed.items()} == {"waits": LAUNCH, "slow": LAUNCH, "other": KERNEL}
    assert min(timed["waits"][1]) > LAUNCH_S
    assert min(timed["slow"][1]) > 2 * LONGEST_HOLD_S
    assert timed["other"][1] == pytest.approx([2e-6] * len(timed["other"][1]), rel=1e-3)
