"""Run a campaign: one launch after the other, each into a file, so that a stopped campaign can go on.

Other guests of a machine slow it for minutes. A launch begins when a probe is nearly as fast as the fastest so far, and
is repeated if the probe after it is slow. The measured values themselves never decide whether a launch is repeated.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from simnet.core.errors import SimnetError
from simnet.core.files import read_text, write_file
from simnet.core.units import Duration
from simnet.validation.lab.campaign import MODULE, Campaign, Launch
from simnet.validation.lab.idle_probe import MAX_WAIT_S, IdleProbe
from simnet.validation.lab.lab import Lab
from simnet.validation.lab.plan import LabSpec
from simnet.validation.lab.ranks import LaunchResult

TIMEOUT_S = 3600.0
MAX_FAILURES = 1
"""Tolerated failures of one launch; more are no accident."""
MAX_ATTEMPTS = 3
"""Most attempts for one measurement file, whether they failed or ran on a slow machine."""
KEEPING_MEMORY = ("MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=100000000000", "MALLOC_ARENA_MAX=1")
"""Settings of glibc that keep freed memory in the process. Else every step returns its gradients to the kernel, and on
a virtual machine the next step may have to wait for the host to provide the pages again."""
Report = Callable[[str], object]


def run(
    campaign: Campaign, launches: Sequence[Launch], folder: Path, report: Report, max_wait_s: float = MAX_WAIT_S
) -> list[Path]:
    """Make the launches that have no file yet; one that fails is tried once more.

    Args:
        campaign: the campaign of the launches.
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
        _launch_until_idle(campaign, launch, folder, probe)
        report(f"[{number}/{len(missing)}] {launch.description}: {Duration(round(time.monotonic() - start, 1)).text()}")
    return [launch.path(folder) for launch in launches]


def _launch_until_idle(campaign: Campaign, launch: Launch, folder: Path, probe: IdleProbe) -> None:
    """Launch until it succeeds on an idle machine; the last attempt counts in any case."""
    path = launch.path(folder)
    # A failure has another cause than noise, so failures are counted apart from repetitions.
    failures = 0
    for attempt in range(MAX_ATTEMPTS):
        probe.wait_until_idle()
        outcome = _launched(campaign, launch, folder)
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


def _launched(campaign: Campaign, launch: Launch, folder: Path) -> LaunchResult:
    spec = LabSpec(
        num_nodes=launch.layout.num_nodes,
        ranks_per_node=launch.layout.ranks_per_node,
        bandwidth=launch.bandwidth,
        threads_per_rank=campaign.threads,
    )
    # Set by env, since glibc reads these before the first line of the program runs.
    command = ["env", *KEEPING_MEMORY, sys.executable, "-m", *MODULE, *launch.arguments, "-o", str(launch.path(folder))]
    with Lab(spec) as lab:
        return lab.launch(command, timeout_s=TIMEOUT_S)


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
