"""Run the parts one after another: go on where a former run has ended, share out the time, and note what fails.

A part has processes of its own, since an error of CUDA breaks every later call of the process that had it. card.json
keeps what a folder was measured on, and how far each part has come.
"""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from binsgdm.bench.gpu import card
from binsgdm.bench.gpu.card import Facts
from binsgdm.bench.gpu.parts import BUDGET_S, Part, environments
from binsgdm.bench.record import WHAT, command, shown_progress
from binsgdm.errors import BinsgdmError
from binsgdm.files import write_file

POLL_S = 0.2
TAIL_LINES = 30
KILL_S = 5.0  # for the end of a process that was killed: one that waits inside the driver may never come to it
LOOPBACK_S = 5.0
NO_LOOPBACK = "127.0.0.1 does not answer, where ranks meet: bring the loopback interface up: ip link set lo up"
WORKER = (sys.executable, "-m", "binsgdm.bench.gpu.parts")


def run_processes(
    task: Mapping[str, Any],
    *,
    num_ranks: int,
    limit_s: float,
    progress: Callable[[float], object],
    worker: Sequence[str] = WORKER,
) -> tuple[str, str]:
    """Do a task in processes of its own; return why it failed, or an empty string, and the last lines they printed.

    Args:
        task: as `parts.main` takes it, without `report_fd`.
        num_ranks: 0 for a process alone, else ranks that join in a process group.
        limit_s: after which the processes are killed.
        progress: called with the part that is done, from 0 to 1, at least once in `POLL_S`.
        worker: the command that does a task, which is its last argument.
    """
    if num_ranks and not _has_loopback():
        return NO_LOOPBACK, ""
    reports, write_fd = os.pipe()
    children: list[subprocess.Popen[bytes]] = []
    with (
        os.fdopen(reports, "rb", buffering=0),
        os.fdopen(write_fd, "wb", buffering=0) as others_end,
        tempfile.TemporaryFile(mode="w+", errors="replace") as output,
    ):
        try:
            for environment in environments(num_ranks):
                child = subprocess.Popen(
                    [*worker, json.dumps({**task, "report_fd": write_fd})], env=environment, stdin=subprocess.PIPE,
                    stdout=output, stderr=output, pass_fds=[write_fd], start_new_session=True,
                )  # fmt: skip
                children.append(child)
            others_end.close()
            reason = _watched(children, reports, limit_s, progress)
        finally:
            _kill(children)
        output.seek(0)
        return reason, "\n".join(output.read().splitlines()[-TAIL_LINES:])


def _has_loopback() -> bool:
    """Tell whether processes of this machine reach each other, without which ranks would wait for their end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        try:
            socket.create_connection(server.getsockname(), LOOPBACK_S).close()
        except OSError:
            return False
    return True


def _watched(
    children: Sequence["subprocess.Popen[bytes]"], reports: int, limit_s: float, progress: Callable[[float], object]
) -> str:
    """Wait for the end of all processes, of one that fails, or of the time; return what has failed."""
    deadline = time.monotonic() + limit_s
    done, failed, unread = 0.0, "", b""
    while True:
        # Ask for the ends before the last reports: what a process wrote before its end is then read below.
        codes = [child.poll() for child in children]
        while select.select([reports], [], [], 0 if None not in codes else POLL_S)[0]:
            data = os.read(reports, 65536)
            if not data:  # all have closed their end, and are about to be gone
                time.sleep(POLL_S / 4)
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in map(json.loads, lines):
                done, failed = line.get("done", done), failed or line.get("failed", "")
        progress(done)
        for code in filter(None, codes):
            end = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            failed = failed or end
        if failed or None not in codes:
            return failed
        if time.monotonic() > deadline:
            return f"was ended after {limit_s:.0f} s at {done:.0%}: it hangs, or is too slow"


def _kill(children: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End the processes with what they have started, and wait for them, as long as that may take."""
    for child in children:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_S
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        if child.stdin is not None:
            child.stdin.close()


CARD_FILE = "card.json"
CARD_WHAT = "simnet card"
CARD_FORMAT = 1
# What must be equal for a run to go on with what a folder holds: the name, and the table of card.json it is in.
SAME = {
    "device": "", "quick": "", "name": "card", "compute_capability": "card", "torch": "software", "triton": "software",
    "driver": "software",
}  # fmt: skip
TWO_DRIVERS = "parts were measured with two versions of the driver"
LEAST_S = 5.0  # less is not worth the start of a part
OVER_S = 20.0  # beyond the budget, until which the last part has ended, whatever hangs
NO_TIME = "no time was left: the same command goes on, or give more with --budget"
MAX_SHOWN = 12  # findings of a part
PARTIAL = ".measure-*"  # what a killed writer may leave


