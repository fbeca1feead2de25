"""Where a lab can be, and one test with a lab at a time."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest


@cache
def why_not() -> str:
    """Return why this machine cannot hold a lab, found without the code under test."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    if not all(map(shutil.which, ("ip", "tc", "setpriv"))):
        return "needs iproute2 and util-linux"
    name = f"simnet-probe-{os.getpid()}"
    made = f"ip netns add {name} && ip -n {name} link add bridge type bridge"
    wired = f"ip -n {name} link add left type veth peer name right"
    shaper = f"tc -n {name} qdisc add dev left root tbf rate 1mbit burst 131072 latency 20ms"
    done = subprocess.run(["sh", "-c", f"{made} && {wired} && {shaper}"], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return f"namespaces or shaping are not allowed here: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture(autouse=True, scope="module")
def one_at_a_time() -> Iterator[None]:
    """Skip where there can be no lab; keep tests apart: a lab that starts removes what another test has killed."""
    if why_not():
        pytest.skip(why_not())
    with (Path(tempfile.gettempdir()) / "simnet-lab-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
