"""What a test needs beside the base environment: declared with `needs`, listed once at the end of a run."""

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
TORCH = "make torch"
EXTRAS = "make extras"


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something that a test may need.

    `found` says whether it is here, `remedy` how to get it.
    """

    found: Callable[[], bool]
    remedy: str


def _module(name: str, remedy: str) -> Need:
    return Need(found=lambda: importlib.util.find_spec(name) is not None, remedy=remedy)


def _program(*names: str, remedy: str) -> Need:
    return Need(found=lambda: all(map(shutil.which, names)), remedy=remedy)


def _can_hold_a_lab() -> bool:
    """Return whether namespaces can be made, wired and shaped here, found without the code under test."""
    if sys.platform != "linux" or os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "setpriv"))):
        return False
    name = f"simnet-probe-{os.getpid()}"
    made = f"ip netns add {name} && ip -n {name} link add bridge type bridge"
    wired = f"ip -n {name} link add left type veth peer name right"
    shaper = f"tc -n {name} qdisc add dev left root tbf rate 1mbit burst 131072 latency 20ms"
    done = subprocess.run(["sh", "-c", f"{made} && {wired} && {shaper}"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return done.returncode == 0


def _peak_memory_is_forgotten() -> bool:
    """Return whether this process may forget its peak of memory, and give free memory back."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return hasattr(ctypes.CDLL(None), "malloc_trim")


def _num_cards() -> int:
    """Return how many cards tests may use: none where CUDA_VISIBLE_DEVICES is empty."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return 0 if is_hidden else len(list(Path("/dev").glob("nvidia[0-9]*"))) or Path("/dev/kfd").exists()


def _is_a_git_checkout() -> bool:
    asked = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, check=False)
    return asked.returncode == 0


NEEDS = {
    "torch": _module("torch", TORCH),
    "numba": _module("numba", TORCH),
    "triton": _module("triton", TORCH),
    "sklearn": _module("sklearn", TORCH),
    "mlxtend": _module("mlxtend", TORCH),
    "plotly": _module("plotly", EXTRAS),
    "distributed": _module("distributed", EXTRAS),
    "tensorboard": _module("tensorboard", EXTRAS),
    "pyarrow": _module("pyarrow", EXTRAS),
    "psutil": _module("psutil", EXTRAS),
    "mkdocs": _module("mkdocs", EXTRAS),
    "mkdocstrings": _module("mkdocstrings", EXTRAS),
    "nbconvert": _module("nbconvert", EXTRAS),
    "nbclient": _module("nbclient", EXTRAS),
    "nbformat": _module("nbformat", EXTRAS),
    "ipykernel": _module("ipykernel", EXTRAS),
    "yaml": _module("yaml", EXTRAS),
    "pyright": _module("pyright", EXTRAS),
    "twine": _module("twine", EXTRAS),
    "hta": _module("hta", EXTRAS),
    "PIL": _module("PIL", EXTRAS),
    "playwright": _module("playwright", EXTRAS),
    "chromium": Need(found=lambda: any(map(shutil.which, CHROMIUMS)), remedy=EXTRAS),
    "transformers": _module("transformers", "pip install '.[models]'"),
    "torchvision": _module("torchvision", "pip install --no-deps the one for your torch"),
    "accelerate": _module("accelerate", "pip install '.[integrations]'"),
    "lightning": _module("lightning", "pip install '.[integrations]'"),
    "GPU": Need(found=lambda: _num_cards() > 0, remedy="run on a machine with one"),
    "two GPUs": Need(found=lambda: _num_cards() > 1, remedy="run on a machine with two"),
    "compute-sanitizer": _program("compute-sanitizer", remedy="put /usr/local/cuda/bin on the PATH"),
    "x86-64": Need(found=lambda: platform.machine() in {"x86_64", "AMD64"}, remedy="run on such a processor"),
    "peak memory": Need(found=_peak_memory_is_forgotten, remedy="run on Linux with glibc, and its clear_refs"),
    "bash": _program("bash", remedy="install bash"),
    "cc": _program("cc", remedy="install a C compiler"),
    "git checkout": Need(found=_is_a_git_checkout, remedy="git clone"),
    "Linux": Need(found=lambda: sys.platform == "linux", remedy="run on Linux"),
    "no root": Need(found=lambda: os.geteuid() != 0, remedy="run as another user"),
    "lab": Need(found=_can_hold_a_lab, remedy="run as root on Linux, with iproute2 and util-linux"),
}
REASON = "needs "
_AT_THE_TOP = re.compile(r"^needs\((.*)\)$", re.MULTILINE)


@cache
def is_here(name: str) -> bool:
    """Return whether this machine and environment have what NEEDS calls `name`."""
    return NEEDS[name].found()


def needs(*names: str) -> None:
    """Skip the test, or at the top of a module all its tests, where one of `names` is not here.

    Raises:
        KeyError: NEEDS does not know a name.
    """
    __tracebackhide__ = True  # the place of a skip is that of who needs something
    missing = [name for name in names if not is_here(name)]
    if missing:
        pytest.skip(REASON + ", ".join(missing), allow_module_level=True)


def missing_of(path: Path) -> list[str]:
    """Return what a test module needs at its top and is not here."""
    said = ", ".join(_AT_THE_TOP.findall(path.read_text(encoding="utf-8")))
    return [name for name in re.findall(r'"([^"]+)"', said) if name in NEEDS and not is_here(name)]


class NotHere(pytest.Module):
    """A test module that needs what is not here: skipped before it is compiled."""

    def collect(self) -> Iterable[pytest.Item]:
        """Skip it, in the words in which it would skip itself."""
        needs(*missing_of(self.path))
        return []


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Leave a module to pytest where all is here that it needs."""
    return NotHere.from_parent(parent, path=module_path) if missing_of(module_path) else None


def not_run(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines for what was skipped, given the place and the reason of each skip: one line a need."""
    places: dict[str, list[str]] = defaultdict(list)
    for place, reason in reasons:
        for name in reason.removeprefix(REASON).split(", ") if reason.startswith(REASON) else [reason]:
            places[name].append(place)
    lines = []
    for name, all_places in places.items():
        modules = sum("::" not in place for place in all_places)
        counts = [
            f"{number} {what}"
            for number, what in ((modules, "modules"), (len(all_places) - modules, "tests"))
            if number
        ]
        remedy = f": {NEEDS[name].remedy}" if name in NEEDS else ""
        lines.append(f"{name} ({' and '.join(counts)}){remedy}")
    return sorted(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once, at the end, what was not run for want of what."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [(report.nodeid, re.sub("^Skipped: ", "", report.longrepr[2])) for report in skipped]
    if reasons:
        terminalreporter.section("not run, since these are not here")
        for line in not_run(reasons):
            terminalreporter.line(line)
