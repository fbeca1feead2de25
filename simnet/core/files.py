"""The one place that finds, reads and writes files.

The shipped parts (clusters, workloads, calibrations, experiments) are found by name from any directory.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import IO, Literal

from simnet.core.errors import SimnetError, did_you_mean, nearest, shown
from simnet.core.parsing import parse_json, parse_toml

KINDS: dict[str, str] = {
    "clusters": "cluster",
    "workloads": "workload",
    "calibrations": "calibration",
    "experiments": "experiment",
    "gradients": "gradients",
    "convergence": "convergence",
    "gpus": "GPU",
}
_SUFFIX = {"gradients": ".json", "convergence": ".json"}
# A larger file is a mistake or an attack: a profiler's trace has some hundred megabytes, a file by hand some hundred
# kilobytes; tomllib reads about a megabyte a second.
MAX_BYTES, MAX_TOML_BYTES = 2**29, 2**24
_GZIP = b"\x1f\x8b"
# The files that a command has read, by device and number, as long as somebody asks: none of them may be replaced.
_inputs: ContextVar[dict[tuple[int, int], Path] | None] = ContextVar("inputs", default=None)


@cache
def installed_or_checkout(installed: str, checkout: str) -> Path:
    """Return a folder of data: `installed` inside the installed package, or else `checkout` of a checkout."""
    package = Path(__file__).resolve().parents[1]
    folder = package / installed
    return folder if folder.is_dir() else package.parent / checkout


def root() -> Path:
    """Return the folder of the shipped data: inside the installed package, or `scenarios/` of a checkout."""
    return installed_or_checkout("_scenarios", "scenarios")


def data_path(*parts: str) -> Path:
    """Return the path of a shipped file or folder, such as `data_path("published", "measurements.csv")`."""
    return root().joinpath(*parts)


def folder(kind: str) -> Path:
    """Return the folder that holds the shipped parts of a kind."""
    if kind not in KINDS:
        raise SimnetError(f"{kind!r}: unknown kind of part.{did_you_mean(kind, KINDS)}")
    return data_path("workloads", "gradients") if kind == "gradients" else data_path(kind)


def names(kind: str) -> tuple[str, ...]:
    """Return the names of the shipped parts of a kind, sorted.

    Example:
        >>> "resnet50" in names("gradients")
        True
    """
    return tuple(sorted(path.stem for path in folder(kind).glob(f"*{_SUFFIX.get(kind, '.toml')}")))


def is_path(name: str) -> bool:
    """Tell whether a name is meant as the path of a file: with a suffix or a slash, which no shipped name has."""
    return "/" in name or Path(name).suffix != ""


def locate(kind: str, name: str, directory: Path = Path()) -> Path:
    """Return the file of a part of one of the `KINDS`: a shipped one by its name, or a path from a directory."""
    if is_path(name):
        _check_file(directory / name, name, kind)
        return directory / name
    known, file_name = names(kind), f"{name}{_SUFFIX.get(kind, '.toml')}"
    if name not in known:
        is_there = os.path.isfile(directory / file_name)  # noqa: PTH113 - Path's own fails on a name that is too long
        hint = f" Did you mean {file_name!r}?" if is_there else did_you_mean(name, known)
        raise SimnetError(f"{shown(name)}: unknown {KINDS[kind]}.{hint}")
    return folder(kind) / file_name


def _check_file(path: Path, name: str, kind: str) -> None:
    """Check that there is a file at a path, named as the user wrote it."""
    wanted = f"the path of a {_SUFFIX.get(kind, '.toml')} file"
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a null character
        otherwise = f"give {wanted}, or one name of: simnet show {kind}"
        raise _no_such_file(shown(name), path, Path(name), otherwise) from error
    except OSError as error:
        raise SimnetError(f"{shown(name)}: cannot be read: {error.strerror}") from error
    if not is_file:
        raise SimnetError(f"{shown(name)}: not a regular file; give {wanted}")


def _no_such_file(where: str, path: Path, written: Path, otherwise: str = "") -> SimnetError:
    """Return the error of a path without a file: a question for the nearest name of its folder, if one is near."""
    try:
        near = nearest(path.name, (file.name for file in path.parent.iterdir()))
    except (OSError, ValueError):
        near = None
    repair = otherwise if near is None else f"did you mean {str(written.with_name(near))!r}?"
    return SimnetError("; ".join(filter(None, (f"{where}: no such file", repair))))


def gradients_path(name: str) -> Path:
    """Return the file of a workload's gradients, by name or path."""
    try:
        return locate("gradients", name)
    except SimnetError as error:
        raise SimnetError(f"workload.gradients: {error}") from error


def label(path: Path) -> str:
    """Return how messages call a file: as the user wrote it, and a shipped one by its folder and name."""
    return str(path.relative_to(root())) if path.is_relative_to(root()) else str(path)