class CardRun:
    """A run into a folder, which goes on where a former one has ended unless it starts anew.

    Attributes:
        content: of card.json.
    """

    def __init__(self, folder: Path, facts: Facts, *, device: str, quick: bool, starts_anew: bool = False) -> None:
        self._folder, self._starts_anew = folder, starts_anew
        self._title = ""
        self.content: Facts = {
            "what": CARD_WHAT,
            "format": CARD_FORMAT,
            "created": _now(),
            "command": command(),
            "device": device,
            "quick": quick,
            **facts,
            "parts": {},
        }
        if not starts_anew and (former := read_card(folder)):
            self._go_on_from(former)

    def _go_on_from(self, former: Facts) -> None:
        """Take over the parts of a former run; a note says if its driver was another of the same major version."""
        before, now = (str(content["software"].get("driver") or "") for content in (former, self.content))
        is_near = before.partition(".")[0] == now.partition(".")[0] != ""
        for name, table in SAME.items():
            was, this = ((content[table] if table else content).get(name) for content in (former, self.content))
            if was != this and not (name == "driver" and is_near):
                raise BinsgdmError(
                    f"{self._folder / CARD_FILE}: {name}: was measured with {was!r}, and here is {this!r}: "
                    "all parts of a folder are of one card: name another folder with -o, or add --force"
                )
        self.content["notes"] += [note for note in former.get("notes") or () if note.startswith(TWO_DRIVERS)]
        if before != now:
            self.content["notes"].append(f"{TWO_DRIVERS}: {before} before, {now} from {_now()} on")
        self.content |= {"created": former["created"], "parts": former["parts"]}

    def run(
        self, parts: Sequence[Part], *, budget_s: float, num_ranks: int, spent_s: float = 0.0, again: Sequence[str] = ()
    ) -> bool:
        """Run parts in this order; return whether all are done or were skipped, and every check has passed.

        Args:
            parts: which.
            budget_s: for all.
            num_ranks: of parts that run on every card.
            spent_s: of the budget, before the first part: by the look at the card.
            again: names of parts that are measured although their files are there.
        """
        with _locked(self._folder):
            for left_over in self._folder.glob(PARTIAL):
                left_over.unlink(missing_ok=True)
            for part in parts:
                self._make_ready(part, is_again=part.name in again)
            end_s = time.monotonic() + budget_s - spent_s
            pending = [part for part in parts if part.name in again or not self._path(part).exists()]
            for number, part in enumerate(pending):
                # Its share of the budget, or of what the parts before it have left.
                left = sum(other.seconds for other in pending[number:])
                of_left = (end_s - time.monotonic()) * part.seconds / left
                seconds = max(LEAST_S, min(budget_s * part.seconds / BUDGET_S, of_left))
                self._title = f"[{number + 1}/{len(pending)}] {part.name}"
                click.echo(f"{self._title}: {part.about}, about {seconds:.0f} s", err=True)
                self._show_end(part, self._run_part(part, seconds, end_s, num_ranks))
            return all(map(self._is_good, parts))

    def _path(self, part: Part) -> Path:
        return self._folder / f"{part.name}.json"

    def _make_ready(self, part: Part, *, is_again: bool) -> None:
        """Remove a file that is measured anew, and refuse a damaged one of a part that counts as done.

        A damaged file of a part that is measured again goes at once: the part may be skipped, and write none.
        """
        path = self._path(part)
        is_damaged = path.exists() and document(path) is None
        if self._starts_anew or (is_again and is_damaged):
            path.unlink(missing_ok=True)
        elif is_damaged:
            raise BinsgdmError(
                f"{path}: is no measurement file: it may be damaged: add --only {part.name} to measure it again"
            )

    def _run_part(self, part: Part, seconds: float, end_s: float, num_ranks: int) -> Facts:
        """Run one part, and note how it ended."""
        path = self._path(part)
        state: Facts = {"status": "running", "reason": "", "before": self._readings()}
        self.set_part(part.name, **state)
        start = time.monotonic()
        # It stops by itself unless something hangs; however many parts hang, all end within `OVER_S` of the budget.
        limit_s = min(1.5 * seconds + 30, end_s - start + OVER_S)
        is_skipped = bool(part.alone) and num_ranks < 2
        reason, tail = part.alone, ""
        if not is_skipped and limit_s < LEAST_S:
            reason = NO_TIME
        elif not is_skipped:
            task = {
                "measure": part.measure, "output": str(path), "device": self.content["device"],
                "quick": self.content["quick"], "is_shared": self.content["is_shared"], "seconds": seconds,
                "limit_s": limit_s, "launched": start,
            }  # fmt: skip
            ranks = num_ranks if part.every_card else 0
            with shown_progress(self._title) as progress:
                reason, tail = run_processes(task, num_ranks=ranks, limit_s=limit_s, progress=progress)
            if not reason and not path.exists():
                reason = "ended without a file"
        status = "skipped" if is_skipped else "failed" if reason else "done"
        if reason and path.exists():
            reason += f"; {path.name} is of an earlier run"
        state |= {"status": status, "reason": reason, "seconds": round(time.monotonic() - start, 1)}
        state |= {"after": self._readings()} | ({"tail": tail} if status == "failed" else {})
        self.set_part(part.name, **state)
        return state

    def _readings(self) -> dict[str, card.Value]:
        """Return clocks, temperature and power; nothing from the first time on that nobody tells."""
        # A driver that hangs would cost its time-out before and after every part.
        if self.content["device"] != "cuda" or not self.content.get("has_readings", True):
            return {}
        readings = card.readings()
        self.content["has_readings"] = bool(readings)
        return readings

    def set_part(self, name: str, **state: Any) -> None:
        """Note how far a part is, and write card.json; a reader sees what was there before, or all of it."""
        self.content["parts"][name] = state
        # At each change, so that whoever ends this run loses one part at most.
        write_file(self._folder / CARD_FILE, json.dumps(self.content, indent=1) + "\n")

    def _is_good(self, part: Part) -> bool:
        """Tell whether a part is done or was skipped, and no check has failed."""
        content, status = document(self._path(part)), self.content["parts"].get(part.name, {}).get("status", "done")
        if content is None:
            return bool(status == "skipped")
        return status in {"done", "skipped"} and not _failed(content)

    def _show_end(self, part: Part, state: Facts) -> None:
        """Say on stderr how the part ended, and on stdout its notes and the checks that failed."""
        content, words = document(self._path(part)) or {"series": []}, [f"{self._title} {state['status']}"]
        words[0] += f" in {state['seconds']:.0f} s"
        lines = [f"{check['name']}: failed: {check['detail']}" for check in _failed(content)]
        if state["status"] == "done":
            series, checks = content["series"], content.get("checks", [])
            held = (
                [f"{len(series)} series, {sum(len(entry['values']) for entry in series):,} samples"] if series else []
            )
            if checks:
                passed = sum(check["count"] for check in checks if check["passed"])
                held.append(f"{passed:,} of {sum(check['count'] for check in checks):,} comparisons hold")
            words.append(", ".join(held) or "notes only")
            lines += content.get("notes", [])
        words += filter(None, [state["reason"]])
        click.echo(": ".join(words), err=True)
        for line in lines[:MAX_SHOWN]:
            click.echo(f"{part.name}: {line}")
        if len(lines) > MAX_SHOWN:
            click.echo(f"{part.name}: {len(lines) - MAX_SHOWN} more in {part.name}.json")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _failed(content: Facts) -> list[Facts]:
    return [check for check in content.get("checks", ()) if not check["passed"]]


def document(path: Path) -> Facts | None:
    """Return what a measurement file holds, with all that is asked of one here; None where there is none."""
    content = _read(path, WHAT)
    lists = (content.get(name, []) for name in ("series", "notes", "checks"))
    return content if content and all(isinstance(entries, list) for entries in lists) else None


def read_card(folder: Path) -> Facts | None:
    """Return the content of card.json; None where there is none."""
    path = folder / CARD_FILE
    if not path.exists():
        return None
    content = _read(path, CARD_WHAT)
    kinds = {"card": dict, "software": dict, "parts": dict, "created": str, "format": int}
    if not all(isinstance(content.get(name), kind) for name, kind in kinds.items()):
        raise BinsgdmError(f"{path}: is no card.json of simnet measure gpu: name another folder with -o, or remove it")
    if content["format"] > CARD_FORMAT:
        raise BinsgdmError(
            f"{path}: format: {content['format']}: this version reads up to {CARD_FORMAT}: update binsgdm"
        )
    return content


def _read(path: Path, what: str) -> Facts:
    """Return the object of this kind in a JSON file; nothing where there is none."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) and content.get("what") == what else {}
    return {}


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
