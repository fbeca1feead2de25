"""One training step of a workload on one GPU: gradients in ready order, and the seconds of each part."""

import math
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration, Cluster
from simnet.core import files, schema
from simnet.core.bounded_types import BYTES_PER_ELEMENT, MAX_SPREAD, Shape
from simnet.core.errors import SimnetError
from simnet.workload import roofline
from simnet.workload.kernel_cost import optimizer_s
from simnet.workload.workload import ComputeTime, Gradient, Workload

# A larger count is a slip: each tensor is an object, and buckets are made tensor by tensor.
MAX_TENSORS = 100_000
# Of the ratio of two batches; why, says `scaling_range`.
SCALING_EXPONENT = 0.5
# Convolutions have sides of some ten at most; matrices of experts, stacked, of hundreds or more.
MAX_KERNEL_SIDE = 64


class Tensor(Struct, frozen=True, kw_only=True, cache_hash=True):
    """A gradient tensor.

    Attributes:
        num_elements: its elements.
        backward_fraction: fraction of backward between the previous gradient and this one, 0 to 1.
        shape: its dimensions; None where they are not known.
        name: of the parameter, such as "layers.0.up.weight"; empty where it is not known.
    """

    num_elements: float
    backward_fraction: float
    shape: tuple[int, ...] | None = None
    name: str = ""


class Step(Struct, frozen=True, kw_only=True):
    """The compute of one rank in one iteration without communication; times are those of one micro-batch [s].

    Attributes:
        tensors: gradients in the order in which they become ready; empty if only the total is known.
        num_elements: elements of all gradients.
        bytes_per_element: width of the gradients.
        forward_s: time of forward.
        backward_s: time of backward.
        optimizer_s: time of the dense optimizer, once an iteration.
        samples: samples of one micro-batch on one rank.
        notes: sentences on where the times come from.
        micro_batches: micro-batches of an iteration; gradients are exchanged in the backward of the last one.
        hook_slowdown: factor on the time of that backward.
        slowest: factor on forward and backward of the slowest of all ranks, over those of the mean one.
        host_pause_s: how long a rank's host pauses in a step, on average [s].
    """

    tensors: tuple[Tensor, ...]
    num_elements: float
    bytes_per_element: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    samples: int
    notes: tuple[str, ...] = ()
    micro_batches: int = 1
    hook_slowdown: float = 1.0
    slowest: float = 1.0
    host_pause_s: float = 0.0

    @property
    def of_slowest_rank(self) -> "Step":
        """The step of the slowest rank."""
        if self.slowest == 1:
            return self
        return replace(self, forward_s=self.forward_s * self.slowest, backward_s=self.backward_s * self.slowest)

    @property
    def exchanged_backward_s(self) -> float:
        """Time of the backward whose gradients are exchanged [s]."""
        return self.backward_s * self.hook_slowdown

    @property
    def gradient_bytes(self) -> float:
        """Bytes of all gradients."""
        return self.num_elements * self.bytes_per_element


def resolve(workload: Workload, cluster: Cluster, calibration: Calibration) -> Step:
    """Return the step of a workload on the cluster's GPU.

    Raises:
        SimnetError: gradients or compute given twice or not at all, or no compute time for this GPU.
    """
    tensors, flops = _gradients(workload)
    width = BYTES_PER_ELEMENT[workload.dtype]
    total = _num_elements(workload, tensors)
    forward_s, backward_s, update_s, notes = _compute(workload, cluster, calibration, tensors, flops)
    if workload.checkpointing and workload.memory and workload.memory.checkpointed:
        # Blocks that were not kept run their forward again within backward.
        backward_s += workload.checkpointing * workload.memory.checkpointed.recomputed * forward_s
    factor, spread = workload.compute_factor, calibration.compute_spread
    return Step(
        tensors=tensors,
        num_elements=total,
        bytes_per_element=width,
        forward_s=forward_s * factor,
        backward_s=backward_s * factor,
        optimizer_s=update_s * factor,
        samples=workload.batch_per_rank,
        notes=(*notes, *_notes_of_factor(workload)),
        hook_slowdown=calibration.hook_slowdown if cluster.world_size > 1 else 1.0,
        slowest=1 + (spread and spread * slowest_of(cluster.world_size)),
        host_pause_s=float(calibration.host_pause_s),
    )


