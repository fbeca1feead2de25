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
from simnet.lab.campaign import MODULE, Campaign, Job
from simnet.lab.idle_probe import PATIENCE_S, Watch
from simnet.lab.lab import Lab
from simnet.lab.plan import LabSpec
from simnet.lab.ranks import Outcome
from simnet.units import Duration

TIMEOUT_S = 3600.0
RETRIES = 1
"""Launches that may fail, and how often a job is launched at most."""
ATTEMPTS = 3
KEEPING_MEMORY = ("MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=100000000000", "MALLOC_ARENA_MAX=1")
"""Of glibc: freed memory stays with the rank, also that of threads. Else every step gives its gradients back to the
kernel, and on a virtual machine the next one may have to wait for the host to hand them out again."""
Tell = Callable[[str], object]


def run(
    campaign: Campaign, jobs: Sequence[Job], folder: Path, tell: Tell, patience_s: float = PATIENCE_S
) -> list[Path]:
    """Launch what has no file yet; a launch that fails is tried once more.

    Args:
        campaign: what `jobs` are of.
        jobs: in their order.
        folder: of the files; it exists.
        tell: told a line for each launch.
        patience_s: how long a launch waits for a quiet machine; 0 does not look.

    Returns:
        The files of all jobs.

    Raises:
        SimnetError: this machine cannot hold a lab, or a launch failed twice.
    """
    missing = [job for job in jobs if not job.path(folder).exists()]
    watch = Watch(tell, patience_s)
    if len(missing) < len(jobs):
        tell(f"{len(jobs) - len(missing)} of {len(jobs)} launches are there already")
    for number, job in enumerate(missing, 1):
        start = time.monotonic()
        _tried(campaign, job, folder, watch)
        tell(f"[{number}/{len(missing)}] {job.about}: {Duration(round(time.monotonic() - start, 1)).text()}")
    return [job.path(folder) for job in jobs]


def _tried(campaign: Campaign, job: Job, folder: Path, watch: Watch) -> None:
    """Launch until it succeeds on a quiet machine; the last one counts however quiet it was."""
    place = job.path(folder)
    # What fails does so on a quiet machine, too: it counts apart from what is repeated because of noise.
    failures = 0
    for attempt in range(ATTEMPTS):
        watch.wait()
        outcome = _launched(campaign, job, folder)
        if outcome.exit_code:
            failures += 1
            if failures > RETRIES:
                outcome.check()
            watch.tell(f"{job.about}: {outcome.sentence()}; once more")
        elif watch.is_quiet() or attempt == ATTEMPTS - 1:
            return
        else:
            watch.tell(f"{job.about}: the machine has become {watch.slowdown:.2f} times slower; once more")
            place.unlink()
    outcome.check()


def _launched(campaign: Campaign, job: Job, folder: Path) -> Outcome:
    spec = LabSpec(
        num_nodes=job.layout.num_nodes,
        ranks_per_node=job.layout.ranks_per_node,
        bandwidth=job.bandwidth,
        threads_per_rank=campaign.threads,
    )
    # By env, since glibc reads these before a program's first line runs.
    command = ["env", *KEEPING_MEMORY, sys.executable, "-m", MODULE, *job.arguments, "-o", str(job.path(folder))]
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
