"""The work of a workload, priced for a GPU of which no time is known."""

from msgspec.structs import replace

from simnet.cluster import hardware
from simnet.cluster.hardware import Calibration, Cluster, GpuModel
from simnet.core.errors import SimnetError
from simnet.workload import roofline
from simnet.workload.kernel_cost import optimizer_s
from simnet.workload.workload import Work, Workload

AUTOCAST = {"amp": "fp16"}
"""Names of compute rows for a format into which products are cast."""
BYTES_PER_VALUE: dict[str, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
"""Bytes of what other operators read and write where products are in a format."""


def work_to_price(workload: Workload, cluster: Cluster) -> Work | None:
    """Return the work of a workload whose time on the cluster's GPU a roofline estimates; None if it has a time.

    It is in the number format of the workload, if that names one, as compute rows are.
    """
    times = workload.forward_s, workload.backward_s, workload.optimizer_s
    has_time = any(value is not None for value in times) or any(row.gpu == cluster.gpu for row in workload.compute)
    return None if has_time or workload.work is None else _in_format(workload.work, workload.precision)


def _in_format(work: Work, wanted: str) -> Work:
    if wanted in ("", work.precision):
        return work
    precision = AUTOCAST.get(wanted, wanted)
    if precision not in BYTES_PER_VALUE:
        known = ", ".join((*BYTES_PER_VALUE, *AUTOCAST))
        raise SimnetError(f"workload.precision: {wanted!r}: no roofline knows it; give one of {known}")
    factor = BYTES_PER_VALUE[precision] / BYTES_PER_VALUE[work.precision]
    return replace(
        work,
        precision=precision,
        forward_bytes=work.forward_bytes * factor,
        backward_bytes=work.backward_bytes * factor,
    )


def price(
    workload: Workload, cluster: Cluster, calibration: Calibration, convolutions: float | None, num_elements: float
) -> tuple[float, float, float, tuple[str, ...]]:
    """Return the seconds of forward, backward and optimizer of a workload that has work, and how they came about.

    The optimizer takes its time in the calibration, or moves its bytes at the calibration's or the data sheet's memory
    bandwidth. `convolutions` is as in `roofline.attained`.

    Raises:
        SimnetError: the cluster names no GPU of the table, or this has not the number format.
    """
    work, batch = work_to_price(workload, cluster), workload.batch_per_rank
    assert work is not None
    gpu = _gpu(work.precision, workload, cluster)
    attained = roofline.attained(work.precision, convolutions)
    forward_s, backward_s = (
        roofline.ideal_s(flops * batch, num_bytes * batch, gpu, work.precision) / attained.share
        for flops, num_bytes in ((work.forward_flops, work.forward_bytes), (work.backward_flops, work.backward_bytes))
    )
    if calibration.memory_bytes_per_s is None:
        # A calibration of another card may lack it; the data sheet names the peak.
        calibration = replace(calibration, memory_bytes_per_s=gpu.memory_bytes_per_s)
    update_s = optimizer_s(calibration, work.optimizer, num_elements)
    return forward_s, backward_s, update_s, (_note(work, gpu, batch, attained),)


def _note(work: Work, gpu: GpuModel, batch: int, attained: roofline.Attained) -> str:
    low, high = attained.interval
    where = f"compute time at batch {batch} is a roofline estimate for {gpu.name} in {work.precision}"
    share = f"{attained.share:.2f} of its peaks ({low:.2f} to {high:.2f}, 90 %)"
    return f"{where}: {share}, as {attained.source} attain; small batches take longer"


def _gpu(precision: str, workload: Workload, cluster: Cluster) -> GpuModel:
    if not cluster.gpu:
        raise SimnetError(
            f"cluster.gpu: '': {workload.label} has work, which is priced for a GPU; name one of: simnet show gpus"
        )
    try:
        gpu = hardware.find_gpu(cluster.gpu)
    except SimnetError as error:
        raise SimnetError(f"cluster.gpu: {error}") from error
    try:
        gpu.peak_in(precision)
    except SimnetError as error:
        key = "workload.precision" if workload.precision else "workload.work.precision"
        raise SimnetError(f"{key}: {error}") from error
    return gpu