def slowest_of(num_ranks: int) -> float:
    """Return how many standard deviations the slowest of so many ranks lies above their mean, 0 for one.

    Source: G. Blom, Statistical Estimates and Transformed Beta-Variables, Wiley 1958: the mean of the largest of normal
    numbers.
    """
    from statistics import NormalDist  # which most runs need not load

    return NormalDist().inv_cdf((num_ranks - 0.375) / (num_ranks + 0.25))


def _notes_of_factor(workload: Workload) -> tuple[str, ...]:
    """Say that compute times are scaled, and how sure that is."""
    if workload.compute_factor == 1:
        return ()
    scaled = f"workload.compute_factor multiplies compute times by {workload.compute_factor:g}"
    if "compute_factor" in workload.intervals:
        return (scaled,)
    return (
        f"{scaled}, which the intervals take as exact: give workload.intervals.compute_factor, such as [0.8, 1.25]",
    )


def gradient_bytes(workload: Workload) -> float:
    """Return the bytes of all gradients of a workload."""
    return num_elements(workload) * BYTES_PER_ELEMENT[workload.dtype]


def num_elements(workload: Workload) -> float:
    """Return the elements of all gradients of a workload."""
    tensors, _ = _gradients(workload)
    return _num_elements(workload, tensors)


def _num_elements(workload: Workload, tensors: tuple[Tensor, ...]) -> float:
    width = BYTES_PER_ELEMENT[workload.dtype]
    return sum(tensor.num_elements for tensor in tensors) if tensors else _total_elements(workload, width)


def _gradients(workload: Workload) -> tuple[tuple[Tensor, ...], tuple[float, float] | None]:
    """Return the tensors in ready order, and the FLOPs of forward and of backward if a gradients file counts them."""
    sources = {
        "gradients": workload.gradients is not None,
        "tensors": bool(workload.tensors),
        "gradient": workload.gradient_bytes is not None,
        "num_elements": workload.num_elements is not None,
    }
    named = [key for key, is_there in sources.items() if is_there]
    if len(named) != 1:
        raise SimnetError(
            f"{workload.label}: {' and '.join(named) or 'no gradients'}: must be given once; give one of "
            f"{', '.join(sources)}"
        )
    if workload.gradients is not None:
        name = workload.gradients
        # The stamp is part of the key of the cache: a file that has changed is read again.
        return _from_file(name, files.file_stamp(Path(name)) if files.is_path(name) else ())
    if sum(row.count for row in workload.tensors) > MAX_TENSORS:
        raise SimnetError(f"workload.tensors: more than {MAX_TENSORS} tensors; give fewer, or workload.gradient")
    return _from_rows(workload.tensors, BYTES_PER_ELEMENT[workload.dtype]), None


# One tuple for all scenarios of a search: what is cached by the tensors then finds them by identity.
@lru_cache(maxsize=16)
def _from_rows(rows: tuple[Gradient, ...], width: int) -> tuple[Tensor, ...]:
    total = sum(row.count * row.backward_share for row in rows)
    if rows and total <= 0:
        raise SimnetError("workload.tensors: every backward_share is 0; give one tensor a share above 0")
    return tuple(
        Tensor(
            num_elements=_elements(row, width),
            backward_fraction=row.backward_share / total,
            shape=row.shape,
            name=row.name,
        )
        for row in rows
        for _ in range(row.count)
    )


def _elements(row: Gradient, width: int) -> float:
    if row.shape is not None:
        return float(math.prod(row.shape))
    return float(row.num_elements) if row.num_elements is not None else float(row.num_bytes or 0.0) / width


def _total_elements(workload: Workload, width: int) -> float:
    if workload.num_elements is not None:
        return float(workload.num_elements)
    return float(workload.gradient_bytes or 0.0) / width


