"""Keep samples; write them as a measurement file (docs/reference/files.md#measurements), whole or not at all.

A bench is a record with what else every measurement is given.
"""

import json
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import click
import torch

from binsgdm.bench.choices import text_of
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.timing import SHARED_S, Call, Key, Progress, StopRule, Trial, interleave, relative_error, trial_of
from binsgdm.errors import BinsgdmError
from binsgdm.files import write_file

T = TypeVar("T")
WHAT = "simnet measurements"
FORMAT = 1

BAR_STEPS = 1000
# Too many for a person to read.
UNLISTED = ("gradient_ready", "rank_step", "rank_compute")
# A mapping holds the options of a system: plain values by name, None for an option that is switched off.
Label = str | int | float | Mapping[str, Any]


class Record:
    """The series of one run, all of one setup."""

    def __init__(
        self, ranks: Ranks, *, nic_bytes_per_s: float | None = None, nic_latency_s: float = 0.0, network: str = ""
    ) -> None:
        self._setup: dict[str, Any] = {
            "backend": ranks.backend,
            "device": ranks.device.type,
            "num_nodes": ranks.num_nodes,
            "ranks_per_node": ranks.ranks_per_node,
            "threads_per_rank": torch.get_num_threads(),
            "ranks_on_machine": ranks.ranks_on_machine,
            "nic_bytes_per_s": nic_bytes_per_s,
            "network": network,
            **({"nic_latency_s": nic_latency_s} if nic_latency_s else {}),
        }
        self.series: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.checks: list[dict[str, Any]] = []

    def add(self, kind: str, name: str, values: Sequence[float], *, unit: Label = "s", **labels: Label) -> None:
        """Add the repetitions of one thing, in seconds or, with unit "B", in bytes."""
        self.series.append(
            {"kind": kind, "name": name, "setup": 0, "unit": unit, "labels": labels, "values": list(values)}
        )

    def note(self, text: str) -> None:
        """Add a sentence, such as what was left out and why."""
        self.notes.append(text)

    def check(self, name: str, *, passed: bool, count: int = 1, detail: str = "") -> None:
        """Add the outcome of `count` comparisons of one kind, and what the first that failed found."""
        self.checks.append({"name": name, "passed": passed, "count": count, "detail": detail})

    def write(self, path: Path) -> None:
        """Write the file; a reader sees what was there before, or all of it."""
        if not (self.series or self.notes or self.checks):
            raise BinsgdmError("measure: nothing was measured; allow larger sizes or a longer --max-seconds")
        document = {
            "what": WHAT,
            "format": FORMAT,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command(),
            "hardware": hardware(),
            "software": software(),
            "setups": [self._setup],
            "series": self.series,
            **({"notes": self.notes} if self.notes else {}),
            **({"checks": self.checks} if self.checks else {}),
        }
        write_file(path, json.dumps(document, allow_nan=False, indent=1) + "\n")

    def imprecise(self, wanted: float) -> int:
        """Return how many series did not reach a relative error, those of single gradients and ranks left out."""
        return sum(
            relative_error(s["values"]) > wanted for s in self.series if s["unit"] == "s" and s["name"] not in UNLISTED
        )

    def table(self) -> str:
        """Return a line for each series: labels, median, interval, samples; those of `UNLISTED` are left out."""
        lines = [f"{'median':>12}  {'+-':>6}  {'n':>4}  what"]
        for series in self.series:
            if series["name"] in UNLISTED:
                continue
            values = series["values"]
            labels = series["labels"]
            what = text_of({**labels, **({"options": text_of(labels["options"])} if "options" in labels else {})})
            middle = statistics.median(values)
            size = f"{middle * 1e3:>9.4f} ms" if series["unit"] == "s" else f"{middle / 1e6:>9.2f} MB"
            lines.append(f"{size}  {relative_error(values):>6.1%}  {len(values):>4}  {series['name']} {what}")
        return "\n".join(lines)


