"""Compute rows of workloads from the models that a card measured, put into the workload files as they stand."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import tomli_w

from simnet.calibration.card_folder import CardFolder, versions_text
from simnet.calibration.fit import Floats
from simnet.calibration.measurement_file import Series
from simnet.core.errors import SimnetError
from simnet.core.parsing import parse_toml
from simnet.core.schema import build
from simnet.workload.workload import ComputeTime, Workload

PRECISIONS = {"fp16": "amp"}
"""Names in workloads of measured precisions, where the two differ: autocast to fp16 is NVIDIA's "amp"."""
REPLACED = ("derived", "measured")
"""Kinds of rows that a measurement of the same card and precision replaces; published rows stay as they are."""
# A table's head at the begin of a line: "[[compute]]", "[run]", '["a.b"]'.
_HEAD = re.compile(r"""\[\[?[\w\-."' ]+\]\]?\s*(#.*)?""")


@dataclass(frozen=True, kw_only=True)
class MeasuredPass:
    """Forward and backward of a model at one batch, in one precision.

    Attributes:
        model: name of a workload.
        precision: as workloads name it.
        batch: samples.
        forward_s: every repetition [s].
        backward_s: every repetition [s].
        layout: of the tensors, where it is not PyTorch's default: "channels_last".
    """

    model: str
    precision: str
    batch: int
    forward_s: Floats
    backward_s: Floats
    layout: str = ""

    @property
    def compute_s(self) -> float:
        """Median of forward and backward together [s]."""
        return float(np.median(self.forward_s + self.backward_s))

    @property
    def samples_per_s(self) -> float:
        """Samples per second, without an optimizer."""
        return self.batch / self.compute_s


def measured_passes(folder: CardFolder) -> list[MeasuredPass]:
    """Return the models that were measured, in the order of the file, each in its fastest layout."""
    forward, backward = (_by_labels(folder.series("models", "model", name)) for name in ("forward", "backward"))
    fastest: dict[tuple[str, str, int], MeasuredPass] = {}
    for labels, values in forward.items():
        others = backward.get(labels)
        model, precision, batch, layout = labels
        if others is None or len(others) != len(values):
            raise SimnetError(
                f"{folder.path / 'models.json'}: {model} in {precision} at {batch} samples: must have as many times of "
                "backward as of forward; measure again with --only models"
            )
        measured = MeasuredPass(
            model=model,
            precision=PRECISIONS.get(precision, precision),
            batch=batch,
            forward_s=values,
            backward_s=others,
            layout=layout,
        )
        known = fastest.setdefault((model, precision, batch), measured)
        # Whoever trains takes the faster layout of tensors.
        if measured.compute_s < known.compute_s:
            fastest[model, precision, batch] = measured
    return list(fastest.values())


Case = tuple[str, str, int, str]  # model, precision, batch and layout


def _case(series: Series) -> Case:
    model, precision, layout = (str(series.labels.get(label, "")) for label in ("model", "precision", "layout"))
    return model, precision or "fp32", series.count("batch"), layout


def _by_labels(series: Sequence[Series]) -> dict[Case, Floats]:
    return {_case(timed): np.array(timed.values, dtype=np.float64) for timed in series}


def with_rows(text: str, passes: Sequence[MeasuredPass], folder: CardFolder, where: str) -> str:
    """Return a workload file with the rows of measured passes in place of those that they replace.

    Comments, and the order of everything else, stay. The precision that stood first of the card's rows stays first.

    Args:
        text: of the workload file.
        passes: of this workload, at least one.
        folder: of the card.
        where: how messages call the file.

    Raises:
        SimnetError: the file has no compute rows, or cannot be changed without loss.
    """
    before = parse_toml(text, where)
    old = build(Workload, {"name": where, **before}, where).compute
    if not old:
        raise SimnetError(f"{where}: compute: has no rows to add to; give a workload with compute rows")
    measured = {measured.precision for measured in passes}
    is_gone = [row.gpu == folder.label and row.kind in REPLACED and row.precision in measured for row in old]
    rows = _rows(passes, folder, old)
    changed = _replaced(text, is_gone, rows, where)
    _check(changed, before, is_gone, rows, where)
    return changed


