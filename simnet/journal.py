"""The journal of a sweep: one line a finished point, so that a killed sweep loses nothing."""

import fcntl
import json
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from simnet.errors import SimnetError

NAME = "points.jsonl"


class Journal:
    """A file of finished points, locked as long as it is open.

    Example: `with Journal(Path("out")) as journal: journal.append(key, result_json)`.

    Attributes:
        results: results of all points in the file, by content hash.
    """

    def __init__(self, directory: Path) -> None:
        """Open or make the journal of a directory, and cut off a last line that a killed sweep left unfinished.

        Raises:
            SimnetError: the directory is not writable, another sweep writes to it, or the journal is damaged.
        """
        self.path = directory / NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            raise _unwritable(directory, error) from error
        try:
            self._lock()
            self.results = self._read()
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

    def append(self, key: str, result_json: str) -> None:
        """Add a finished point, given as its content hash and its result in JSON; it outlives a kill at once.

        Raises:
            SimnetError: the disk is full or gone.
        """
        try:
            self._file.write(f'{{"key": "{key}", "result": {result_json}}}\n'.encode())
            self._file.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.results[key] = json.loads(result_json)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            rule = "another sweep is writing here; wait for it, or choose another place with -o"
            raise SimnetError(f"{self.path.parent}: {rule}") from error

    def _read(self) -> dict[str, Any]:
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        return dict(self._entry(number, line) for number, line in enumerate(whole.splitlines(), start=1))

    def _entry(self, number: int, line: bytes) -> tuple[str, Any]:
        try:
            entry = json.loads(line)
            return entry["key"], dict(entry["result"])
        except (ValueError, KeyError, TypeError) as error:
            rule = "is damaged; delete this line to simulate its point again"
            raise SimnetError(f"{self.path}: line {number}: {line[:40].decode(errors='replace')!r}: {rule}") from error


def _unwritable(path: Path, error: OSError) -> SimnetError:
    return SimnetError(f"{path}: cannot be written ({error.strerror}): choose another place with -o")
