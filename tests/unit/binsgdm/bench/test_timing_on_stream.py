"""Times on a GPU's stream, on a device that only counts: what the host takes to launch is in no time of a kernel."""

from collections.abc import Callable

import pytest

from tests.helpers.needs import needs

needs("torch")

import torch

from binsgdm.bench.timing import KERNEL, LAUNCH, LONGEST_HOLD_S, StopRule, interleave_on_stream

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
    found = interleave_on_stream(device, calls, RULE, Ranks())
    assert {name: timing for name, (timing, _) in found.items()} == {"small": KERNEL, "large": KERNEL}
    assert found["small"][1] == pytest.approx([2e-6] * len(found["small"][1]), rel=1e-6)
    assert found["large"][1] == pytest.approx([1e-3] * len(found["large"][1]), rel=1e-6)
    assert len(found["small"][1]) >= RULE.min_repetitions


def test_the_queue_is_held_as_long_as_the_host_takes_to_launch():
    device = Device()
    found = interleave_on_stream(device, {"slow to launch": device.kernel(2e-6, launch_s=3e-3)}, RULE, Ranks())
    assert found["slow to launch"][0] == KERNEL
    assert found["slow to launch"][1] == pytest.approx([2e-6] * 6, rel=1e-3)
    assert 3e-3 < max(device.holds[3:]) < 10e-3


def test_a_call_that_waits_for_the_gpu_or_is_launched_too_slowly_is_timed_with_its_launches():
    device = Device()
    calls = {
        "waits": device.kernel(2e-6, waits=True),
        "slow": device.kernel(2e-6, launch_s=2 * LONGEST_HOLD_S),
        "other": device.kernel(2e-6),
    }
    found = interleave_on_stream(device, calls, RULE, Ranks())
    assert {name: timing for name, (timing, _) in found.items()} == {"waits": LAUNCH, "slow": LAUNCH, "other": KERNEL}
    assert min(found["waits"][1]) > LAUNCH_S
    assert min(found["slow"][1]) > 2 * LONGEST_HOLD_S
    assert found["other"][1] == pytest.approx([2e-6] * len(found["other"][1]), rel=1e-3)


def test_no_call_is_repeated_after_it_is_known():
    device = Device()
    found = interleave_on_stream(device, {"a": device.kernel(1e-5)}, RULE, Ranks())
    assert len(found["a"][1]) == RULE.min_repetitions