def _rows(passes: Sequence[MeasuredPass], folder: CardFolder, old: Sequence[ComputeTime]) -> list[dict[str, object]]:
    """Return the rows, the precisions in the order of the card's old rows, else of all old ones, and fp32 at the end.

    A workload that names no precision takes that of the card's first row.
    """
    precisions = [row.precision for row in old if row.gpu == folder.label]
    others = [*(row.precision for row in old), *(measured.precision for measured in passes)]
    order = list(dict.fromkeys([*precisions, *(name for name in others if name != "fp32"), "fp32"]))
    date = folder.about.created[:10]
    what = f"forward and backward of one {folder.label}, {versions_text(folder)}"
    source = f"models.json of simnet measure gpu, {date}: {what}"
    return [
        {
            "gpu": folder.label,
            "precision": measured.precision,
            "batch": measured.batch,
            "samples_per_s": float(f"{measured.samples_per_s:.4g}"),
            "optimizer": old[0].optimizer,
            "includes_optimizer": False,
            "kind": "measured",
            "source": source + (f", {measured.layout}" if measured.layout else ""),
        }
        for measured in sorted(passes, key=lambda measured: (order.index(measured.precision), measured.batch))
    ]


def _replaced(text: str, is_gone: Sequence[bool], rows: Sequence[object], where: str) -> str:
    """Return a file with rows in place of the first of those that are gone, or after its last row."""
    parts = _segments(text)
    places = [place for place, part in enumerate(parts) if _head_of(part) == "[[compute]]"]
    if len(places) != len(is_gone):
        raise _unchangeable(where)
    gone = {place for place, is_one in zip(places, is_gone, strict=True) if is_one}
    place = min(gone) if gone else places[-1] + 1
    kept = [_without_table(part) if number in gone else part for number, part in enumerate(parts)]
    pieces = ("".join(kept[:place]), tomli_w.dumps({"compute": rows}), "".join(kept[place:]))
    return "\n\n".join(piece.strip("\n") for piece in pieces if piece.strip("\n")) + "\n"


def _segments(text: str) -> list[str]:
    """Return a TOML file cut before each head of a table; text of several lines is not looked into."""
    starts, place, quotes = [0], 0, ""
    for line in text.splitlines(keepends=True):
        if not quotes and _HEAD.fullmatch(line.rstrip()) and place:
            starts.append(place)
        for mark in ('"""', "'''"):
            if quotes in ("", mark) and line.count(mark) % 2:
                quotes = "" if quotes else mark
        place += len(line)
    return [text[start:end] for start, end in pairwise([*starts, len(text)])]


def _head_of(part: str) -> str:
    return part.partition("\n")[0].partition("#")[0].replace(" ", "").strip()


def _without_table(part: str) -> str:
    """Return what of a segment follows its last key: comments that belong to the next table."""
    lines = part.splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if line.strip() and not line.startswith("#"))
    return "".join(lines[last + 1 :])


def _check(
    changed: str, before: Mapping[str, object], is_gone: Sequence[bool], rows: Sequence[object], where: str
) -> None:
    """Refuse a change that would lose or alter anything else of the file."""
    try:
        after = parse_toml(changed, where)
    except SimnetError as error:
        raise _unchangeable(where) from error
    old, new = before["compute"], after["compute"]
    assert isinstance(old, list)
    assert isinstance(new, list)
    kept = [row for row, is_one in zip(old, is_gone, strict=True) if not is_one]
    others = [{key: value for key, value in whole.items() if key != "compute"} for whole in (before, after)]
    if others[0] != others[1] or [row for row in new if row not in rows] != kept or len(new) != len(kept) + len(rows):
        raise _unchangeable(where)
    build(Workload, {"name": where, **after}, where)


def _unchangeable(where: str) -> SimnetError:
    return SimnetError(
        f"{where}: compute: the rows cannot be changed in place: write each as a [[compute]] table of its own lines"
    )
