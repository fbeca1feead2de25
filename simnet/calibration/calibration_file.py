"""Merge fitted parts into a calibration file, checked before it is written."""

from collections.abc import Mapping, Sequence

from simnet.calibration import provenance
from simnet.calibration.fit import FittedPart
from simnet.calibration.sources import Sources
from simnet.cluster.hardware import Calibration
from simnet.core.errors import SimnetError
from simnet.core.schema import build


def merge(parts: Sequence[FittedPart], head: Mapping[str, object]) -> dict[str, object]:
    """Return the calibration of all parts, in file form.

    Args:
        parts: fitted parts without a common key.
        head: `title`, `kind`, `gpu` and `source`.

    Raises:
        SimnetError: two parts have a common key, or the result is no valid calibration.
    """
    whole: dict[str, object] = dict(head)
    intervals: dict[str, object] = {}
    for part in parts:
        for key, value in part.table.items():
            whole[key] = _joined(key, whole.get(key), value)
        intervals |= {key: [round(low, 4), round(high, 4)] for key, (low, high) in part.intervals.items()}
    if intervals:
        whole["intervals"] = intervals
    as_calibration(whole)
    return whole


def as_calibration(whole: Mapping[str, object]) -> Calibration:
    """Return the calibration that the simulator reads from a file form."""
    return build(Calibration, {"name": "fitted", **whole}, "the fitted calibration")


def text(whole: Mapping[str, object], comments: Sequence[str]) -> str:
    """Return a calibration as TOML below some lines of comment."""
    import tomli_w

    # A line break in a name would end the comment: what does not print becomes "?".
    lines = [
        f"# {''.join(character if character.isprintable() else '?' for character in comment)}" for comment in comments
    ]
    return "\n".join([*lines, tomli_w.dumps(whole)])


def _joined(key: str, old: object, new: object) -> object:
    if old is None:
        return new
    # Kernels and links come from several parts; the same value twice would be a silent choice between files.
    if isinstance(old, dict) and isinstance(new, Mapping) and not set(old) & set(new):
        return {**old, **new}
    raise SimnetError(f"{key}: two files give a value; calibrate each alone, or drop one")


def header(train: Sources, in_place: Sources, nic_bytes_per_s: float = 0.0) -> dict[str, object]:
    """Return title, kind, GPU, source and fitted files of a calibration.

    Args:
        train: fitted files.
        in_place: files that were fitted as measured in place.
        nic_bytes_per_s: bandwidth of all NICs of a node on which step times were measured.
    """
    names = ", ".join([*train.names, *(f"{name} (in place)" for name in in_place.names)])
    files = [*train.files, *in_place.files]
    dates = sorted({whole.created[:10] for _, whole in files})
    source = f"simnet calibrate {names}" + (f"; measured {' and '.join(dates)}" if dates else "")
    gpu = {"gpu": train.gpu} if train.gpu else {}
    entries = provenance.fitted_to(files) + provenance.fitted_to_tables(train.tables, nic_bytes_per_s)
    fitted_to = {"fitted_to": entries} if entries else {}
    return {"title": f"Fitted to {names}", "kind": "measured", **gpu, "source": source, **fitted_to}


def comment(train: Sources, in_place: Sources) -> str:
    """Return the first line of a calibration file."""
    return f"Fitted by simnet calibrate to {', '.join([*train.names, *in_place.names])}"
