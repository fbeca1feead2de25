"""Run a campaign: one launch after the other, each into a file, so that a stopped campaign can go on.

Other guests of a machine slow it for minutes. A launch begins when a probe is nearly as fast as the fastest so far, and
is repeated if the probe after it is slow. The measured values themselves never decide whether a launch is repeated.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from evidence.lab import machine
from evidence.lab.campaign import MODULE, Launch
from evidence.lab.lab import Lab
from evidence.lab.plan import LabSpec
from evidence.lab.ranks import LaunchResult
from simnet.core.errors import SimnetError
from simnet.core.files import read_text, write_file
from simnet.core.units import Duration

TIMEOUT_S = 3600.0  # of a launch that hangs, not of one that is slow
MAX_FAILURES = 1
"""Tolerated failures of one launch; more are no accident."""
MAX_ATTEMPTS = 3
"""Most attempts for one measurement file, whether they failed or ran on a slow machine."""
KEEPING_MEMORY = ("MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=100000000000", "MALLOC_ARENA_MAX=1")
"""Settings of glibc that keep freed memory in the process. Else every step returns its gradients to the kernel, and on
a virtual machine the next step may have to wait for the host to provide the pages again."""
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
Report = Callable[[str], object]


def run(launches: Sequence[Launch], folder: Path, report: Report, max_wait_s: float = MAX_WAIT_S) -> list[Path]:
    """Make the launches that have no file yet; one that fails is tried once more.

    Args:
        launches: launches in order.
        folder: existing folder for the files.
        report: receives a line for each launch.
        max_wait_s: longest wait for an idle machine; 0 does not probe.

    Returns:
        The files of all launches.

    Raises:
        SimnetError: this machine cannot hold a lab, or a launch failed twice.
    """
    missing = [launch for launch in launches if not launch.path(folder).exists()]
    probe = IdleProbe(report, max_wait_s)
    if len(missing) < len(launches):
        report(f"{len(launches) - len(missing)} of {len(launches)} launches are already measured")
    for number, launch in enumerate(missing, 1):
        start = time.monotonic()
        _launch_until_idle(launch, folder, probe)
        report(f"[{number}/{len(missing)}] {launch.description}: {Duration(round(time.monotonic() - start, 1)).text()}")
    return [launch.path(folder) for launch in launches]


def _launch_until_idle(launch: Launch, folder: Path, probe: "IdleProbe") -> None:
    """Launch until it succeeds on an idle machine; the last attempt counts in any case."""
    path = launch.path(folder)
    # A failure has another cause than noise, so failures are counted apart from repetitions.
    failures = 0
    for attempt in range(MAX_ATTEMPTS):
        probe.wait_until_idle()
        outcome = _launched(launch, folder)
        if outcome.exit_code:
            failures += 1
            if failures > MAX_FAILURES:
                outcome.raise_if_failed()
            probe.report(f"{launch.description}: {outcome.failure()}; once more")
        elif probe.is_idle() or attempt == MAX_ATTEMPTS - 1:
            return
        else:
            probe.report(f"{launch.description}: the machine has become {probe.slowdown:.2f} times slower; once more")
            path.unlink()
    outcome.raise_if_failed()


def _launched(launch: Launch, folder: Path) -> LaunchResult:
    spec = LabSpec(
        num_nodes=launch.layout.num_nodes,
        ranks_per_node=launch.layout.ranks_per_node,
        bandwidth=launch.bandwidth,
        latency=launch.latency,
        threads_per_rank=launch.threads,
    )
    # Set by env, since glibc reads these before the first line of the program runs.
    command = ["env", *KEEPING_MEMORY, sys.executable, "-m", *MODULE, *launch.arguments, "-o", str(launch.path(folder))]
    with Lab(spec) as lab:
        return lab.launch(command, timeout_s=TIMEOUT_S)


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


def check_folder(folder: Path, text: str, name: str) -> None:
    """Create the folder of a campaign with a copy of the campaign file, or check that its copy is the same.

    Raises:
        SimnetError: the folder is a file, cannot be created, or holds another campaign.
    """
    copy = folder / name
    try:
        if copy.exists():
            if read_text(copy) != text:
                raise SimnetError(f"{folder}: holds another campaign ({name} differs); name another directory with -o")
            return
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SimnetError(f"{folder}: not empty, and without {name}; name another directory with -o")
        write_file(copy, text.encode(), inside=folder)
    except OSError as error:
        raise SimnetError(f"{folder}: cannot be used ({error.strerror}): name a directory with -o") from error
