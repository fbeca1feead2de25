"""Write the compute times of a measured model as a workload file."""

import re
from collections.abc import Sequence
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import tomli_w

from simnet.calibration import fit, provenance
from simnet.calibration.fit import Floats, duration_text
from simnet.calibration.measurement_file import MeasurementFile, Series, Setup
from simnet.core.errors import SimnetError, shown
from simnet.core.schema import build
from simnet.workload.workload import Workload

_SHAPE = re.compile(r"\d{1,9}(x\d{1,9})*")
READY = "gradient_ready"


def has_model(measurements: MeasurementFile) -> bool:
    """Return whether a measurement file holds a model for `text_of_model`."""
    return any(series.kind == "model" for series in measurements.series)


def text_of_model(files: Sequence[tuple[Path, MeasurementFile]], draws: int = fit.DRAWS) -> str:
    """Return a workload as TOML: the medians of a measured model, and its gradients in the order of readiness.

    The optimizer is AdamW, as in a dense baseline. A gradient that becomes ready together with the previous one has a
    share of 0. The bootstrap resamples files, and repetitions in each file: several files of one model show the
    difference between one start of the process and the next.

    Raises:
        SimnetError: the files hold no model or several, or lack a part of one.
    """
    model, batch, setup = _only_model(files)
    runs = [_ModelSamples(whole) for _, whole in files]
    if any(run.ready.keys() != runs[0].ready.keys() for run in runs):
        raise SimnetError(
            "--workload: the gradients of the model differ between files; give files of one version of the model"
        )
    point = _times(runs)
    spread = fit.interval_factors(point, partial(_resampled, runs), draws)
    machine = f"{setup.ranks_on_machine} ranks on a machine ({_machine(files[0][1])})"
    forward_s = point["compute"] * point["forward share"]
    whole: dict[str, object] = {
        "title": f"{model}, {batch} samples a rank",
        "source": f"simnet measure model, {machine}, {setup.threads_per_rank} threads each, "
        f"{files[0][1].created[:10]}, medians of {len(files)} starts",
        "batch_per_rank": batch,
        "forward": duration_text(forward_s),
        "backward": duration_text(point["compute"] - forward_s),
        "optimizer": duration_text(point["optimizer"]),
        "tensors": _tensors(runs),
        "intervals": {name: [round(value, 4) for value in spread[name]] for name in ("compute", "optimizer")},
        "fitted_to": provenance.fitted_to(files),
    }
    return checked_text(whole)


class _ModelSamples:
    """The repetitions of a model in one file."""

    def __init__(self, whole: MeasurementFile) -> None:
        self.forward = _values(whole, "forward")
        self.backward = _values(whole, "backward")
        self.optimizer = _values(whole, "optimizer", optimizer="adamw")
        self.ready = {
            str(series.labels["tensor"]): series
            for series in whole.series
            if series.kind == "model" and series.name == READY
        }
        if not self.ready:
            raise SimnetError("--workload: no gradient_ready in the file; give a file of simnet measure model")
        if len(self.forward) != len(self.backward):
            raise SimnetError(
                f"--workload: {len(self.forward)} times of forward and {len(self.backward)} of backward: must be the "
                "same number; measure again"
            )


def _only_model(files: Sequence[tuple[Path, MeasurementFile]]) -> tuple[str, int, Setup]:
    models_timed = [(str(s.labels["model"]), s.count("batch"), whole.setups[s.setup]) for _, whole in files
             for s in whole.series if s.kind == "model"]  # fmt: skip
    models = {(model, batch) for model, batch, _ in models_timed}
    if len(models) != 1:
        raise SimnetError(f"--workload: {len(models)} models: give files of simnet measure model with one")
    ranks = {(setup.ranks_on_machine, setup.threads_per_rank) for *_, setup in models_timed}
    if len(ranks) != 1:
        raise SimnetError("--workload: files with different numbers of ranks on the machine; give files of one number")
    ((model, batch),) = models
    return model, batch, models_timed[0][2]


def _times(runs: Sequence[_ModelSamples]) -> dict[str, float]:
    """Return compute and optimizer [s] and the share of forward, medians over all repetitions of all files."""
    forward, backward = (np.concatenate([getattr(run, name) for run in runs]) for name in ("forward", "backward"))
    return {
        "compute": float(np.median(forward + backward)),
        "forward share": float(np.median(forward / (forward + backward))),
        "optimizer": float(np.median(np.concatenate([run.optimizer for run in runs]))),
    }


def _resampled(runs: Sequence[_ModelSamples], rng: np.random.Generator) -> dict[str, float]:
    drawn: list[_ModelSamples] = []
    for pick in rng.integers(len(runs), size=len(runs)):
        run = copy(runs[pick])
        # Forward and backward of one repetition depend on each other, so a resample keeps them together.
        again = rng.integers(len(run.forward), size=len(run.forward))
        run.forward, run.backward = run.forward[again], run.backward[again]
        run.optimizer = rng.choice(run.optimizer, size=len(run.optimizer))
        drawn.append(run)
    return _times(drawn)


def _tensors(runs: Sequence[_ModelSamples]) -> list[dict[str, object]]:
    """Return the gradients in the order of readiness, each with the time of backward since the previous one [us]."""
    in_order = sorted(runs[0].ready, key=lambda name: runs[0].ready[name].number("order"))
    ready_s = {name: float(np.median([value for run in runs for value in run.ready[name].values])) for name in in_order}
    tensors: list[dict[str, object]] = []
    done_s = 0.0
    for name, at_s in ready_s.items():
        # Medians of single gradients may cross by noise, and no share is negative.
        share_s = max(0.0, at_s - done_s)
        tensors.append(
            {
                "name": name,
                **_size(runs[0].ready[name]),
                "backward_share": round(share_s * 1e6, 1),
            }
        )
        done_s = max(done_s, at_s)
    return tensors


def _size(series: Series) -> dict[str, object]:
    """Return the shape of a gradient, or the number of elements if the file has no shape."""
    if shape := str(series.labels.get("shape", "")):
        if not _SHAPE.fullmatch(shape):
            raise SimnetError(f"--workload: shape {shown(shape)}: must look like '256x512'; measure again")
        return {"shape": [int(side) for side in shape.split("x")]}
    return {"num_elements": series.count("num_elements")}


def _values(whole: MeasurementFile, name: str, **labels: object) -> Floats:
    for series in whole.series:
        if series.kind == "model" and series.name == name and labels.items() <= series.labels.items():
            return np.array(series.values, dtype=np.float64)
    wanted = " of ".join([name, *map(str, labels.values())])
    raise SimnetError(f"--workload: no {wanted} in the file; give a file of simnet measure model")


def _machine(measurements: MeasurementFile) -> str:
    return measurements.hardware.gpu or measurements.hardware.processor


def checked_text(whole: dict[str, object]) -> str:
    """Return a workload as TOML, after the simulator has read it."""
    build(Workload, {"name": "fitted", **whole}, "the fitted workload")
    return tomli_w.dumps(whole)
