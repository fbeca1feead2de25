"""The journal of a sweep: one line a finished or refused point, so that a killed sweep loses nothing."""

import fcntl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from simnet import schema
from simnet.errors import NotInstalledError, SimnetError
from simnet.files import write_error, write_target
from simnet.result import RunResult

NAME = "points.jsonl"
DAMAGED = "is damaged; delete this line to simulate its point again, or name another directory with -o"
_START = b'{"key": "'


class _Entry(Struct, frozen=True):
    """A line of the journal, of any version of the simulator: what a point came to, or why it is refused."""

    key: str
    result: dict[str, Any] | None = None
    refused: str | None = None

    def __post_init__(self) -> None:
        if (self.result is None) == (self.refused is None):
            raise ValueError("must have a result, or a reason why the point is refused")


class _Kept(Struct, frozen=True):
    """A line that this version has written."""

    key: str
    result: RunResult | None = None
    refused: str | None = None


class Journal:
    """A file of finished points, locked as long as it is open.

    Example: `with Journal(Path("out")) as journal: journal.append(key, result)`.

    Attributes:
        lines: those that the file had when it was opened, by the content hash of their point.
    """

    def __init__(self, directory: Path) -> None:
        """Open or make the journal of a directory, and cut off a last line that a killed sweep left unfinished.

        Raises:
            SimnetError: the directory is not writable, another sweep writes to it, or the journal is damaged or none;
                it is left as it was.
        """
        self.path = directory / NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and not self.path.is_file():
                rule = "not a regular file; remove it, or name another with -o"
                raise SimnetError(f"{self.path}: {rule}")
            self._file = write_target(self.path, directory).open("a+b")
        except OSError as error:
            raise write_error(directory, error) from error
        try:
            self._lock()
            self._numbers: dict[str, int] = {}
            self.lines = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # closing writes once more what a full disk has refused
            self._file.close()

    def append(self, key: str, outcome: bytes | str, values: Mapping[str, object] | None = None) -> None:
        """Add a finished point; it outlives a kill at once.

        Args:
            key: content hash of the point.
            outcome: its result in JSON, or the reason why it is refused.
            values: of the swept keys, for people who read why a point is refused.

        Raises:
            SimnetError: the disk is full or gone.
        """
        try:
            self._file.write(b'{"key": "%b", %b}\n' % (key.encode(), _written(outcome, values or {})))
            self._file.flush()
        except OSError as error:
            raise write_error(self.path, error) from error

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            rule = "another sweep is writing here; wait for it, or name another directory with -o"
            raise SimnetError(f"{self.path.parent}: {rule}") from error

    def outcomes_of(self, keys: Iterable[str]) -> dict[str, RunResult | str]:
        """Return what those of the points came to that are in the file: results, or reasons why they are refused.

        Raises:
            SimnetError: one is not what the simulator writes; results of other versions of it are never asked for.
        """
        asked = set(keys)
        return {key: self._outcome(key) for key in self.lines if key in asked}

    def _outcome(self, key: str) -> RunResult | str:
        where = f"{self.path}: line {self._numbers[key]}"
        try:
            kept = schema.decode(_Kept, self.lines[key], where)
        except NotInstalledError as error:
            raise SimnetError(error.in_data) from error
        except SimnetError as error:
            raise SimnetError(f"{error}: {DAMAGED}") from error
        outcome = kept.refused if kept.result is None else kept.result
        assert outcome is not None  # as `_Entry` has checked
        return outcome

    def _read(self) -> dict[str, bytes]:
        """Read the file, and only then cut off what a kill has left of a line."""
        self._file.seek(0)
        *whole, rest = self._file.read().split(b"\n")
        lines = {self._key(number, line): line for number, line in enumerate(whole, start=1)}
        if not (rest.startswith(_START) or _START.startswith(rest)):
            raise self._damaged(len(whole) + 1, rest)
        if rest:
            self._file.truncate(sum(len(line) + 1 for line in whole))
        return lines

    def _key(self, number: int, line: bytes) -> str:
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(number, line) from error
        self._numbers[entry.key] = number
        return entry.key

    def _damaged(self, number: int, line: bytes) -> SimnetError:
        return SimnetError(f"{self.path}: line {number}: {_shown(line)}: {DAMAGED}")


def _written(outcome: bytes | str, values: Mapping[str, object]) -> bytes:
    """Return what follows the key in the line of a point."""
    if isinstance(outcome, bytes):
        return b'"result": %b' % outcome
    return b'"refused": %b, "set": %b' % (msgspec.json.encode(outcome), msgspec.json.encode(values))


def _shown(line: bytes) -> str:
    return repr(line[:40].decode(errors="replace"))