def read(kind: str, name: str, directory: Path = Path()) -> dict[str, object]:
    """Read a part as it stands in the file that `locate` finds.

    Raises:
        SimnetError: there is no such part, or the file cannot be read.
    """
    return read_file(locate(kind, name, directory))


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes whole; a pipe, a device or a folder is refused at once.

    Raises:
        SimnetError: it cannot be read, is no regular file, or is too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe without a writer would wait for one
        with os.fdopen(handle, "rb") as file:
            about = os.fstat(handle)
            _check_readable(path, about, limit)
            data = file.read()
    except FileNotFoundError as error:
        raise _no_such_file(label(path), path, path) from error
    except OSError as error:
        raise SimnetError(f"{label(path)}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SimnetError(f"{label(path)}: not a file name: {error}") from error  # a null character
    _note_input(about, path)
    return data


def _check_readable(path: Path, about: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise SimnetError(f"{label(path)}: not a regular file; give a file on a disk")
    if about.st_size > limit:
        raise _too_large(path, limit)


def _too_large(path: Path, limit: int) -> SimnetError:
    return SimnetError(f"{label(path)}: larger than {limit >> 20} MiB, the most that is read; give a smaller file")


def gunzipped(data: bytes, path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the data of a file, unpacked to at most `limit` bytes if they are packed by gzip."""
    if not data.startswith(_GZIP):
        return data
    import gzip
    import io
    import zlib

    parts: list[bytes] = []
    room = limit
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while part := file.read(2**20):
                parts.append(part)
                room -= len(part)
                if room < 0:
                    raise _too_large(path, limit)
    except (OSError, EOFError, zlib.error) as error:
        raise SimnetError(f"{label(path)}: damaged or incomplete gzip; copy it again") from error
    return b"".join(parts)


def read_text(path: Path, limit: int = MAX_BYTES, errors: Literal["strict", "replace"] = "strict") -> str:
    """Read text in UTF-8, with or without a byte order mark.

    `errors="replace"` puts a question mark for each byte that is no UTF-8, as in the output of other programs.

    Raises:
        SimnetError: as `read_bytes`, or it is no UTF-8.
    """
    try:
        return read_bytes(path, limit).decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise SimnetError(f"{label(path)}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error


def read_json(path: Path, *, unique: bool = True) -> object:
    """Read JSON, packed by gzip or not; `unique` as in `parse_json`.

    Raises:
        SimnetError: the file cannot be read, or is no JSON that `parse_json` takes.
    """
    return parse_json(gunzipped(read_bytes(path), path), label(path), unique=unique)


def read_file(path: Path) -> dict[str, object]:
    """Read a TOML or JSON file that holds one table.

    Raises:
        SimnetError: the file cannot be read, or does not hold one table.
    """
    is_json = path.suffix == ".json"
    data = read_json(path) if is_json else parse_toml(read_text(path, MAX_TOML_BYTES), label(path))
    if not isinstance(data, dict):
        raise SimnetError(f"{label(path)}: {type(data).__name__}: must hold one object with keys")
    return data


def file_stamp(path: Path) -> tuple[int, ...]:
    """Return a stamp that changes with the file, for caches of its content; the file counts as read."""
    try:
        about = path.stat()
    except OSError:
        return ()  # whoever reads the file says why that cannot be done
    _note_input(about, path)
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size


@contextmanager
def watch_inputs() -> Iterator[None]:
    """Remember the files that are read meanwhile, so that `write_file` replaces none of them."""
    token = _inputs.set({})
    try:
        yield
    finally:
        _inputs.reset(token)


def _note_input(about: os.stat_result, path: Path) -> None:
    known = _inputs.get()
    if known is not None:
        known[about.st_dev, about.st_ino] = path


def inputs() -> tuple[Path, ...]:
    """Return the files that were read within `watch_inputs`, in order."""
    return tuple((_inputs.get() or {}).values())


def refuse_input(path: Path) -> None:
    """Check that a place to write to is none of the files that were read within `watch_inputs`, under whatever name.

    Raises:
        SimnetError: it is one.
        OSError: the place cannot be looked at.
    """
    known = _inputs.get()
    if not known or not path.exists():
        return
    about = path.stat()
    if (source := known.get((about.st_dev, about.st_ino))) is not None:
        raise SimnetError(f"{path}: is an input ({label(source)}); name another file")


def write_file(path: Path, data: bytes, inside: Path | None = None) -> None:
    """Write `data` to `path`, making its folder; a reader sees the old file or the new one, never a part.

    A link is followed, but not out of the folder `inside`; a device or a pipe is written to as it is; a file that is
    replaced keeps its mode.

    Raises:
        SimnetError: the folder or the file cannot be written, a link leads out of `inside`, or an input would be lost.
    """
    with writing(path, inside) as file:
        file.write(data)


@contextmanager
def writing(path: Path, inside: Path | None = None) -> Iterator[IO[bytes]]:
    """Yield a file to write to piece by piece, which replaces `path` as `write_file` does once all is written."""
    import tempfile  # which itself imports much

    try:
        refuse_input(path)
        target = write_target(path, inside)
        if is_special(target):
            with target.open("wb") as file:
                yield file
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=".simnet-", dir=target.parent)
    except OSError as error:
        raise write_error(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            os.fchmod(handle, _mode(target))
        os.replace(partial, target)  # noqa: PTH105 - `partial` is a str
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        Path(partial).unlink(missing_ok=True)


def write_target(path: Path, inside: Path | None = None) -> Path:
    """Return where writing to a path leads, links followed.

    Raises:
        SimnetError: a link leads out of the folder `inside`.
        OSError: the place cannot be looked at.
    """
    whole = path.resolve()
    if whole.is_symlink():  # from Python 3.13 on, links that lead in a circle resolve to one of them
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if inside is not None and not whole.is_relative_to(inside.resolve()):
        raise SimnetError(
            f"{path}: a link leads out of {str(inside)!r}; remove the link, or name another directory with -o"
        )
    return whole


def _mode(path: Path) -> int:
    """Return the permission bits of the file that is replaced, or those of a new file: 0o666 less the umask."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    return 0o666 & ~mask


def is_special(path: Path) -> bool:
    """Tell a device or a pipe, which must not be replaced, from a file or a place for one."""
    return path.exists() and not path.is_file()


def write_error(path: Path, error: OSError, option: str = "-o") -> SimnetError:
    """Return the error of a place that cannot be written to."""
    return SimnetError(f"{path}: cannot be written ({error.strerror}); name another with {option}")
