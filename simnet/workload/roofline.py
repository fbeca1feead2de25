"""The time of work on a GPU of which no time is known: a roofline over the share of it that trainings attain.

    seconds = (FLOPs / peak + bytes / memory bandwidth) / attained

FLOPs are those of products, bytes those of all other operators, which run one after the other on a GPU: hence the sum.
The share is taken over the same sum in published trainings, so that their memory-bound operators, which are part of
every published MFU, count once.
"""

from functools import cache
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration, Cluster, GpuModel, find_gpu
from simnet.core import files, schema
from simnet.core.bounded_types import Fraction, Precision
from simnet.core.errors import SimnetError
from simnet.workload.kernel_cost import optimizer_s
from simnet.workload.workload import Work, Workload

FILE = ("published", "roofline.toml")
Share = Annotated[float, Meta(gt=0.0, le=10.0)]
PLAIN_PRECISION: Precision = "fp32"


class Attained(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The share of the roofline that published trainings of one kind attain.

    Attributes:
        share: the middle one.
        interval: 90 % of them.
        source: how many trainings of how many publications.
    """

    share: Share
    interval: tuple[Share, Share]
    source: str

    @property
    def factors(self) -> tuple[float, float]:
        """The 90 % interval of a time, as factors."""
        low, high = self.interval
        return self.share / high, self.share / low


class Attainments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shares by kind of work.

    Attributes:
        products: more than half of backward is products of matrices, on tensor cores.
        convolutions: more than half of backward is convolutions, on tensor cores.
        either: on tensor cores, where that is not known.
        plain: "fp32", without tensor cores.
    """

    products: Attained
    convolutions: Attained
    either: Attained
    plain: Attained


@cache
def attainments() -> Attainments:
    """Read the shares that published trainings attain."""
    path = files.data_path(*FILE)
    return schema.build(Attainments, files.read_file(path), files.label(path))


def attained(precision: str, convolutions: Fraction | None) -> Attained:
    """Return the share that work attains; `convolutions` is their fraction of its products, None where not known."""
    every = attainments()
    if precision == PLAIN_PRECISION:
        return every.plain
    # Convolutions attain less than products of matrices; without shapes the share of both together counts.
    if convolutions is None:
        return every.either
    return every.convolutions if convolutions > 0.5 else every.products


def ideal_s(flops: float, num_bytes: float, gpu: GpuModel, precision: str) -> float:
    """Return the time at the peaks of the data sheet [s]."""
    return flops / gpu.peak_in(precision) + num_bytes / gpu.memory_bytes_per_s


AUTOCAST = {"amp": "fp16"}
"""Names of compute rows for a format into which products are cast."""
BYTES_PER_VALUE: dict[str, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
"""Bytes of what other operators read and write where products are in a format."""


def in_format(work: Work, wanted: str) -> Work:
    """Return work in the number format of a workload, if that names one, as compute rows are."""
    if wanted in ("", work.precision):
        return work
    precision = AUTOCAST.get(wanted, wanted)
    if precision not in BYTES_PER_VALUE:
        known = ", ".join((*BYTES_PER_VALUE, *AUTOCAST))
        raise SimnetError(f"workload.precision: {wanted!r}: no roofline knows it; give one of {known}")
    # FLOPs stay as they are: what other operators move follows the bytes of a value.
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
    bandwidth. `convolutions` is as in `attained`.

    Raises:
        SimnetError: the cluster names no GPU of the table, or this has not the number format.
    """
    work, batch = workload.work_on(cluster.gpu), workload.batch_per_rank
    assert work is not None
    work = in_format(work, workload.precision)
    gpu = _gpu(work.precision, workload, cluster)
    known = attained(work.precision, convolutions)
    forward_s, backward_s = (
        ideal_s(flops * batch, num_bytes * batch, gpu, work.precision) / known.share
        for flops, num_bytes in ((work.forward_flops, work.forward_bytes), (work.backward_flops, work.backward_bytes))
    )
    if calibration.memory_bytes_per_s is None:
        # A calibration of another card may lack it; the data sheet names the peak.
        calibration = replace(calibration, memory_bytes_per_s=gpu.memory_bytes_per_s)
    update_s = optimizer_s(calibration, work.optimizer, num_elements)
    return forward_s, backward_s, update_s, (_note(work, gpu, batch, known),)


def _note(work: Work, gpu: GpuModel, batch: int, known: Attained) -> str:
    low, high = known.interval
    where = f"compute time at batch {batch} is a roofline estimate for {gpu.name} in {work.precision}"
    share = f"{known.share:.2f} of its peaks ({low:.2f} to {high:.2f}, 90 %)"
    return f"{where}: {share}, as {known.source} attain; small batches take longer"


def _gpu(precision: str, workload: Workload, cluster: Cluster) -> GpuModel:
    if not cluster.gpu:
        raise SimnetError(
            f"cluster.gpu: '': {workload.label} has work, which is priced for a GPU; name one of: simnet show gpus"
        )
    try:
        gpu = find_gpu(cluster.gpu)
    except SimnetError as error:
        raise SimnetError(f"cluster.gpu: {error}") from error
    try:
        gpu.peak_in(precision)
    except SimnetError as error:
        key = "workload.precision" if workload.precision else "workload.work.precision"
        raise SimnetError(f"{key}: {error}") from error
    return gpu
