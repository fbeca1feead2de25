"""The shipped parts: clusters, workloads, calibrations and experiments, found by name from any directory."""

import json
import stat
import tomllib
from functools import cache
from pathlib import Path

from simnet.errors import SimnetError, nearest

KINDS: dict[str, str] = {
    "clusters": "cluster",
    "workloads": "workload",
    "calibrations": "calibration",
    "experiments": "experiment",
    "gradients": "gradients",
    "convergence": "convergence",
}
_SUFFIX = {"gradients": ".json", "convergence": ".json"}


@cache
def root() -> Path:
    """Return the folder of the shipped data: inside the installed package, or `scenarios/` of a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_scenarios"
    return installed if installed.is_dir() else package.parent / "scenarios"


def data_path(*parts: str) -> Path:
    """Return the path of a shipped file or folder, such as `data_path("published", "measurements.csv")`."""
    return root().joinpath(*parts)


def folder(kind: str) -> Path:
    """Return the folder that holds the shipped parts of a kind.

    Raises:
        SimnetError: the kind is unknown.
    """
    if kind not in KINDS:
        raise SimnetError(f"{kind!r}: unknown kind of part.{nearest(kind, KINDS)}")
    return data_path("workloads", "gradients") if kind == "gradients" else data_path(kind)


def names(kind: str) -> tuple[str, ...]:
    """Return the names of the shipped parts of a kind, sorted.

    Raises:
        SimnetError: the kind is unknown.

    Example:
        >>> "resnet50" in names("gradients")
        True
    """
    return tuple(sorted(path.stem for path in folder(kind).glob(f"*{_SUFFIX.get(kind, '.toml')}")))


def is_path(name: str) -> bool:
    """Tell whether a name is meant as the path of a file."""
    return name.endswith((".toml", ".json")) or "/" in name


def locate(kind: str, name: str, directory: Path = Path()) -> Path:
    """Return the file of a part.

    Args:
        kind: one of `KINDS`.
        name: name of a shipped part, or path of a `.toml` or `.json` file.
        directory: where a relative path starts.

    Raises:
        SimnetError: there is no such part or file.
    """
    if is_path(name):
        _check_file(directory / name, name, kind)
        return directory / name
    known = names(kind)
    if name not in known:
        raise SimnetError(f"{name!r}: unknown {KINDS[kind]}.{nearest(name, known)}")
    return folder(kind) / f"{name}{_SUFFIX.get(kind, '.toml')}"


def _check_file(path: Path, name: str, kind: str) -> None:
    """Check that there is a file at a path, named as the user wrote it."""
    wanted = f"the path of a {_SUFFIX.get(kind, '.toml')} file"
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a null character
        raise SimnetError(f"{name!r}: no such file; give {wanted}, or one name of: simnet list {kind}") from error
    except OSError as error:
        raise SimnetError(f"{name!r}: cannot be read: {error.strerror}") from error
    if not is_file:
        raise SimnetError(f"{name!r}: not a regular file; give {wanted}")


def gradients_path(name: str) -> Path:
    """Return the file of a workload's gradients, by name or path.

    Raises:
        SimnetError: there is none.
    """
    try:
        return locate("gradients", name)
    except SimnetError as error:
        raise SimnetError(f"workload.gradients: {error}") from error


def label(path: Path) -> str:
    """Return how messages call a file: as the user wrote it, and a shipped one by its folder and name."""
    return str(path.relative_to(root())) if path.is_relative_to(root()) else str(path)


def read(kind: str, name: str, directory: Path = Path()) -> dict[str, object]:
    """Read a part as it stands in its file.

    Args:
        kind: one of `KINDS`.
        name: name of a shipped part, or path of a `.toml` or `.json` file.
        directory: where a relative path starts.

    Raises:
        SimnetError: there is no such part, or the file cannot be read.
    """
    return read_file(locate(kind, name, directory))


def _read_json(text: str) -> object:
    """Read JSON as strictly as TOML is read: no key twice, no half of a character."""
    data = json.loads(text, object_pairs_hook=_table)
    try:
        if "\\ud" in text.lower():
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start : error.end]
        raise ValueError(f"{half!r}: is half of a character; write it whole, or drop it") from error
    return data


def _table(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} comes twice in one object; drop one of them")
        table[key] = value
    return table


def read_file(path: Path) -> dict[str, object]:
    """Read a TOML or JSON file that holds one table.

    Raises:
        SimnetError: the file cannot be read, or does not hold one table.
    """
    language = "JSON" if path.suffix == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = _read_json(text) if language == "JSON" else tomllib.loads(text)
    except OSError as error:
        raise SimnetError(f"{label(path)}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SimnetError(f"{label(path)}: not {language}: {error}") from error
    if not isinstance(data, dict):
        raise SimnetError(f"{label(path)}: {type(data).__name__}: must hold one object with keys")
    return data
