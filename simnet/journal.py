"""The journal of a sweep: one line a finished point, so that a killed sweep loses nothing."""

import fcntl
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct

from simnet import schema
from simnet.errors import SimnetError
from simnet.files import target, unwritable
from simnet.parsing import check_plain
from simnet.result import StrategyResult
from simnet.units import Bandwidth

NAME = "points.jsonl"
_START = b'{"key": "'


class _Entry(Struct, frozen=True):
    """A line of the journal."""

    key: str
    result: dict[str, Any]


class _InterNode(Struct, frozen=True):
    bandwidth: str

    def __post_init__(self) -> None:
        Bandwidth.parse(self.bandwidth)


class _Cluster(Struct, frozen=True):
    num_nodes: int
    ranks_per_node: int
    inter_node: _InterNode


class _Scenario(Struct, frozen=True):
    cluster: _Cluster
    workload: dict[str, Any]
    strategy: dict[str, Any]


class _Times(StrategyResult, frozen=True, kw_only=True):
    """What the simulator never gives otherwise."""

    iteration_s: Annotated[float, Meta(gt=0.0)]
    samples_per_s: Annotated[float, Meta(gt=0.0)]


class _Result(_Times, frozen=True, kw_only=True):
    """What a table, a CSV row and the figures ask of a result, as `report.metrics.to_object` writes it."""

    scenario: _Scenario
    world_size: int
    baseline: _Times | None
    speedup: float | None
    end_to_end_speedup: float | None
    notes: list[str]
    version: str


class Journal:
    """A file of finished points, locked as long as it is open.

    Example: `with Journal(Path("out")) as journal: journal.append(key, result_json)`.

    Attributes:
        results: results of all points in the file, by content hash.
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
                rule = "is not a regular file; remove it, or choose another place with -o"
                raise SimnetError(f"{self.path}: {rule}")
            self._file = target(self.path, directory).open("a+b")
        except OSError as error:
            raise unwritable(directory, error) from error
        try:
            self._lock()
            self._lines: dict[str, int] = {}
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
            raise unwritable(self.path, error) from error
        self.results[key] = json.loads(result_json)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            rule = "another sweep is writing here; wait for it, or choose another place with -o"
            raise SimnetError(f"{self.path.parent}: {rule}") from error

    def kept(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the results of those of the points that are in the file.

        Raises:
            SimnetError: one is not what the simulator writes; results of other versions of it are never asked for.
        """
        asked = set(keys)
        wanted = [key for key in self.results if key in asked]
        for key in wanted:
            try:
                check_plain(self.results[key], "result")
                schema.convert(_Result, self.results[key], "result")
            except SimnetError as error:
                raise self._damaged(self._lines[key], str(error)) from error
        return {key: self.results[key] for key in wanted}

    def _read(self) -> dict[str, Any]:
        """Read the file, and only then cut off what a kill has left of a line."""
        self._file.seek(0)
        *whole, rest = self._file.read().split(b"\n")
        results = dict(self._entry(number, line) for number, line in enumerate(whole, start=1))
        if not (rest.startswith(_START) or _START.startswith(rest)):
            raise self._damaged(len(whole) + 1, _shown(rest))
        if rest:
            self._file.truncate(sum(len(line) + 1 for line in whole))
        return results

    def _entry(self, number: int, line: bytes) -> tuple[str, Any]:
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(number, _shown(line)) from error
        self._lines[entry.key] = number
        return entry.key, entry.result

    def _damaged(self, number: int, what: str) -> SimnetError:
        rule = "is damaged; delete this line to simulate its point again, or choose another place with -o"
        return SimnetError(f"{self.path}: line {number}: {what}: {rule}")


def _shown(line: bytes) -> str:
    return repr(line[:40].decode(errors="replace"))
