"""The journal of a sweep, in SQLite, from which a stopped sweep goes on: what each point came to, by which code."""

import errno
import hashlib
import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from simnet.cluster.hardware import FAULTS
from simnet.collectives import algorithms
from simnet.core import files, schema
from simnet.core.errors import NotInstalledError, SimnetError
from simnet.core.files import write_error, write_target
from simnet.core.schema import is_foreign
from simnet.core.version import VERSION
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario
from simnet.strategies import STRATEGIES

CodeHashes = Mapping[str, str]
"""Hashes by module; "simnet" stands for all of the simulator."""
PACKAGES = ("msgspec", "numpy", "scipy", "simpy")
"""What simnet computes with: another version may draw other numbers, or round the last digit another way."""


class Computing(NamedTuple):
    """What computes results in a process.

    Attributes:
        code: hashes by module.
        packages: versions by name.
    """

    code: CodeHashes
    packages: Mapping[str, str]


@cache
def hash_of_simnet() -> str:
    """Return a hash of the simulator's code and of the gradients files that come with it."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    # Gradients files are part of what is computed with; scenarios are in the key of each point.
    for path in sorted(package.rglob("*.py")) + sorted(files.folder("gradients").glob("*.json")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def foreign_code() -> dict[str, bytes]:
    """Return the code of registered strategies, faults and algorithms that are not simnet's own, by module."""
    made: list[object] = [
        *STRATEGIES.built_in(),
        *FAULTS.built_in(),
        *(algorithm.variants for algorithm in algorithms.every()),
    ]
    modules = {str(getattr(registered, "__module__", "")) for registered in made if is_foreign(registered)}
    paths = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {module: Path(path).read_bytes() for module, path in paths.items() if path}


def hashes() -> dict[str, str]:
    """Return the hash of the simulator, and that of each module that has registered something."""
    foreign = {module: hashlib.sha256(code).hexdigest() for module, code in foreign_code().items()}
    return {"simnet": hash_of_simnet(), **foreign}


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of `PACKAGES` by their names."""
    return {name: metadata.version(name) for name in PACKAGES}


def computing() -> Computing:
    """Return what computes results in this process."""
    return Computing(hashes(), package_versions())


def difference(wanted: Computing) -> str | None:
    """Return what this process has other than another one, as in "other code of simnet 0.1.0"; None if all is the same.

    A module that nothing has loaded here has computed nothing.
    """
    here = computing()
    for module, digest in wanted.code.items():
        if here.code.get(module, digest) != digest:
            return f"other code of {f'simnet {VERSION}' if module == 'simnet' else module}"
    for name, version in wanted.packages.items():
        if here.packages.get(name) != version:
            return f"{name} {here.packages.get(name, '(none)')}, not {version}"
    return None


NAME = "points.sqlite"
COMMIT_S = 1.0
"""Work that a kill may cost: points are committed once they have taken as long together, or waited as long."""
# Time in which another sweep that is just being refused lets go of the file.
BUSY_S = 0.5
_ELSEWHERE = "or name another directory with -o"
_DAMAGED = f"is damaged, or no journal; delete the file to simulate all points again, {_ELSEWHERE}"
# A database of a temporary file that SQLite itself makes and removes.
_TEMPORARY = ""

Outcome = bytes | str
"""The result of a point in JSON, or the reason why it is refused."""

_TABLE = """CREATE TABLE points (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    result TEXT,
    refused TEXT,
    point TEXT,
    CHECK ((result IS NULL) != (refused IS NULL))
)"""
_TABLES = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
_ADD = "INSERT INTO points (key, result, refused, point) VALUES (?, CAST(? AS TEXT), ?, CAST(? AS TEXT))"


class Entry(NamedTuple):
    """A point with what it came to; its values of the swept keys are for people who read why it is refused."""

    key: str
    outcome: Outcome
    values: Mapping[str, object]


class _Unread(RunResult, frozen=True, kw_only=True, gc=False):
    """A result whose scenario is left as it is: a point has it, too, and reading it would take most of the time."""

    scenario: msgspec.Raw  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check nothing here: with the scenario of the point it is checked."""


