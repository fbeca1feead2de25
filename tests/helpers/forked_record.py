"""`simnet record` as a script, whose own processes are forked from it: torch is there already.

The most memory of any of them, which is at least that of a process with torch, stands in the file `peak_kib`.
"""

import os
import resource
import runpy
import signal
import subprocess
import sys
from pathlib import Path

from torch.multiprocessing.spawn import _prctl_pr_set_pdeathsig

from simnet.cli.main import main
from tests.helpers.launch import exit_code


def forked(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    """Do what a Python would do with this command, its output among the errors."""
    assert command[1:3] == ["-m", "binsgdm.recording.isolated_process"]
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _prctl_pr_set_pdeathsig(signal.SIGKILL)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        code = exit_code(lambda: runpy.run_module(command[2], run_name="__main__"), command[2:])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    subprocess.run = forked  # type: ignore[assignment]
    sys.argv.insert(1, "record")
    peak = Path("peak_kib").resolve()
    try:
        main()
    finally:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        peak.write_text(str(max(usage.ru_maxrss for usage in usages)), encoding="ascii")
