"""Write the compute times of a traced step, or of a measured model, as a workload."""

import re
from collections.abc import Sequence
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import tomli_w

from simnet.calibrate import bootstrap, provenance
from simnet.calibrate.fitted_part import Floats, duration_text
from simnet.calibrate.kineto import Trace
from simnet.calibrate.measurement_file import MeasurementFile, Series, Setup
from simnet.errors import SimnetError, shown
from simnet.schema import build
from simnet.units import Size
from simnet.workload.workload import Workload

_SHAPE = re.compile(r"\d{1,9}(x\d{1,9})*")
READY = "gradient_ready"
FIELDS = {"forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s"}


def text_of_trace(trace: Trace, path: Path) -> str:
    """Return a workload as TOML: compute times of a step, and the bytes that it all-reduced as its gradients.

    Raises:
        SimnetError: nothing was all-reduced, or a phase is missing in the trace.
    """
    times = {key: trace.median_s(field) for key, field in FIELDS.items()}
    for key, seconds in times.items():
        if not seconds > 0:
            raise SimnetError(
                f"{path}: no {key} in the trace: profile a step of DistributedDataParallel with an optimizer"
            )
    if not trace.reduced_bytes:
        raise SimnetError(f"{path}: no all-reduce whose size is told: profile with record_shapes=True on several ranks")
    whole: dict[str, object] = {
        "title": f"A step of {path.name}: its compute times, and what it all-reduced",
        "source": f"torch.profiler, {len(trace.steps)} steps of one of {trace.world_size} ranks, medians",
        "gradient": Size(trace.reduced_bytes).text(),
        **{key: duration_text(seconds) for key, seconds in times.items()},
    }
    return _checked(whole)


def has_model(measurements: MeasurementFile) -> bool:
    """Tell whether a measurement file holds what `text_of_model` needs."""
    return any(series.kind == "model" for series in measurements.series)


def text_of_model(files: Sequence[tuple[Path, MeasurementFile]], draws: int = bootstrap.DRAWS) -> str:
    """Return a workload as TOML: the medians of a measured model, its gradients at the times when they became ready.

    The optimizer is AdamW, which a dense baseline would run. A gradient that became ready together with the one before
    has a share of 0. Intervals are those of drawn files and drawn repetitions in each: several files of one model tell
    how much it differs from one start to the next.

    Args:
        files: of one model on one machine.
        draws: bootstrap draws.

    Raises:
        SimnetError: the files hold no model or several, or lack a part of one.
    """
    model, batch, setup = _only_model(files)
    runs = [_ModelSamples(whole) for _, whole in files]
    if any(run.ready.keys() != runs[0].ready.keys() for run in runs):
        raise SimnetError("--workload: files with other gradients of one model: give files of one version of it")
    point = _times(runs)
    spread = bootstrap.interval_factors(point, partial(_resampled, runs), draws)
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
    return _checked(whole)


class _ModelSamples:
    """The repetitions of one file."""

    def __init__(self, whole: MeasurementFile) -> None:
        self.forward = _values(whole, "forward")
        self.backward = _values(whole, "backward")
        self.optimizer = _values(whole, "optimizer", optimizer="adamw")
        self.ready = {
            str(one.labels["tensor"]): one for one in whole.series if one.kind == "model" and one.name == READY
        }
        if not self.ready:
            raise SimnetError("--workload: no gradient_ready in the file: give one of simnet measure model")
        if len(self.forward) != len(self.backward):
            raise SimnetError(
                f"--workload: {len(self.forward)} times of forward and {len(self.backward)} of backward: a repetition "
                "has both; measure again"
            )


def _only_model(files: Sequence[tuple[Path, MeasurementFile]]) -> tuple[str, int, Setup]:
    found = [(str(s.labels["model"]), s.count("batch"), whole.setups[s.setup]) for _, whole in files
             for s in whole.series if s.kind == "model"]  # fmt: skip
    models = {(model, batch) for model, batch, _ in found}
    if len(models) != 1:
        raise SimnetError(f"--workload: {len(models)} models: give files of simnet measure model with one")
    ranks = {(setup.ranks_on_machine, setup.threads_per_rank) for *_, setup in found}
    if len(ranks) != 1:
        raise SimnetError("--workload: measured with different numbers of ranks on the machine: give files of one")
    ((model, batch),) = models
    return model, batch, found[0][2]


def _times(runs: Sequence[_ModelSamples]) -> dict[str, float]:
    """Return seconds of compute and optimizer, over all repetitions of all runs, and the part that forward is."""
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
        # Forward and backward of one repetition add up to what was measured, so they are drawn together.
        again = rng.integers(len(run.forward), size=len(run.forward))
        run.forward, run.backward = run.forward[again], run.backward[again]
        run.optimizer = rng.choice(run.optimizer, size=len(run.optimizer))
        drawn.append(run)
    return _times(drawn)


def _tensors(runs: Sequence[_ModelSamples]) -> list[dict[str, object]]:
    """Return the gradients in the order in which they become ready, with the microseconds of backward before each."""
    in_order = sorted(runs[0].ready, key=lambda name: runs[0].ready[name].number("order"))
    ready_s = {name: float(np.median([value for run in runs for value in run.ready[name].values])) for name in in_order}
    tensors: list[dict[str, object]] = []
    done_s = 0.0
    for name, at_s in ready_s.items():
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
    """Return the shape of a gradient where it is told, else its elements."""
    if shape := str(series.labels.get("shape", "")):
        if not _SHAPE.fullmatch(shape):
            raise SimnetError(f"--workload: shape {shown(shape)}: must be such as '256x512'; measure again")
        return {"shape": [int(side) for side in shape.split("x")]}
    return {"num_elements": series.count("num_elements")}


def _values(whole: MeasurementFile, name: str, **labels: object) -> Floats:
    for series in whole.series:
        if series.kind == "model" and series.name == name and labels.items() <= series.labels.items():
            return np.array(series.values, dtype=np.float64)
    wanted = " of ".join([name, *map(str, labels.values())])
    raise SimnetError(f"--workload: no {wanted} in the file: give one of simnet measure model")


def _machine(measurements: MeasurementFile) -> str:
    return measurements.hardware.gpu or measurements.hardware.processor


def _checked(whole: dict[str, object]) -> str:
    """Return a workload as TOML if the simulator can read it."""
    build(Workload, {"name": "fitted", **whole}, "the fitted workload")
    return tomli_w.dumps(whole)
