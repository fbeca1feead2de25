"""Run the parts one after another: go on where a former run has ended, share out the time, and note what fails.

card.json keeps what a folder was measured on, and how far each part has come.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from binsgdm.bench.gpu import nvidia_smi, processes
from binsgdm.bench.gpu.parts import BUDGET_S, Part
from binsgdm.bench.gpu.preflight import Preflight
from binsgdm.bench.gpu.processes import PartEnd
from binsgdm.bench.gpu.worker import PartTask
from binsgdm.errors import BinsgdmError

CARD_FILE = "card.json"
CARD_WHAT = "simnet card"
CARD_FORMAT = 1
# What must be equal for a run to go on with what a folder holds.
SAME = ("device", "quick")
SAME_CARD = ("name", "compute_capability")
SAME_SOFTWARE = ("torch", "triton", "driver")
TWO_DRIVERS = "parts were measured with two versions of the driver"


class CardFile:
    """The content of card.json, written whole after every change.

    Attributes:
        content: as written.
    """

    def __init__(self, folder: Path, found: Preflight, *, device: str, quick: bool) -> None:
        from binsgdm.bench.record import command

        self._path = folder / CARD_FILE
        self.content: dict[str, Any] = {
            "what": CARD_WHAT,
            "format": CARD_FORMAT,
            "created": _now(),
            "command": command(),
            "device": device,
            "quick": quick,
            "card": found.card,
            "software": found.software,
            "is_shared": found.is_shared,
            "other_processes": [asdict(process) for process in found.others],
            "notes": list(found.notes),
            "parts": {},
        }

    def go_on_from(self, former: dict[str, Any]) -> None:
        """Take over the parts of a former run; a note says if its driver was another of the same major version."""
        drivers = [content["software"].get("driver") or "" for content in (former, self.content)]
        for names, tables in ((SAME, ()), (SAME_CARD, ("card",)), (SAME_SOFTWARE, ("software",))):
            before, now = former, self.content
            for table in tables:
                before, now = before[table], now[table]
            for name in names:
                is_near = name == "driver" and _major(drivers[0]) == _major(drivers[1]) != ""
                if before.get(name) != now.get(name) and not is_near:
                    raise BinsgdmError(
                        f"{self._path}: {name}: was measured with {before.get(name)!r}, and here is {now.get(name)!r}: "
                        "all parts of a folder are of one card: name another folder with -o, or add --force"
                    )
        self.content["notes"] += [note for note in former.get("notes") or () if note.startswith(TWO_DRIVERS)]
        if drivers[0] != drivers[1]:
            self.content["notes"].append(f"{TWO_DRIVERS}: {drivers[0]} before, {drivers[1]} from {_now()} on")
        self.content["created"] = former["created"]
        self.content["parts"] = former["parts"]

    def set_part(self, name: str, **state: Any) -> None:
        """Note how far a part is, and write the file."""
        self.content["parts"][name] = state
        self.write()

    def write(self) -> None:
        """Write the file; a reader sees what was there before, or all of it."""
        from binsgdm.files import write_file

        write_file(self._path, json.dumps(self.content, indent=1) + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _major(driver: str) -> str:
    """Return the major version of a driver; an empty string where it is unknown."""
    return driver.partition(".")[0]


def read_card(folder: Path) -> dict[str, Any] | None:
    """Return the content of card.json; None where there is none."""
    path = folder / CARD_FILE
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_known = content["what"] == CARD_WHAT and all(
            isinstance(content[key], dict) for key in ("card", "software", "parts")
        )
        is_known = is_known and "created" in content and isinstance(content["format"], int)
    except (OSError, ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        raise BinsgdmError(f"{path}: is no card.json of simnet measure gpu: name another folder with -o, or remove it")
    found: dict[str, Any] = content
    if found["format"] > CARD_FORMAT:
        raise BinsgdmError(f"{path}: format: {found['format']}: this version reads up to {CARD_FORMAT}: update binsgdm")
    return found


LEAST_S = 5.0  # less is not worth the start of a part
OVER_S = 20.0  # beyond the budget, until which the last part has ended, whatever hangs
NO_TIME = "no time was left: the same command goes on, or give more with --budget"
MAX_SHOWN = 12  # findings of a part
PARTIAL = ".measure-*"  # what a killed writer may leave


class PartLines:
    """Shows how far the parts are: a line on stderr for each, which on a terminal moves; findings on stdout."""

    def __init__(self) -> None:
        self._title = ""
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def begin(self, part: Part, number: int, count: int, seconds: float) -> None:
        """Name the part."""
        self._title = f"[{number}/{count}] {part.name}"
        click.echo(f"{self._title}: {part.about}, about {seconds:.0f} s", err=True)

    def progress(self, part_done: float, left_s: float) -> None:
        """Move the line of a terminal."""
        if self._is_terminal:
            click.echo(f"\r{self._title} {part_done:4.0%}, {_clock(left_s)} left ", nl=False, err=True)

    def end(self, part: Part, state: dict[str, Any], document: dict[str, Any] | None) -> None:
        """Say how the part ended, and print its notes and the checks that failed."""
        start = "\r" if self._is_terminal else ""
        reason = f": {state['reason']}" if state["reason"] else ""
        found = f": {_found(document)}" if document and state["status"] == "done" else ""
        click.echo(f"{start}{self._title} {state['status']} in {state['seconds']:.0f} s{found}{reason}", err=True)
        lines = list((document or {}).get("notes", ())) if state["status"] == "done" else []
        failed = failed_checks(document or {})
        for line in [*(f"{check['name']}: failed: {check['detail']}" for check in failed), *lines][:MAX_SHOWN]:
            click.echo(f"{part.name}: {line}")
        if len(failed) + len(lines) > MAX_SHOWN:
            click.echo(f"{part.name}: {len(failed) + len(lines) - MAX_SHOWN} more in {part.name}.json")


def _found(document: dict[str, Any]) -> str:
    """Return how much a file holds."""
    series, checks = document["series"], document.get("checks", [])
    words = [f"{len(series)} series, {sum(len(one['values']) for one in series):,} samples"] if series else []
    if checks:
        passed = sum(check["count"] for check in checks if check["passed"])
        words.append(f"{passed:,} of {sum(check['count'] for check in checks):,} comparisons hold")
    return ", ".join(words) or "notes only"


def _clock(seconds: float) -> str:
    return f"{max(0, int(seconds)) // 60}:{max(0, int(seconds)) % 60:02d}"


@dataclass(frozen=True, kw_only=True)
class PartRunner:
    """Runs parts into a folder.

    Attributes:
        folder: for the files; it is there.
        card_file: where the states of the parts are kept.
        num_ranks: of parts that run on every card.
        spent_s: of the budget, before the first part: by the look at the card.
        again: parts that are measured although their files are there.
        starts_anew: what the folder holds of parts is removed first.
        display: what a person sees.
        run: starts the processes of a part; see `processes.run`.
    """

    folder: Path
    card_file: CardFile
    device: str
    quick: bool
    budget_s: float
    num_ranks: int
    is_shared: bool = False
    spent_s: float = 0.0
    again: frozenset[str] = frozenset()
    starts_anew: bool = False
    display: PartLines
    run: Callable[..., PartEnd] = processes.run

    def run_all(self, parts: Sequence[Part]) -> bool:
        """Run parts in this order; return whether all are done or were skipped, and every check has passed."""
        with _locked(self.folder):
            for left_over in self.folder.glob(PARTIAL):
                left_over.unlink(missing_ok=True)
            self._make_ready(parts)
            end_s = time.monotonic() + self.budget_s - self.spent_s
            pending = [part for part in parts if part.name in self.again or not path_of(self.folder, part).exists()]
            for number, part in enumerate(pending):
                seconds = share_s(part, pending[number:], self.budget_s, end_s - time.monotonic())
                self.display.begin(part, number + 1, len(pending), seconds)
                state = self._one(part, seconds, end_s)
                self.display.end(part, state, document(self.folder, part))
            states = self.card_file.content["parts"]
            return all(is_good(states.get(part.name, {}), document(self.folder, part)) for part in parts)

    def _make_ready(self, parts: Sequence[Part]) -> None:
        """Remove files that are measured anew, and refuse damaged ones of parts that count as done.

        A damaged file of a part that is measured again goes at once: the part may be skipped, and write none.
        """
        for part in parts:
            path = path_of(self.folder, part)
            if self.starts_anew or (part.name in self.again and not is_whole(path)):
                path.unlink(missing_ok=True)
            elif path.exists() and not is_whole(path):
                raise BinsgdmError(
                    f"{path}: is no measurement file: it may be damaged: add --only {part.name} to measure it again"
                )

    def _one(self, part: Part, seconds: float, end_s: float) -> dict[str, Any]:
        """Run one part, and note how it ended."""
        state: dict[str, Any] = {"status": "running", "reason": "", "before": self._readings()}
        self.card_file.set_part(part.name, **state)
        start = time.monotonic()
        most_s = limit_s(seconds, end_s - start)
        end = PartEnd(status="failed", reason=NO_TIME)
        if most_s >= LEAST_S:
            end = self.run(
                PartTask(
                    module=part.module, output=str(path_of(self.folder, part)), device=self.device, quick=self.quick,
                    is_shared=self.is_shared, seconds=seconds, limit_s=most_s, launched=start, report_fd=-1,
                ),
                num_ranks=self.num_ranks if part.every_card else 0,
                limit_s=most_s,
                progress=lambda done: self.display.progress(done, end_s - time.monotonic()),
            )  # fmt: skip
        if end.status == "done" and not path_of(self.folder, part).exists():
            end = PartEnd(status="failed", reason="ended without a file", tail=end.tail)
        state |= {"status": end.status, "reason": end.reason, "seconds": round(time.monotonic() - start, 1)}
        state |= {"after": self._readings()} | ({"tail": end.tail} if end.status == "failed" else {})
        if end.status != "done" and path_of(self.folder, part).exists():
            state["reason"] += f"; {part.name}.json is of an earlier run"
        self.card_file.set_part(part.name, **state)
        return state

    def _readings(self) -> dict[str, nvidia_smi.Value]:
        """Return clocks, temperature and power; nothing from the first time on that nobody tells."""
        # A driver that hangs would cost its time-out before and after every part.
        if self.device != "cuda" or not self.card_file.content.get("has_readings", True):
            return {}
        found = nvidia_smi.readings()
        self.card_file.content["has_readings"] = bool(found)
        return found


def share_s(part: Part, pending: Sequence[Part], budget_s: float, left_s: float) -> float:
    """Return the time of a part: its share of the budget, or of what the parts before it have left."""
    of_budget = budget_s * part.seconds / BUDGET_S
    of_left = left_s * part.seconds / sum(other.seconds for other in pending)
    return max(LEAST_S, min(of_budget, of_left))


def limit_s(seconds: float, left_s: float) -> float:
    """Return after how long a part that was given `seconds` is ended: it stops by itself unless something hangs.

    However many parts hang, all end within `OVER_S` of the budget, of which `left_s` are left.
    """
    return min(1.5 * seconds + 30, left_s + OVER_S)


def is_good(state: dict[str, Any], document: dict[str, Any] | None) -> bool:
    """Tell whether a part is done or was skipped, and no check has failed."""
    if document is None:
        return state.get("status") == "skipped"
    return state.get("status", "done") in {"done", "skipped"} and failed_checks(document) == []


def failed_checks(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of a measurement file that have failed."""
    return [check for check in document.get("checks", ()) if not check["passed"]]


def document(folder: Path, part: Part) -> dict[str, Any] | None:
    """Return what the file of a part holds; None where there is no such file."""
    path = path_of(folder, part)
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def is_whole(path: Path) -> bool:
    """Tell whether a file is a measurement file, with all that is asked of one here."""
    from binsgdm.bench.record import WHAT

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["what"] == WHAT and all(
            isinstance(found.get(name, []), list) for name in ("series", "notes", "checks")
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def path_of(folder: Path, part: Part) -> Path:
    """Return the file of a part."""
    return folder / f"{part.name}.json"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder; its end, however it comes, releases it."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BinsgdmError(
            f"{folder}: another run measures into it: wait for its end, or name another folder"
        ) from error
    finally:
        os.close(fd)
