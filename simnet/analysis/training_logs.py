"""Read the loss curves of a file or folder, whichever program wrote it."""

from collections.abc import Sequence
from pathlib import Path

from simnet.analysis import log_rows as rows
from simnet.analysis import log_table as table
from simnet.analysis import tensorboard_file as event_file
from simnet.analysis.loss_curve import LoggedCurve, Point, checked
from simnet.analysis.tensorboard_file import EventFile
from simnet.core import files
from simnet.core.errors import SimnetError, cut, shown

EVENTS = "tfevents"
_PARQUET, _JSON = b"PAR1", (b"{", b"[")


def read_curves(path: Path, metric: str | None) -> tuple[LoggedCurve, ...]:
    """Return the curves of a table (CSV, JSON), of an event file, or of the event files of one run in a folder.

    Args:
        path: of the file or folder.
        metric: the column or tag to take; default "loss", or the only one there is.

    Raises:
        SimnetError: it cannot be read, is of another kind, or its curves do not hold together.
    """
    if is_folder(path):
        return _events(path, _event_files(path), metric)
    data = files.gunzipped(files.read_bytes(path), path)
    if EVENTS in path.name or event_file.looks_like(data):
        return _events(path, [path], metric)
    if data.startswith(_PARQUET):
        raise SimnetError(f"{path}: is parquet, which is not read; save it as CSV (pandas: to_csv)")
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_JSON):
        return table.curves_in(rows.from_json(data, path), metric)
    if b"\0" in data[:4096]:
        raise SimnetError(f"{path}: not text; give CSV, JSON, or an event file of TensorBoard")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SimnetError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    return table.curves_in(rows.from_csv(text, path), metric)


def is_there(path: Path) -> bool:
    """Tell whether there is something at a path, which may be no name of a file at all."""
    try:
        return path.exists()
    except OSError:  # too long
        return False


def is_folder(path: Path) -> bool:
    """Tell whether there is a folder at a path."""
    return is_there(path) and path.is_dir()


def _event_files(folder: Path) -> list[Path]:
    """Return the event files of one run: those that lie in the folder itself."""
    try:
        found = sorted(path for path in folder.iterdir() if EVENTS in path.name and path.is_file())
        if found:
            return found
        inner = sorted({path.parent.name for path in folder.glob(f"*/*{EVENTS}*")})
    except OSError as error:
        raise SimnetError(f"{folder}: cannot be read: {error.strerror}") from error
    if inner:
        names = cut(", ".join(map(repr, inner)), 160)
        raise SimnetError(f"{folder}: holds several runs: {names}; name the folder of one run for each system")
    raise SimnetError(f"{folder}: no event file of TensorBoard in it; name a folder with events.out.tfevents.*")


def _events(where: Path, paths: Sequence[Path], metric: str | None) -> tuple[LoggedCurve, ...]:
    found = [(path, event_file.parse(files.read_bytes(path), str(path))) for path in paths]
    found.sort(key=lambda one: one[1].started_s)
    tag = _tag([one for _, one in found], metric, where)
    points: list[Point] = []
    notes: list[str] = []
    for path, events in found:
        own = [Point(f"{path}: {shown(tag)}", step, value) for name, step, value in events.scalars if name == tag]
        # A training that was resumed writes a further file, from the step of its checkpoint on, as TensorBoard has it.
        kept = [point for point in points if not own or point.position < own[0].position]
        if len(kept) < len(points):
            notes.append(
                f"{path}: begins again at step {own[0].position}: {len(points) - len(kept)} values of earlier files "
                "from there on are left out"
            )
        points = [*kept, *own]
    positions, values = checked(points, str(where), tag)
    return (
        LoggedCurve(
            where=str(where), metric=tag, counted="steps", positions=positions, values=values, notes=tuple(notes)
        ),
    )


def _tag(found: Sequence[EventFile], metric: str | None, where: Path) -> str:
    tags = list(dict.fromkeys(scalar.tag for events in found for scalar in events.scalars))
    if not tags:
        raise SimnetError(
            f"{where}: no scalars in it; log the loss with SummaryWriter.add_scalar, or give another file"
        )
    if metric is not None:
        if metric not in tags:
            raise SimnetError(f"{where}: no tag {shown(metric)}; name one with --metric: {_listed(tags)}")
        return metric
    usual = [tag for tag in tags if tag.lower() in table.LOSSES]
    if len(usual or tags) > 1:
        raise SimnetError(f"{where}: several tags may be the loss: choose one with --metric: {_listed(tags)}")
    return (usual or tags)[0]


def _listed(names: Sequence[str]) -> str:
    return cut(", ".join(map(repr, names)), 160)
