"""Run the parts one after another: go on where a former run has ended, share out the time, and note what fails."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from binsgdm.bench.gpu import nvidia_smi, processes
from binsgdm.bench.gpu.card_file import CardFile
from binsgdm.bench.gpu.parts import BUDGET_S, Part
from binsgdm.bench.gpu.processes import PartEnd
from binsgdm.bench.gpu.worker import PartTask
from binsgdm.errors import BinsgdmError

LEAST_S = 5.0  # less is not worth the start of a part
OVER_S = 20.0  # beyond the budget, until which the last part has ended, whatever hangs
NO_TIME = "no time was left: the same command goes on, or give more with --budget"
PARTIAL = ".measure-*"  # what a killed writer may leave


class Display(Protocol):
    """Shows a person how far the parts are."""

    def begin(self, part: Part, number: int, count: int, seconds: float) -> None:
        """A part begins, which may take so long."""

    def progress(self, part_done: float, left_s: float) -> None:
        """So much of the part is done, and so much time of all is left."""

    def end(self, part: Part, state: dict[str, Any], document: dict[str, Any] | None) -> None:
        """A part has ended, with what stands in its file."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How parts are run.

    Attributes:
        num_ranks: of parts that run on every card.
        spent_s: of the budget, before the first part: by the look at the card.
        again: parts that are measured although their files are there.
        starts_anew: what the folder holds of parts is removed first.
    """

    device: str
    quick: bool
    budget_s: float
    num_ranks: int
    is_shared: bool = False
    spent_s: float = 0.0
    again: frozenset[str] = frozenset()
    starts_anew: bool = False


@dataclass(frozen=True, kw_only=True)
class PartRunner:
    """Runs parts into a folder.

    Attributes:
        folder: for the files; it is there.
        card_file: where the states of the parts are kept.
        display: what a person sees.
        run: starts the processes of a part; see `processes.run`.
    """

    folder: Path
    card_file: CardFile
    settings: Settings
    display: Display
    run: Callable[..., PartEnd] = processes.run

    def run_all(self, parts: Sequence[Part]) -> bool:
        """Run parts in this order; return whether all are done or were skipped, and every check has passed.

        Raises:
            BinsgdmError: another run works in the folder, a file of a part is damaged, or card.json cannot be written.
        """
        with _locked(self.folder):
            for left_over in self.folder.glob(PARTIAL):
                left_over.unlink(missing_ok=True)
            self._make_ready(parts)
            again, end_s = self.settings.again, time.monotonic() + self.settings.budget_s - self.settings.spent_s
            pending = [part for part in parts if part.name in again or not path_of(self.folder, part).exists()]
            for number, part in enumerate(pending):
                seconds = share_s(part, pending[number:], self.settings.budget_s, end_s - time.monotonic())
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
            if self.settings.starts_anew or (part.name in self.settings.again and not is_whole(path)):
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
        end = self._end(part, seconds, limit_s(seconds, end_s - start), end_s)
        if end.status == "done" and not path_of(self.folder, part).exists():
            end = PartEnd(status="failed", reason="ended without a file", tail=end.tail)
        state |= {"status": end.status, "reason": end.reason, "seconds": round(time.monotonic() - start, 1)}
        state |= {"after": self._readings()} | ({"tail": end.tail} if end.status == "failed" else {})
        if end.status != "done" and path_of(self.folder, part).exists():
            state["reason"] += f"; {part.name}.json is of an earlier run"
        self.card_file.set_part(part.name, **state)
        return state

    def _end(self, part: Part, seconds: float, most_s: float, end_s: float) -> PartEnd:
        """Start the processes of a part, if there is time for it, and return how they ended."""
        if most_s < LEAST_S:
            return PartEnd(status="failed", reason=NO_TIME)
        return self.run(
            self._task(part, seconds, most_s),
            num_ranks=self.settings.num_ranks if part.every_card else 0,
            limit_s=most_s,
            progress=lambda done: self.display.progress(done, end_s - time.monotonic()),
        )

    def _task(self, part: Part, seconds: float, most_s: float) -> PartTask:
        return PartTask(
            module=part.module, output=str(path_of(self.folder, part)), device=self.settings.device,
            quick=self.settings.quick, is_shared=self.settings.is_shared, seconds=seconds, limit_s=most_s,
            launched=time.monotonic(), report_fd=-1,
        )  # fmt: skip

    def _readings(self) -> dict[str, nvidia_smi.Value]:
        """Return clocks, temperature and power; nothing from the first time on that nobody tells."""
        # A driver that hangs would cost its time-out before and after every part.
        if self.settings.device != "cuda" or not self.card_file.content.get("has_readings", True):
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
    """Hold a folder; its end, however it comes, releases it.

    Raises:
        BinsgdmError: another run holds it.
    """
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
