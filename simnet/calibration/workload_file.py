"""Write the compute times of a traced step, or of a measured model, as a workload."""

import statistics
from pathlib import Path

from simnet.calibration.kineto import Trace
from simnet.calibration.measurement import Measurements
from simnet.errors import SimnetError
from simnet.scenario import Draft
from simnet.spec import Workload
from simnet.toml_text import to_toml
from simnet.units import Duration, Size

FIELDS = {"forward": "forward_s", "backward": "backward_s", "optimizer": "optimizer_s"}


def text(trace: Trace, path: Path) -> str:
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
        **{key: Duration(float(f"{seconds:.4g}")).text() for key, seconds in times.items()},
    }
    return _checked(whole)


def has_model(measurements: Measurements) -> bool:
    """Tell whether a measurement file holds what `text_of_model` needs."""
    return any(series.kind == "model" for series in measurements.series)


def text_of_model(measurements: Measurements) -> str:
    """Return a workload as TOML: the medians of a measured model, its gradients at the times when they became ready.

    The optimizer is AdamW, which a dense baseline would run. A gradient that became ready together with the one before
    has a share of 0.

    Raises:
        SimnetError: the file holds no model or several, or lacks a part of one.
    """
    models = {(s.labels.get("model"), s.labels.get("batch")) for s in measurements.series if s.kind == "model"}
    if len(models) != 1:
        raise SimnetError(f"--workload: {len(models)} models: give a file of simnet measure model with one")
    ((model, batch),) = models
    setup = measurements.setups[next(s.setup for s in measurements.series if s.kind == "model")]
    times = {
        "forward": _median(measurements, "forward"),
        "backward": _median(measurements, "backward"),
        "optimizer": _median(measurements, "optimizer", optimizer="adamw"),
    }
    whole: dict[str, object] = {
        "title": f"{model}, {batch} samples a rank",
        "source": f"simnet measure model, {setup.ranks_on_machine} ranks on a machine ({_machine(measurements)}), "
        f"{setup.threads_per_rank} threads each, {measurements.created[:10]}, medians",
        "batch_per_rank": batch,
        **{key: Duration(float(f"{seconds:.4g}")).text() for key, seconds in times.items()},
        "tensors": _tensors(measurements),
    }
    return _checked(whole)


def _tensors(measurements: Measurements) -> list[dict[str, object]]:
    """Return the gradients in the order in which they become ready, with the microseconds of backward before each."""
    ready = [s for s in measurements.series if s.kind == "model" and s.name == "gradient_ready"]
    if not ready:
        raise SimnetError("--workload: no gradient_ready in the file: give one of simnet measure model")
    tensors: list[dict[str, object]] = []
    done_s = 0.0
    for series in sorted(ready, key=lambda s: float(s.labels["order"])):
        at_s = max(done_s, statistics.median(series.values))
        tensors.append(
            {
                "name": str(series.labels["tensor"]),
                "num_elements": int(series.labels["num_elements"]),
                "backward_share": round((at_s - done_s) * 1e6, 1),
            }
        )
        done_s = at_s
    return tensors


def _median(measurements: Measurements, name: str, **labels: object) -> float:
    for series in measurements.series:
        if series.kind == "model" and series.name == name and labels.items() <= series.labels.items():
            return statistics.median(series.values)
    wanted = " of ".join([name, *map(str, labels.values())])
    raise SimnetError(f"--workload: no {wanted} in the file: give one of simnet measure model")


def _machine(measurements: Measurements) -> str:
    return measurements.hardware.gpu or measurements.hardware.processor


def _checked(whole: dict[str, object]) -> str:
    """Return a workload as TOML if the simulator can read it."""
    Draft(data={"name": "fitted", **whole}, origins={(): "the fitted workload"}).converted(Workload)
    return to_toml(whole)