def check_writable(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    if path.is_dir():
        raise BinsgdmError(f"{path}: is a directory; name a file with -o")
    if path.exists() and not force:
        raise BinsgdmError(f"{path}: exists; add --force to replace it, or name another file with -o")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise BinsgdmError(f"{path}: {str(path.parent)!r}: no such directory; make it, or name another file with -o")
    try:
        # Tried out: rights, quotas and read-only disks each have rules of their own.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BinsgdmError(f"{path}: cannot be written ({error.strerror}); name another file with -o") from error


@contextmanager
def shown_progress(label: str) -> Iterator[Progress]:
    """Show a bar on stderr, if a person sees it."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=BAR_STEPS, label=label, file=sys.stderr) as bar:
        yield lambda part: bar.update(max(0, round(part * BAR_STEPS) - bar.pos))


def hardware() -> dict[str, Any]:
    """Describe this machine."""
    path, num_gpus = Path("/proc/cpuinfo"), torch.cuda.device_count()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    processors = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    # Those that this process may use.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "machine": platform.machine(),
        "processor": processors[0] if processors else platform.processor(),
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpu": torch.cuda.get_device_name(0) if num_gpus else "",
        "num_gpus": num_gpus,
    }


def software() -> dict[str, str]:
    """Return versions; empty where there is none."""
    versions = {
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numba": "",
        "nccl": nccl_version() if torch.cuda.is_available() else "",
        "binsgdm": "",
    }
    for package in ("numba", "binsgdm"):
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def nccl_version() -> str:
    """Return the version of NCCL; empty where there is none."""
    try:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return ""
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def command() -> str:
    """Return how this program was started, with its arguments."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name
    return f"{program} {shlex.join(sys.argv[1:])}"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where samples go, who takes part, and when to stop.

    Attributes:
        record: where to.
        ranks: who takes part.
        stop_rule: when to stop, for each thing that is measured.
        progress: called with the part that is done, from 0 to 1.
        probe: called now and then, at the same places on all ranks, between what is timed.
    """

    record: Record
    ranks: Ranks
    stop_rule: StopRule
    progress: Progress = lambda _: None
    probe: Callable[[], None] = lambda: None

    def part(self, first: float, end: float) -> "Bench":
        """Return the same for one of several things, which begins and ends at these parts of all."""
        return replace(self, progress=lambda part: self.progress(first + part * (end - first)))

    def each(self, things: Collection[T]) -> Iterator[tuple["Bench", T]]:
        """Yield things, before each the bench for it, as if all took the same time."""
        for count, thing in enumerate(things):
            yield self.part(count / len(things), (count + 1) / len(things)), thing

    def within(self, seconds: float) -> "Bench":
        """Return the same with a limit for the time of a series."""
        limit = min(self.stop_rule.max_seconds, seconds)
        return replace(self, stop_rule=replace(self.stop_rule, max_seconds=limit))

    def interleave(self, trials: Mapping[Key, Trial], pause_s: float = 0.0) -> dict[Key, list[list[float]]]:
        """Let trials take turns, and tell how far they are; see `interleave`."""

        def progress(part: float) -> None:
            self.progress(part)
            self.probe()

        self.probe()
        return interleave(trials, self.stop_rule, self.ranks, pause_s=pause_s, progress=progress)

    def times(self, calls: Mapping[Key, Call]) -> dict[Key, list[float]]:
        """Return the times of calls that take turns, each from an idle queue of a GPU [s]."""
        rows = self.interleave({key: trial_of(call, self.ranks.device) for key, call in calls.items()})
        return {key: [row[0] for row in of_key] for key, of_key in rows.items()}


EVERY_S = 0.5
"""Least time between two probes: they take some 5 % of a measurement."""
MATRIX, STREAMED = 256, 2**21
"""Rows of a square matrix that fits into a core's own cache; elements of a vector that does not."""


class SpeedProbe:
    """Times fixed pieces of work now and then on all ranks at once, which shows how fast a shared machine is meanwhile.

    Work that computes and work that streams memory slow down by different factors, so there is one piece of each.
    """

    def __init__(self, ranks: Ranks) -> None:
        left, right, product = (torch.ones(MATRIX, MATRIX, device=ranks.device) for _ in range(3))
        sums, terms = torch.zeros(STREAMED, device=ranks.device), torch.ones(STREAMED, device=ranks.device)
        works: dict[str, Callable[[], object]] = {
            "multiply": lambda: torch.mm(left, right, out=product),
            "stream": lambda: sums.mul_(0.5).add_(terms, alpha=0.5),
        }
        self._ranks = ranks
        self._trials = {name: trial_of(work, ranks.device, SHARED_S) for name, work in works.items()}
        self._samples: dict[str, list[float]] = {name: [] for name in works}
        self._last_s = -EVERY_S

    def sample(self) -> None:
        """Take a sample unless the last one is recent; all ranks call it at the same places."""
        # The ranks agree on the time that has passed: each by its own clock, some would wait for the others for ever.
        if self._ranks.slowest([time.perf_counter() - self._last_s])[0] < EVERY_S:
            return
        for name, trial in self._trials.items():
            self._ranks.barrier()
            self._samples[name] += self._ranks.slowest(trial())
        self._last_s = time.perf_counter()

    def add_to(self, record: Record) -> None:
        """Add what was timed."""
        for name, values in self._samples.items():
            record.add("speed", name, values)
