"""Put fitted parts together to a calibration file, checked before it is written."""

from collections.abc import Mapping, Sequence

from simnet.calibrate import provenance
from simnet.calibrate.fitted_part import FittedPart
from simnet.calibrate.sources import Sources
from simnet.errors import SimnetError
from simnet.hardware import Calibration
from simnet.schema import build


def merge(parts: Sequence[FittedPart], head: Mapping[str, object]) -> dict[str, object]:
    """Return one calibration of all parts, in file form.

    Args:
        parts: what was fitted; no two may tell the same key.
        head: `title`, `kind`, `gpu` and `source`.

    Raises:
        SimnetError: two parts tell the same key, or the whole is no calibration.
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
    """Return a calibration in file form as the simulator reads it.

    Raises:
        SimnetError: it is none.
    """
    return build(Calibration, {"name": "fitted", **whole}, "the fitted calibration")


def text(whole: Mapping[str, object], comments: Sequence[str]) -> str:
    """Return the TOML of a calibration, with comments above it."""
    import tomli_w

    lines = [f"# {''.join(one if one.isprintable() else '?' for one in comment)}" for comment in comments]
    return "\n".join([*lines, tomli_w.dumps(whole)])


def _joined(key: str, old: object, new: object) -> object:
    if old is None:
        return new
    if isinstance(old, dict) and isinstance(new, Mapping) and not set(old) & set(new):
        return {**old, **new}
    raise SimnetError(f"{key}: two of the files tell it: calibrate each alone, or leave one out")


def header(train: Sources, in_place: Sources) -> dict[str, object]:
    """Return title, kind, GPU, source and measurements of a calibration of files."""
    names = ", ".join([*train.names, *(f"{name} (in place)" for name in in_place.names)])
    files = [*train.files, *in_place.files]
    dates = sorted({whole.created[:10] for _, whole in files})
    source = f"simnet calibrate {names}" + (f"; measured {' and '.join(dates)}" if dates else "")
    gpu = {"gpu": train.gpu} if train.gpu else {}
    fitted_to = {"fitted_to": provenance.fitted_to(files)} if files else {}
    return {"title": f"Fitted to {names}", "kind": "measured", **gpu, "source": source, **fitted_to}


def comment(train: Sources, in_place: Sources) -> str:
    """Return what stands above a calibration."""
    return f"Fitted by simnet calibrate to {', '.join([*train.names, *in_place.names])}"