class GradientsFile(Struct, frozen=True):
    """What a gradients file must hold; other keys are for people.

    Attributes:
        tensors: name, shape and FLOPs of backward of one sample, for each gradient in backward order.
        forward_flops_per_sample: FLOPs of forward of one sample.
        backward_flops_per_sample: FLOPs of backward of one sample.
    """

    tensors: list[tuple[str, Shape, Annotated[float, Meta(ge=0.0)]]]
    forward_flops_per_sample: Annotated[float, Meta(gt=0.0)]
    backward_flops_per_sample: Annotated[float, Meta(gt=0.0)]


@lru_cache(maxsize=32)
def _from_file(name: str, _: tuple[int, ...]) -> tuple[tuple[Tensor, ...], tuple[float, float]]:
    """Read a gradients file, made by evidence/studies/export_models.py, once for each state of it."""
    path = files.gradients_path(name)
    data = schema.decode(GradientsFile, files.read_bytes(path), files.label(path))
    total = sum(flops for _, _, flops in data.tensors)
    if not 0 < total < math.inf:
        raise SimnetError(f"{path}: tensors: FLOPs of {total!r} in all: must be above 0 and finite")
    tensors = tuple(
        Tensor(num_elements=float(math.prod(shape)), backward_fraction=flops / total, shape=shape, name=name)
        for name, shape, flops in data.tensors
    )
    return tensors, (data.forward_flops_per_sample, data.backward_flops_per_sample)


def _compute(
    workload: Workload,
    cluster: Cluster,
    calibration: Calibration,
    tensors: tuple[Tensor, ...],
    flops: tuple[float, float] | None,
) -> tuple[float, float, float, tuple[str, ...]]:
    """Return forward, backward and optimizer seconds, and how they came about."""
    times = workload.forward_s, workload.backward_s, workload.optimizer_s
    if workload.compute and any(value is not None for value in times):
        raise SimnetError(
            f"{workload.label}: times (forward, backward, optimizer) and compute rows; give one of the two"
        )
    num_elements = _num_elements(workload, tensors)
    if workload.work_on(cluster.gpu) is not None:
        return roofline.price(workload, cluster, calibration, convolutions_in(tensors), num_elements)
    if not workload.compute:
        if workload.forward_s is None or workload.backward_s is None:
            raise SimnetError(
                f"{workload.label}: no compute time; give forward, backward and optimizer, or compute rows, or work"
            )
        return float(workload.forward_s), float(workload.backward_s), float(workload.optimizer_s or 0.0), ()
    rows = _matching_rows(workload, cluster)
    step_s, note = _step_time(rows, workload.batch_per_rank)
    update_s = optimizer_s(calibration, rows[0].optimizer, num_elements)
    # A measured step ends with its optimizer, which strategies may shard or replace: it is timed apart.
    compute_s = step_s - (update_s if rows[0].includes_optimizer else 0.0)
    if not math.isfinite(step_s):
        raise SimnetError(
            f"{workload.label}: a step of {step_s} s: must be finite and above 0; check compute and batch"
        )
    if compute_s <= 0:
        raise SimnetError(
            f"{workload.label}: a step of {step_s:.3g} s is shorter than its optimizer ({update_s:.3g} s): "
            "check memory_bandwidth and the compute row"
        )
    # Backward multiplies twice for each product of forward: by the weights, and by the inputs.
    forward_part = flops[0] / sum(flops) if flops else 1 / 3
    return compute_s * forward_part, compute_s * (1 - forward_part), update_s, (note,)


def convolutions_in(tensors: tuple[Tensor, ...]) -> float | None:
    """Return the fraction of backward until gradients of kernels of convolutions; None where shapes are missing."""
    if not tensors or any(tensor.shape is None for tensor in tensors):
        return None
    return sum(tensor.backward_fraction for tensor in tensors if _is_of_convolution(tensor.shape or ()))


def _is_of_convolution(shape: Shape) -> bool:
    """Tell a kernel (out, in, sides) from matrices that are stacked, such as those of experts."""
    return len(shape) > 2 and max(shape[2:]) <= MAX_KERNEL_SIDE


