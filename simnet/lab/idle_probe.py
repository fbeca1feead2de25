"""Tell whether other guests of this machine slow it: time a fixed piece of work on every core at once."""

import subprocess
import sys
import time
from collections.abc import Callable

from simnet.lab import machine

MARGIN = 1.15
"""Ratio to the fastest probe up to which the machine counts as quiet."""
PAUSE_S, PATIENCE_S = 5.0, 300.0
"""Between probes, and how long a launch waits for quiet at most."""
WORK = """
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
    commands = [["taskset", "--cpu-list", str(core), sys.executable, "-S", "-c", WORK] for core in machine.cores()]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    return max(float(process.communicate()[0]) for process in started)


class Watch:
    """Knows how fast this machine has been.

    Args:
        tell: told why a launch waits.
        patience_s: how long a launch waits at most; 0 does not probe at all.
        probe: returns the time of the work [s].
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        tell: Callable[[str], object],
        patience_s: float = PATIENCE_S,
        probe: Callable[[], float] = probe_s,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.tell = tell
        self.slowdown = 1.0
        self._probe = probe
        self._sleep = sleep
        self._patience_s = patience_s
        self._fastest_s = min(probe() for _ in range(3)) if patience_s else 0.0

    def is_quiet(self) -> bool:
        """Probe; the better of two counts, since one may meet a hiccup."""
        if not self._patience_s:
            return True
        time_s = min(self._probe(), self._probe())
        self._fastest_s = min(self._fastest_s, time_s)
        self.slowdown = time_s / self._fastest_s
        return self.slowdown <= MARGIN

    def wait(self) -> None:
        """Wait until the machine is quiet, but not for ever."""
        waited_s = 0.0
        while not self.is_quiet() and waited_s < self._patience_s:
            if not waited_s:
                self.tell(f"the machine is {self.slowdown:.2f} times slower than before: waiting")
            self._sleep(PAUSE_S)
            waited_s += PAUSE_S
