"""Tell whether other guests of this machine slow it: time a fixed piece of work on every core at once."""

import subprocess
import sys
import time
from collections.abc import Callable

from simnet.lab import machine

MAX_SLOWDOWN = 1.15
"""Ratio to the fastest probe up to which the machine counts as quiet."""
PAUSE_S, MAX_WAIT_S = 5.0, 300.0
"""Between probes, and how long a launch waits for quiet at most."""
PROBE_CODE = """
import time
start = time.perf_counter()
total = 0
for number in range(1_500_000):
    total += number * number % 7
block = bytearray(48 << 20)
for _ in range(3):
    bytes(block)
print(time.perf_counter() - start)
"""


def probe_s() -> float:
    """Return what arithmetic and copies of memory take on the slowest core, all cores at it together [s]."""
    commands = [
        ["taskset", "--cpu-list", str(core), sys.executable, "-S", "-c", PROBE_CODE] for core in machine.usable_cores()
    ]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return max(float(process.communicate()[0]) for process in started)


class IdleProbe:
    """Knows how fast this machine has been.

    Args:
        report: told why a launch waits.
        max_wait_s: how long a launch waits at most; 0 does not probe at all.
        probe: returns the time of the work [s].
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        report: Callable[[str], object],
        max_wait_s: float = MAX_WAIT_S,
        probe: Callable[[], float] = probe_s,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.report = report
        self.slowdown = 1.0
        self._probe = probe
        self._sleep = sleep
        self._max_wait_s = max_wait_s
        self._fastest_s = min(probe() for _ in range(3)) if max_wait_s else 0.0

    def is_idle(self) -> bool:
        """Probe; the better of two counts, since one may meet a hiccup."""
        if not self._max_wait_s:
            return True
        time_s = min(self._probe(), self._probe())
        self._fastest_s = min(self._fastest_s, time_s)
        self.slowdown = time_s / self._fastest_s
        return self.slowdown <= MAX_SLOWDOWN

    def wait_until_idle(self) -> None:
        """Wait until the machine is quiet, but not for ever."""
        waited_s = 0.0
        while not self.is_idle() and waited_s < self._max_wait_s:
            if not waited_s:
                self.report(f"the machine is {self.slowdown:.2f} times slower than before: waiting")
            self._sleep(PAUSE_S)
            waited_s += PAUSE_S