class Journal:
    """The finished points of a sweep, locked as long as it is open.

    Example: `with Journal(Path("out")) as journal: journal.append([Entry(key, result, {})], seconds)`.

    Attributes:
        path: of the file.
        last_before: place of the last point that it had when it was opened; places count from 1.
    """

    def __init__(self, directory: Path | None) -> None:
        """Open or make the journal of a directory; without one it is temporary. What is refused is left as it was."""
        self.path = (directory or Path()) / NAME
        target = _TEMPORARY if directory is None else str(_target(directory))
        try:
            self._database = sqlite3.connect(target, timeout=BUSY_S, isolation_level=None)
            try:
                self.last_before = self._opened()
            except BaseException:
                self._database.close()
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message quotes what it does not understand
            raise self._explained(error) from error
        self._waiting_s, self._committed_at_s = 0.0, time.monotonic()

    def _opened(self) -> int:
        """Lock the file, make the table where there is none, and return the last place."""
        database = self._database
        # One process reads and writes the file at a time, so the lock is kept from here on. That also spares SQLite the
        # memory that processes share for its write-ahead log, which file systems over a network do not have: the
        # rollback journal, the default, needs locks of the file and nothing else.
        database.execute("BEGIN EXCLUSIVE")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.text_factory = bytes
        tables = [str(text, errors="replace") for (text,) in database.execute(_TABLES)]
        if not tables:
            database.execute(_TABLE)
        elif tables != [_TABLE]:
            raise SimnetError(f"{self.path}: no journal of this version of simnet; delete it, {_ELSEWHERE}")
        # The whole file is read for that. Else damage might be found after hours, with new points in the file.
        if [finding for (finding,) in database.execute("PRAGMA integrity_check(1)")] != [b"ok"]:
            raise SimnetError(f"{self.path}: {_DAMAGED}")
        database.execute("COMMIT")
        ((last,),) = database.execute("SELECT max(place) FROM points")
        return last or 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # After an error, too: Ctrl-C loses nothing. What a full disk has refused is refused again.
            with suppress(*([SimnetError] if error else [])):
                self._commit()
        finally:
            self._database.close()

    def append(self, entries: Iterable[Entry], seconds: float) -> list[int]:
        """Add finished points, which outlive a kill after `COMMIT_S` of work at the latest, and return their places.

        The points are not there yet; together they took so many seconds.
        """
        places = []
        try:
            if not self._database.in_transaction:
                self._database.execute("BEGIN")
            for key, outcome, values in entries:
                is_result = isinstance(outcome, bytes)
                row = (key, outcome, None, None) if is_result else (key, None, outcome, msgspec.json.encode(values))
                places.append(self._database.execute(_ADD, row).lastrowid or 0)
        except sqlite3.Error as error:
            raise self._explained(error) from error
        self._waiting_s += seconds
        if max(self._waiting_s, time.monotonic() - self._committed_at_s) >= COMMIT_S:
            self._commit()
        return places

    def _commit(self) -> None:
        try:
            if self._database.in_transaction:
                self._database.execute("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's message quotes what it does not understand
            raise self._explained(error) from error
        self._waiting_s, self._committed_at_s = 0.0, time.monotonic()

    def place_of(self, key: str) -> int | None:
        """Return the place of a point by the content hash of its scenario; None if it is not there."""
        row = self._fetched("SELECT place FROM points WHERE key = ?", key)
        return None if row is None else int(row[0])

    def outcome_at(self, place: int, scenario: Scenario | None = None) -> RunResult | str:
        """Return what a point came to: its result, or the reason why it is refused.

        The scenario in the file is not read where that of the point is at hand.
        """
        question = "SELECT result, refused FROM points WHERE place = ?"
        result, refused = self._fetched(question, place) or (None, None)
        if isinstance(refused, bytes):
            return refused.decode(errors="replace")
        if not isinstance(result, bytes):  # SQLite takes what damaged pages say for other types
            raise SimnetError(f"{self.path}: point {place}: {_DAMAGED}")
        if scenario is not None:
            with suppress(msgspec.DecodeError, ValueError, RecursionError):
                kept = schema.decode_quickly(_Unread, result)
                return RunResult(**{**msgspec.structs.asdict(kept), "scenario": scenario})
        try:
            return schema.decode(RunResult, result, f"{self.path}: point {place}")
        except NotInstalledError as error:
            raise SimnetError(error.in_data) from error
        except SimnetError as error:
            raise SimnetError(f"{error}: {_DAMAGED}") from error

    def _fetched(self, question: str, about: str | int) -> tuple[Any, ...] | None:
        try:
            row: tuple[Any, ...] | None = self._database.execute(question, (about,)).fetchone()
        except sqlite3.Error as error:
            raise self._explained(error) from error
        return row

    def _explained(self, error: Exception) -> SimnetError:
        """Return an error of SQLite as a sentence."""
        kind = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the other bits say more of the kind
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SimnetError(f"{self.path.parent}: another sweep is writing here; wait for it, {_ELSEWHERE}")
        if kind in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return SimnetError(f"{self.path}: cannot be written ({error}); name another directory with -o")
        if kind in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            rule = f"make room: the same sweep resumes from the finished points; {_ELSEWHERE}"
            return SimnetError(f"{self.path}: cannot be written ({error}); {rule}")
        return SimnetError(f"{self.path}: {_DAMAGED}")


def _target(directory: Path) -> Path:
    """Make the directory, check that a file can be written there, and return where it is, links followed."""
    path = directory / NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise SimnetError(f"{path}: not a regular file; remove it, or name another with -o")
        target = write_target(path, directory)
        # SQLite does not say why a file cannot be made. Never opened where it exists: closing it would end the lock
        # that another journal of this process has.
        if not target.exists():
            with suppress(FileExistsError):  # another sweep was faster
                target.touch(exist_ok=False)
        # SQLite reads what it cannot write, and says so when the first points are finished.
        if not all(os.access(place, os.W_OK) for place in (target.parent, target)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise write_error(directory, error) from error
    return target
