"""Write the compute times of traced or timed steps as a workload file."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from simnet.calibration import provenance
from simnet.calibration.fit import counted, duration_text
from simnet.calibration.step_fit import StepFit
from simnet.calibration.step_model import FORWARD_SHARE
from simnet.calibration.step_rows import StepTable
from simnet.calibration.workload_file import checked_text
from simnet.core.errors import SimnetError
from simnet.core.files import is_path
from simnet.core.units import Size, format_bytes
from simnet.engine import scenario
from simnet.traces.kineto import Trace
from simnet.workload import training_step
from simnet.workload.workload import Workload

GRADIENTS = ("gradients", "tensors", "gradient", "num_elements", "dtype")
"""Keys of a workload that say what gradients it has."""
BYTES_TOLERANCE = 0.02
"""By how much the bytes of a trace may differ from those of the workload, as by padding or unused parameters."""


def text_of_traces(traces: Sequence[tuple[Trace, Path]], batch: int | None, traced: Workload | None) -> str:
    """Return a workload as TOML: the compute times of a step, medians over the steps of all traces.

    Args:
        traces: of one process, or of several ranks of one run.
        batch: samples of a micro-batch on each rank, which no trace holds.
        traced: workload that was traced, whose gradients are taken; without it, they are the all-reduced bytes.

    Raises:
        SimnetError: the batch is missing, the traces are of several runs, lack a phase or tell no gradients.
    """
    _check_one_run(traces)
    (trace, path), *_ = traces
    if batch is None:
        raise SimnetError(
            f"--workload: {path}: a trace does not say its batch; give the samples of a rank with --batch"
        )
    steps = [step for trace_of_rank, _ in traces for step in trace_of_rank.steps]
    forward_s, backward_s, optimizer_s = (
        float(median(getattr(step, name) for step in steps)) for name in ("forward_s", "backward_s", "optimizer_s")
    )
    if not forward_s:
        forward_s, backward_s = backward_s * FORWARD_SHARE, backward_s * (1 - FORWARD_SHARE)
    for phase, seconds in (("forward", forward_s), ("backward", backward_s), ("optimizer", optimizer_s)):
        if not seconds > 0:
            raise SimnetError(f"{path}: no {phase} in the trace: profile whole steps of training with an optimizer")
    ranks = f"{counted(len(traces), 'rank')} of {trace.world_size}" if trace.world_size > 1 else "one process"
    where = f"torch.profiler, {counted(len(steps), 'step')} of {ranks}, medians"
    return checked_text(
        {
            "title": f"A step of {path.name}: compute times, and {_whose(traced)} as the gradient",
            "source": where + (f", on {trace.gpu}" if trace.gpu else ""),
            "batch_per_rank": batch,
            **_gradients(traces, traced),
            "forward": duration_text(forward_s),
            "backward": duration_text(backward_s),
            "optimizer": duration_text(optimizer_s),
        }
    )


def text_of_steps(fit: StepFit, tables: Sequence[StepTable], nic_bytes_per_s: float) -> str:
    """Return a workload as TOML: the gradients of what was trained, and the compute times fitted to step times.

    Raises:
        SimnetError: no compute was fitted, or that of several workloads or batches.
    """
    if len(fit.compute) != 1:
        raise SimnetError(
            f"--workload: compute was fitted to {counted(len(fit.compute), 'batch size')}: give steps of one rank "
            "or of one node, with one batch"
        )
    ((_, batch), fitted), *_ = fit.compute.items()
    row = fitted.rows[0]
    workload = fit.model.workload(row)
    assert workload.forward_s is not None
    assert workload.backward_s is not None
    names = ", ".join(table.path.name for table in tables)
    is_factor = fit.model.gives_compute(row)
    of_own = f"{fitted.value:.4g} times its own compute" if is_factor else "a third of compute is taken as forward"
    return checked_text(
        {
            "title": f"{workload.name}, {batch} samples a rank, compute times by step times",
            "source": f"simnet calibrate {names}: {of_own}; gradients are those of {workload.name}",
            "batch_per_rank": batch,
            **gradient_keys(workload),
            "forward": duration_text(float(workload.forward_s)),
            "backward": duration_text(float(workload.backward_s)),
            **({"optimizer": duration_text(float(workload.optimizer_s))} if workload.optimizer_s else {}),
            "intervals": {"compute": [round(factor, 4) for factor in fitted.factors]},
            "fitted_to": provenance.fitted_to_tables(tables, nic_bytes_per_s),
        }
    )


def gradient_keys(workload: Workload) -> dict[str, object]:
    """Return the keys of a workload that say what gradients it has, in file form; they hold in any folder."""
    whole = scenario.to_dict(workload)
    keys = {key: whole[key] for key in GRADIENTS if whole.get(key)}
    gradients = keys.get("gradients")
    if isinstance(gradients, str) and is_path(gradients):
        # The new file may stand in another folder.
        keys["gradients"] = str(Path(gradients).resolve())
    return keys


def _whose(traced: Workload | None) -> str:
    return "the all-reduced bytes" if traced is None else f"those of {traced.name}"


def _check_one_run(traces: Sequence[tuple[Trace, Path]]) -> None:
    """Refuse traces that are not of different ranks of one run."""
    (first, first_path), *others = traces
    seen = {first.rank}
    for trace, path in others:
        if (trace.world_size, trace.backend, trace.gpu) != (first.world_size, first.backend, first.gpu):
            raise SimnetError(
                f"{path}: {trace.world_size} ranks with {trace.backend or 'no'} backend: {first_path} has "
                f"{first.world_size} with {first.backend or 'none'}; give traces of one run"
            )
        if trace.rank in seen:
            raise SimnetError(f"{path}: rank {trace.rank} is there twice; give one trace of each rank of one run")
        seen.add(trace.rank)


def _gradients(traces: Sequence[tuple[Trace, Path]], traced: Workload | None) -> dict[str, object]:
    """Return the gradients of the traced workload, or else the all-reduced bytes."""
    reduced = {trace.reduced_bytes for trace, _ in traces}
    path = traces[0][1]
    if len(reduced) > 1:
        raise SimnetError(
            f"{path}: ranks all-reduce {', '.join(map(format_bytes, sorted(reduced)))} a step: must be the same; give "
            "traces of one run"
        )
    (num_bytes,) = reduced
    if traced is None:
        if not num_bytes:
            raise SimnetError(
                f"{path}: no all-reduce of known size, so no gradients: name the traced workload with --trained, or "
                "profile several ranks with record_shapes=True"
            )
        return {"gradient": Size(num_bytes).text()}
    num_gradient_bytes = training_step.gradient_bytes(traced)
    if num_bytes and abs(num_bytes / num_gradient_bytes - 1) > BYTES_TOLERANCE:
        raise SimnetError(
            f"{path}: all-reduces {format_bytes(num_bytes)} a step: the gradients of {traced.name} are "
            f"{format_bytes(num_gradient_bytes)}; name the workload that was traced"
        )
    return gradient_keys(traced)