def _matching_rows(workload: Workload, cluster: Cluster) -> tuple[ComputeTime, ...]:
    """Return the rows of the cluster's GPU and the wanted precision, smallest batch first.

    What was measured on the card counts alone: published steps hold more than forward and backward.
    """
    of_gpu = [row for row in workload.compute if row.gpu == cluster.gpu]
    if not of_gpu:
        known = sorted({row.gpu for row in workload.compute})
        raise SimnetError(
            f"{workload.label}: no compute time for GPU {cluster.gpu!r}: it has {', '.join(known)}; set "
            "cluster.gpu to one of them, or give forward, backward and optimizer, or work"
        )
    precision = workload.precision or of_gpu[0].precision
    rows = [row for row in of_gpu if row.precision == precision]
    if not rows:
        known = sorted({row.precision for row in of_gpu})
        raise SimnetError(
            f"{workload.label}: no compute time in {precision!r} on {cluster.gpu}: it has {', '.join(known)}"
        )
    # A published step also holds what its own framework does beside the model.
    measured = [row for row in rows if row.kind == "measured"]
    rows = sorted(measured or rows, key=lambda row: row.batch)
    for row, other in pairwise(rows):
        if row.batch == other.batch:
            raise SimnetError(
                f"{workload.label}: compute: batch {row.batch}: two rows of {cluster.gpu} in {precision!r}; "
                "give each batch once"
            )
    return tuple(rows)


def scaling_range(measured: int, batch: int) -> tuple[float, float]:
    """Return the factors between which a step lies that is scaled in proportion from one batch to another, at 90 %.

    A smaller batch takes at least its share, and at most as long as the measured one, where launches bound both.

    Source: throughputs of training over batch 10 to 40, knjcode/mxnet-finetuner docs/benchmark.md: a sample takes up to
    (ratio of batches) ** 0.34 as long in the smaller one, for 16 models of images; ** 1.0 between batch 16 and 1 in
    Table 1 of 1-bit Adam. Taken is an exponent between.
    """
    return (1.0, max(measured / batch, 1.0) ** SCALING_EXPONENT)


def compute_interval(workload: Workload, cluster: Cluster) -> tuple[float, float] | None:
    """Return the 90 % interval of the step of a workload with rows or work, as factors; None if it has none.

    It is that of the nearest row and, below the smallest measured batch, what scaling may be off; of work that is
    priced by a roofline, that of the share of it which published trainings attain.
    """
    if (work := workload.work_on(cluster.gpu)) is not None:
        tensors, _ = _gradients(workload)
        precision = roofline.in_format(work, workload.precision).precision
        return roofline.attained(precision, convolutions_in(tensors)).factors
    if not workload.compute:
        return None
    rows = _matching_rows(workload, cluster)
    nearest = min(rows, key=lambda row: abs(row.batch - workload.batch_per_rank))
    smallest = rows[0].batch
    ranges = [nearest.interval or (1.0, 1.0), scaling_range(smallest, min(smallest, workload.batch_per_rank))]
    # The error of the row and that of scaling are independent, so their logarithms add in squares.
    low, high = (math.exp(math.hypot(*(math.log(ends[side]) for ends in ranges))) for side in (0, 1))
    return None if low == high == 1 else (1 / low, min(high, MAX_SPREAD))


def _step_time(rows: tuple[ComputeTime, ...], batch: int) -> tuple[float, str]:
    """Return the step at `batch`: linear between rows, in proportion to the batch beyond them."""
    times = [(row.batch, float(row.step_s) if row.step_s else row.batch / (row.samples_per_s or 1.0)) for row in rows]
    nearest = min(rows, key=lambda row: abs(row.batch - batch))
    how = f"{nearest.gpu} {nearest.precision}, {nearest.kind}: {nearest.source}"
    # Between two measured batches the step grows nearly in proportion to the samples between.
    for (low, at_low), (high, at_high) in pairwise(times):
        if low <= batch <= high:
            step_s = at_low + (at_high - at_low) * (batch - low) / (high - low)
            between = "" if batch in (low, high) else "interpolated "
            return step_s, f"compute time at batch {batch} {between}from {how}"
    edge, at_edge = times[0] if batch < times[0][0] else times[-1]
    scaled = "" if batch == edge else f" scaled from batch {edge}"
    if batch < edge:
        scaled += " (an underestimate for a small batch: communication weighs more and the speedup is larger)"
    return at_edge * batch / edge, f"compute time at batch {batch}{scaled} from {how}"
