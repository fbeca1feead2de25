"""Run a campaign: one launch after the other, each into a file, so that a campaign that was stopped goes on.

Other guests of a machine slow it for minutes. A launch begins when a probe takes no longer than the fastest so far, by
a margin; it is repeated if the probe after it says that the machine has become slow. What is measured does not enter.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from simnet.errors import SimnetError
from simnet.files import read_text, write_file
from simnet.lab.campaign import MODULE, Campaign, Launch
from simnet.lab.idle_probe import MAX_WAIT_S, IdleProbe
from simnet.lab.lab import Lab
from simnet.lab.plan import LabSpec
from simnet.lab.ranks import LaunchResult
from simnet.units import Duration

TIMEOUT_S = 3600.0
RETRIES = 1
"""Launches that may fail, and how often a launch is started at most."""
ATTEMPTS = 3
KEEPING_MEMORY = ("MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=100000000000", "MALLOC_ARENA_MAX=1")
"""Of glibc: freed memory stays with the rank, also that of threads. Else every step gives its gradients back to the
kernel, and on a virtual machine the next one may have to wait for the host to hand them out again."""
Report = Callable[[str], object]


def run(
    campaign: Campaign, launches: Sequence[Launch], folder: Path, report: Report, max_wait_s: float = MAX_WAIT_S
) -> list[Path]:
    """Launch what has no file yet; a launch that fails is tried once more.

    Args:
        campaign: what `launches` are of.
        launches: in their order.
        folder: of the files; it exists.
        report: told a line for each launch.
        max_wait_s: how long a launch waits for a quiet machine; 0 does not look.

    Returns:
        The files of all launches.

    Raises:
        SimnetError: this machine cannot hold a lab, or a launch failed twice.
    """
    missing = [launch for launch in launches if not launch.path(folder).exists()]
    probe = IdleProbe(report, max_wait_s)
    if len(missing) < len(launches):
        report(f"{len(launches) - len(missing)} of {len(launches)} launches are there already")
    for number, launch in enumerate(missing, 1):
        start = time.monotonic()
        _tried(campaign, launch, folder, probe)
        report(f"[{number}/{len(missing)}] {launch.description}: {Duration(round(time.monotonic() - start, 1)).text()}")
    return [launch.path(folder) for launch in launches]


def _tried(campaign: Campaign, launch: Launch, folder: Path, probe: IdleProbe) -> None:
    """Launch until it succeeds on a quiet machine; the last one counts however quiet it was."""
    place = launch.path(folder)
    # What fails does so on a quiet machine, too: it counts apart from what is repeated because of noise.
    failures = 0
    for attempt in range(ATTEMPTS):
        probe.wait_until_idle()
        outcome = _launched(campaign, launch, folder)
        if outcome.exit_code:
            failures += 1
            if failures > RETRIES:
                outcome.raise_if_failed()
            probe.report(f"{launch.description}: {outcome.failure()}; once more")
        elif probe.is_idle() or attempt == ATTEMPTS - 1:
            return
        else:
            probe.report(f"{launch.description}: the machine has become {probe.slowdown:.2f} times slower; once more")
            place.unlink()
    outcome.raise_if_failed()


def _launched(campaign: Campaign, launch: Launch, folder: Path) -> LaunchResult:
    spec = LabSpec(
        num_nodes=launch.layout.num_nodes,
        ranks_per_node=launch.layout.ranks_per_node,
        bandwidth=launch.bandwidth,
        threads_per_rank=campaign.threads,
    )
    # By env, since glibc reads these before a program's first line runs.
    command = ["env", *KEEPING_MEMORY, sys.executable, "-m", MODULE, *launch.arguments, "-o", str(launch.path(folder))]
    with Lab(spec) as lab:
        return lab.launch(command, timeout_s=TIMEOUT_S)


def check_folder(folder: Path, text: str, name: str) -> None:
    """Make the folder of a campaign, with the campaign's file in it; one that is there must be of the same campaign.

    Raises:
        SimnetError: it is a file, cannot be made, or is of another campaign.
    """
    copy = folder / name
    try:
        if copy.exists():
            if read_text(copy) != text:
                raise SimnetError(f"{folder}: holds another campaign ({name} differs); name a new directory with -o")
            return
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SimnetError(f"{folder}: is not empty and holds no {name}; name a new directory with -o")
        write_file(copy, text.encode(), inside=folder)
    except OSError as error:
        raise SimnetError(f"{folder}: cannot be used ({error.strerror}): name a directory with -o") from error
