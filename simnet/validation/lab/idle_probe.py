"""Notice when other guests of this machine slow it: time a fixed piece of work on every core at once."""

import subprocess
import sys
import time
from collections.abc import Callable

from simnet.validation.lab import machine

MAX_SLOWDOWN = 1.15
"""Largest ratio to the fastest probe at which the machine counts as idle."""
PAUSE_S, MAX_WAIT_S = 5.0, 300.0
"""Pause between probes, and the longest wait for an idle machine."""
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
    """Return the time of arithmetic and memory copies on the slowest core, with all cores at work [s]."""
    # One pinned process per core: a guest that takes any core shows, and so does one that takes memory bandwidth.
    commands = [
        ["taskset", "--cpu-list", str(core), sys.executable, "-S", "-c", PROBE_CODE] for core in machine.usable_cores()
    ]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return max(float(process.communicate()[0]) for process in started)


class IdleProbe:
    """Compares this machine with its fastest probe so far.

    Args:
        report: receives the reason of a wait.
        max_wait_s: longest wait; 0 does not probe at all.
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
        """Probe twice and return whether the faster probe is fast enough, since one probe may meet a hiccup."""
        if not self._max_wait_s:
            return True
        time_s = min(self._probe(), self._probe())
        self._fastest_s = min(self._fastest_s, time_s)
        self.slowdown = time_s / self._fastest_s
        return self.slowdown <= MAX_SLOWDOWN

    def wait_until_idle(self) -> None:
        """Wait until the machine is idle, at most for the longest wait."""
        waited_s = 0.0
        while not self.is_idle() and waited_s < self._max_wait_s:
            if not waited_s:
                self.report(f"the machine is {self.slowdown:.2f} times slower than before: waiting")
            self._sleep(PAUSE_S)
            waited_s += PAUSE_S
