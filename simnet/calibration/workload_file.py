"""Write the compute times of a traced step as a workload."""

from pathlib import Path

from simnet.calibration.kineto import Trace
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
    Draft(data={"name": "traced", **whole}, origins={(): "the traced workload"}).converted(Workload)
    return to_toml(whole)
