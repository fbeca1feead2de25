"""Read the keys and values of the command line: `--set KEY=VALUE`, `--point KEY=VALUE,...`, a CSV file of points."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from simnet.core.errors import SimnetError, shown
from simnet.core.files import MAX_TOML_BYTES, label, read_text
from simnet.core.parsing import LONG_NUMBER, check_plain, csv_rows
from simnet.engine.axes import PointList, point_list

# A quoted text, a bracketed list or table (nested once), or any other character but a comma.
_PIECE = re.compile(r"""(?:"[^"]*"|'[^']*'|\[(?:[^][]|\[[^][]*\])*\]|\{(?:[^{}]|\{[^{}]*\})*\}|[^,])+""")


def read_settings(texts: Iterable[str]) -> dict[str, object]:
    """Read "KEY=VALUE" texts, each with one value."""
    return {key: read_value(value) for key, value in _split(texts).items()}


def read_axes(texts: Iterable[str]) -> tuple[dict[str, object], dict[str, tuple[object, ...]]]:
    """Read "KEY=V1,V2,..." texts: those with one value as settings, those with several as axes."""
    values = {key: read_values(text) for key, text in _split(texts).items()}
    settings = {key: several[0] for key, several in values.items() if len(several) == 1}
    return settings, {key: several for key, several in values.items() if len(several) > 1}


def read_points(texts: Sequence[str]) -> PointList:
    """Read the "KEY=V,KEY=V,..." texts of at least one --point."""
    points = []
    for text in texts:
        pieces = [piece.strip() for piece in _PIECE.findall(text)]
        points.append({key: read_value(value) for key, value in _split(pieces, "--point").items()})
    where = [f"--point {shown(text)}" for text in texts]
    return point_list(points, where, "--point", Path())


def read_points_file(path: Path) -> PointList:
    """Read a CSV file of points: dotted keys in the head, a point in each line."""
    where = label(path)
    rows = csv_rows(read_text(path, MAX_TOML_BYTES))
    keys = next(rows, (1, []))[1]
    for key in keys:
        if not all(key.split(".")):
            raise SimnetError(f"{where}: {shown(key)}: is no key; write keys in the head, such as cluster.num_nodes")
        if keys.count(key) > 1:
            raise SimnetError(f"{where}: {shown(key)}: two columns; drop one")
    points, places = [], []
    for number, cells in rows:
        places.append(f"{where}:{number}")
        if len(cells) != len(keys) or not all(cells):
            values = len(list(filter(None, cells)))
            raise SimnetError(f"{places[-1]}: {values} values: the head has {len(keys)} keys; give a value for each")
        points.append({key: read_value(cell) for key, cell in zip(keys, cells, strict=True)})
    if not points:
        raise SimnetError(f"{where}: no points: write keys in the head, and a line of values for each point")
    return point_list(points, places, where, path.parent)


def add_draws(settings: dict[str, object], draws: int | None) -> None:
    """Add the value of `--draws` to the settings of `--set`."""
    if draws is None:
        return
    if "run.draws" in settings:
        raise SimnetError("--draws: has no effect with run.draws; drop one of the two")
    settings["run.draws"] = draws


def read_value(text: str) -> object:
    """Read one value: TOML if it is a TOML number, boolean, text, list or table, else text.

    Example:
        >>> read_value("16"), read_value("10 Gbit/s"), read_value("[1, 2]")
        (16, '10 Gbit/s', [1, 2])
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    except ValueError as error:  # a number that Python does not read: more than 4,300 digits
        raise SimnetError(f"{shown(text)}: {LONG_NUMBER}") from error
    check_plain(table, shown(text))
    value = table["value"]
    return value if len(table) == 1 and isinstance(value, bool | int | float | str | list | dict) else text


def read_values(text: str) -> tuple[object, ...]:
    """Read values between commas; a comma inside quotes or brackets does not separate.

    Example:
        >>> read_values("10 Gbit/s,25 Gbit/s"), read_values("[1,2],[3]")
        (('10 Gbit/s', '25 Gbit/s'), ([1, 2], [3]))
    """
    return tuple(read_value(piece.strip()) for piece in _PIECE.findall(text))


def _split(texts: Iterable[str], option: str = "--set") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if not all(key.split(".")) or not value:
            raise SimnetError(f"{option}: {shown(text)}: write KEY=VALUE, such as cluster.num_nodes=16")
        if key in pairs:
            raise SimnetError(f"{option}: {shown(text)}: {shown(key)} set twice; drop one")
        pairs[key] = value
    return pairs
