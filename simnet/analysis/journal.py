"""The journal of a sweep: one line a finished or refused point, so that a killed sweep loses nothing."""

import fcntl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from simnet.analysis.key_index import KeyPlaces
from simnet.core import schema
from simnet.core.errors import NotInstalledError, SimnetError
from simnet.core.files import write_error, write_target
from simnet.engine.result import RunResult

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
    """A file of finished points, locked as long as it is open; the places of its lines are in memory, not the lines.

    Example: `with Journal(Path("out")) as journal: journal.append(key, result)`.

    Attributes:
        path: of the file.
        places: where the line of each point starts [bytes], by the content hash of the point.
        end_before: where it ended when it was opened [bytes].
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
            # Lines are read by a handle of their own, since a seek writes out what the other one holds.
            self._reader = self.path.open("rb")
        except OSError as error:
            raise write_error(directory, error) from error
        try:
            self._lock()
            self.places = KeyPlaces()
            self._end = self._read()
            self.end_before = self._end
        except BaseException:
            self._reader.close()
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        with suppress(OSError):  # closing writes once more what a full disk has refused
            self._file.close()

    def append(self, key: str, outcome: bytes | str, values: Mapping[str, object] | None = None) -> int:
        """Add a finished point; it outlives a kill at once.

        Args:
            key: content hash of the point.
            outcome: its result in JSON, or the reason why it is refused.
            values: of the swept keys, for people who read why a point is refused.

        Returns:
            The place of its line.

        Raises:
            SimnetError: the disk is full or gone.
        """
        line = b'{"key": "%b", %b}\n' % (key.encode(), _written(outcome, values or {}))
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            rule = "make room: the same sweep resumes from the finished points; or name another directory with -o"
            raise SimnetError(f"{self.path}: cannot be written ({error.strerror}); {rule}") from error
        place = self.places[key] = self._end
        self._end += len(line)
        return place

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
        known = ((key, self.places.get(key)) for key in dict.fromkeys(keys))
        return {key: self.outcome_at(place) for key, place in known if place is not None}

    def outcome_at(self, place: int) -> RunResult | str:
        """Return what the point came to whose line is at a place.

        Raises:
            SimnetError: as `outcomes_of`.
        """
        self._reader.seek(place)
        line = self._reader.readline()
        try:
            kept = schema.decode(_Kept, line, "")
        except SimnetError:
            kept = self._decoded(line, self._line(place))  # whose message says where
        outcome = kept.refused if kept.result is None else kept.result
        assert outcome is not None  # as `_Entry` has checked
        return outcome

    @staticmethod
    def _decoded(line: bytes, where: str) -> _Kept:
        try:
            return schema.decode(_Kept, line, where)
        except NotInstalledError as error:
            raise SimnetError(error.in_data) from error
        except SimnetError as error:
            raise SimnetError(f"{error}: {DAMAGED}") from error

    def _line(self, place: int) -> str:
        """Return how messages call the line at a place."""
        self._reader.seek(0)
        number = 1
        while self._reader.tell() < place and self._reader.readline():
            number += 1
        return f"{self.path}: line {number}"

    def _read(self) -> int:
        """Read the places of all lines, and only then cut off what a kill has left of a line; return the end."""
        place = 0
        for number, line in enumerate(self._reader, start=1):
            if not line.endswith(b"\n"):
                if not (line.startswith(_START) or _START.startswith(line)):
                    raise self._damaged(number, line)
                self._file.truncate(place)
                break
            self.places[self._key(number, line)] = place
            place += len(line)
        return place

    def _key(self, number: int, line: bytes) -> str:
        try:
            return msgspec.json.decode(line, type=_Entry).key
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(number, line.rstrip(b"\n")) from error

    def _damaged(self, number: int, line: bytes) -> SimnetError:
        return SimnetError(f"{self.path}: line {number}: {_shown(line)}: {DAMAGED}")


def _written(outcome: bytes | str, values: Mapping[str, object]) -> bytes:
    """Return what follows the key in the line of a point."""
    if isinstance(outcome, bytes):
        return b'"result": %b' % outcome
    return b'"refused": %b, "set": %b' % (msgspec.json.encode(outcome), msgspec.json.encode(values))


def _shown(line: bytes) -> str:
    return repr(line[:40].decode(errors="replace"))
