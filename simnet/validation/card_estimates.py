"""All that follows from the measurements of a card: calibration, workloads, and how wrong the shipped estimates were.

Estimated are kernels, copies, launches, backward and compute rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from simnet.calibration import card_calibration, compute_rows, kernels
from simnet.calibration.card_calibration import CardFit
from simnet.calibration.card_folder import CardFolder
from simnet.calibration.comparison import Comparison
from simnet.calibration.compute_rows import MeasuredPass, half_ready
from simnet.calibration.kernels import COPY, TimedKernel
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.core.parsing import parse_toml
from simnet.core.schema import build
from simnet.core.units import Bandwidth, Duration
from simnet.engine import intervals
from simnet.strategies import BinSGDM
from simnet.strategies.base import every_kernel
from simnet.workload import training_step
from simnet.workload.kernel_cost import ADAMW, KernelCost, optimizer_s
from simnet.workload.training_step import Step
from simnet.workload.workload import Workload

ESTIMATES = {"V100": "v100_tcp_estimate", "": "a100_tcp_estimate"}
"""Shipped estimates by how the label of a card begins; "" stands for every other card."""
REFERENCE_GPU = "A100-80GB"
"""Whose compute rows stand beside those of a card that no shipped workload knows."""
DRAWS = 200
TARGET = 1.3
"""Largest time of a kernel, over that of its bytes at the bandwidth of copies, that is asked for."""
TARGET_FROM = 2**22
"""Elements from which on it is asked for: below, launches are most of the time."""
OWN = "BinSGDM"
PLAIN = "casts, gather, AdamW"
SYSTEMS = "compressing systems"
GROUPS = (OWN, PLAIN, SYSTEMS)
_PLAIN = {"cast", "gather_gradients", ADAMW.name}


WRITTEN_ONCE = {"merge": 0.125, "server_mean": 0.125, "mean": 4.0}
"""Bytes of an element of kernels that read several vectors and write one; the simulator counts a usual number."""


@dataclass(frozen=True, kw_only=True)
class ShippedEstimate:
    """A shipped estimate, as far as it concerns a card.

    Attributes:
        name: of the calibration.
        shipped: as it is in its file.
        calibration: with the bandwidth of the card's own copies if it is an estimate of another card.
        is_of_card: whether it is an estimate of this very card.
    """

    name: str
    shipped: Calibration
    calibration: Calibration
    is_of_card: bool


@dataclass(frozen=True, kw_only=True)
class KernelEstimate(Comparison):
    """A kernel at one size: what its bytes were taken to cost, and what it took [s].

    Attributes:
        kernel: simulated kernel.
        num_elements: of all vectors together.
        spread: from the first to the third quartile of the repetitions, over their median.
        least_s: its bytes at the bandwidth of the card's copies.
        is_estimable: False where bytes tell too little of its time.
    """

    kernel: str
    num_elements: float
    spread: float
    least_s: float
    is_estimable: bool

    @property
    def ratio(self) -> float:
        """Measured time over that of its bytes."""
        return self.measured / self.least_s


@dataclass(frozen=True, kw_only=True)
class StepEstimate(Comparison):
    """Forward and backward of a model [s]: as the shipped compute rows have it, and as measured.

    Attributes:
        measured_pass: model, precision and batch.
        gpu: whose rows were taken.
        kind: of these rows.
        estimated_forward_share: by counted FLOPs.
        estimated_half_ready: as `MeasuredPass.half_ready`, by counted FLOPs.
    """

    measured_pass: MeasuredPass
    gpu: str
    kind: str
    estimated_forward_share: float
    estimated_half_ready: float | None


@dataclass(frozen=True, kw_only=True)
class CardResult:
    """What `simnet measure gpu --card` writes, and what its page shows.

    Attributes:
        folder: the measurements.
        base: name of the calibration that gives what was not measured; None for neutral values.
        fitted: to kernels and to backward beside communication.
        calibration: as TOML; "" if there is nothing to fit.
        workloads: with compute rows of the card, as TOML, by name.
        passes: forward and backward of the models.
        without_workload: measured models that are no shipped workload.
        estimate: the shipped estimate that the measurements are compared with.
        kernels: every kernel at every size; empty without a bandwidth of copies.
        values: single values of a calibration, by key.
        steps: forward and backward against the shipped compute rows.
    """

    folder: CardFolder
    base: str | None
    fitted: CardFit
    calibration: str
    workloads: Mapping[str, str]
    passes: tuple[MeasuredPass, ...]
    without_workload: tuple[str, ...]
    estimate: ShippedEstimate
    kernels: tuple[KernelEstimate, ...]
    values: Mapping[str, Comparison]
    steps: tuple[StepEstimate, ...]


def evaluate(folder: CardFolder, *, base: str | None, draws: int, workloads: Path | None = None) -> CardResult:
    """Fit, merge and compare.

    Args:
        folder: the measurements of a card.
        base: name or path of a calibration for what was not measured.
        draws: bootstrap resamples.
        workloads: folder of the workload files that get compute rows; the shipped ones by default.

    Raises:
        SimnetError: measurements contradict each other, or a workload file cannot be changed.
    """
    fitted = card_calibration.fit(folder, draws)
    passes = compute_rows.measured_passes(folder)
    paths = {path.stem: path for path in sorted((workloads or files.data_path("workloads")).glob("*.toml"))}
    models = list(dict.fromkeys(one.model for one in passes))
    texts = {model: files.read_text(paths[model]) for model in models if model in paths}
    estimate = shipped_estimate(folder, fitted)
    tables = {model: parse_toml(text, str(paths[model])) for model, text in texts.items()}
    copies = fitted.copy_bytes_per_s
    rows = kernels.select_kernels(folder.measurements)
    return CardResult(
        folder=folder,
        base=base,
        fitted=fitted,
        calibration=card_calibration.text(folder, fitted, base) if fitted.parts else "",
        workloads={
            model: compute_rows.with_rows(
                text, [one for one in passes if one.model == model], folder, str(paths[model])
            )
            for model, text in texts.items()
        },
        passes=tuple(passes),
        without_workload=tuple(model for model in models if model not in paths),
        estimate=estimate,
        kernels=tuple(kernel_estimates(rows, estimate, copies)) if copies is not None else (),
        values=value_estimates(estimate, fitted),
        steps=tuple(step_estimates(passes, estimate, folder.label, tables)),
    )


def shipped_estimate(folder: CardFolder, fitted: CardFit) -> ShippedEstimate:
    """Return the shipped estimate to compare a card with; that of another card is scaled to this one's copies."""
    name = next(name for start, name in ESTIMATES.items() if folder.label.startswith(start))
    shipped = build(Calibration, {"name": name, **files.read("calibrations", name)}, name)
    is_of_card, scaled = shipped.gpu == folder.label, shipped
    copies = fitted.copy_bytes_per_s
    if not is_of_card and copies is not None:
        rest = {key: factors for key, factors in shipped.intervals.items() if key != "memory_bandwidth"}
        scaled = replace(shipped, memory_bytes_per_s=Bandwidth(copies), intervals=rest)
    return ShippedEstimate(name=name, shipped=shipped, calibration=scaled, is_of_card=is_of_card)


def kernel_estimates(
    rows: Sequence[TimedKernel], estimate: ShippedEstimate, copy_bytes_per_s: float
) -> list[KernelEstimate]:
    """Return every measured kernel at every size, but copies, which give the bandwidth.

    Args:
        rows: from `kernels.select_kernels`.
        estimate: whose intervals are drawn from.
        copy_bytes_per_s: bandwidth of the card's copies.
    """
    drawn = list(intervals.drawn_calibrations(estimate.calibration, DRAWS))
    costs, own = every_kernel(), {cost.name for cost in BinSGDM.kernels}
    return [
        KernelEstimate(
            series=PLAIN if row.kernel in _PLAIN else OWN if row.kernel in own else SYSTEMS,
            label=f"{row.kernel}, {row.num_elements:,.0f} elements",
            kernel=row.kernel,
            num_elements=row.num_elements,
            measured=row.median_s,
            predicted=_seconds(cost, estimate.calibration, row),
            interval=intervals.middle_90_percent([_seconds(cost, one, row) for one in drawn]),
            spread=_spread(row),
            least_s=_least_bytes(cost, row) / copy_bytes_per_s,
            is_estimable=cost.is_estimable,
        )
        for row in sorted(rows, key=lambda row: (row.kernel, row.num_elements))
        if row.kernel != COPY
        for cost in [costs[row.kernel]]
    ]


def _least_bytes(cost: KernelCost, row: TimedKernel) -> float:
    """Return the bytes that a kernel moves at least: one that combines vectors writes one for all."""
    per_element = WRITTEN_ONCE.get(cost.name)
    if per_element is None:
        return cost.bytes_of_each(row.num_vectors) * row.num_elements
    return per_element * (row.num_elements + row.num_elements / row.num_vectors)


def _seconds(cost: KernelCost, calibration: Calibration, row: TimedKernel) -> float:
    if cost.name == ADAMW.name:
        return optimizer_s(calibration, "adam", row.num_elements)  # the simulator charges no launch to it
    return cost.seconds(calibration, row.num_elements, row.num_vectors)


def _spread(row: TimedKernel) -> float:
    first, third = np.percentile(row.samples_s, [25, 75])
    return float(third - first) / row.median_s


def value_estimates(estimate: ShippedEstimate, fitted: CardFit) -> dict[str, Comparison]:
    """Return copies and launches [s/B, s] and the slowdown of backward, by key of a calibration, as far as measured."""
    given = estimate.calibration
    found: dict[str, Comparison] = {}
    copies, launch_s, slowdown = fitted.copy_bytes_per_s, fitted.launch_s, fitted.slowdown
    if copies is not None and given.memory_bytes_per_s is not None and estimate.is_of_card:
        found["memory_bandwidth"] = _value("memory_bandwidth", given, float(given.memory_bytes_per_s), copies)
    if launch_s is not None:
        found["kernel_launch"] = _value("kernel_launch", given, float(given.kernel_launch_s), launch_s)
    if slowdown is not None:
        found["backward_slowdown"] = _value("backward_slowdown", given, given.backward_slowdown, slowdown[0])
    return found


def _value(key: str, given: Calibration, predicted: float, measured: float) -> Comparison:
    low, high = given.intervals.get(key, (1.0, 1.0))
    return Comparison(
        series="values", label=key, measured=measured, predicted=predicted, interval=(predicted * low, predicted * high)
    )


def step_estimates(
    passes: Sequence[MeasuredPass], estimate: ShippedEstimate, label: str, workloads: Mapping[str, Mapping[str, object]]
) -> list[StepEstimate]:
    """Return forward and backward of every measured model for which the shipped rows say something.

    Args:
        passes: what was measured.
        estimate: gives the time of the optimizer, which published steps hold as well.
        label: of the card.
        workloads: in file form, by name, without what was measured.
    """
    found = [_step(one, estimate, label, workloads[one.model]) for one in passes if one.model in workloads]
    return [one for one in found if one is not None]


def _step(one: MeasuredPass, estimate: ShippedEstimate, label: str, given: Mapping[str, object]) -> StepEstimate | None:
    settings = {"name": one.model, **given, "precision": one.precision, "batch_per_rank": one.batch}
    workload = build(Workload, settings, one.model)
    # Judged are published rows, and not what a roofline makes of FLOPs.
    workload = replace(workload, compute=tuple(row for row in workload.compute if row.kind != "measured"), work=None)
    for gpu in dict.fromkeys((label, REFERENCE_GPU)):
        try:
            step = training_step.resolve(workload, _alone(gpu), estimate.shipped)
        except SimnetError:
            continue  # no row of this GPU in this precision
        predicted = step.forward_s + step.backward_s
        rows = [row for row in workload.compute if (row.gpu, row.precision) == (gpu, one.precision)]
        return StepEstimate(
            series=one.model,
            label=f"{one.model}, {one.precision}, batch {one.batch}",
            measured=one.compute_s,
            predicted=predicted,
            measured_pass=one,
            gpu=gpu,
            kind=min(rows, key=lambda row: abs(row.batch - one.batch)).kind,
            estimated_forward_share=step.forward_s / predicted,
            estimated_half_ready=half_ready(_ready_by_flops(step), 1.0),
        )
    return None


def _ready_by_flops(step: Step) -> list[tuple[float, float]]:
    """Return when each gradient is ready, as a share of backward, and its elements."""
    ready = accumulate(tensor.backward_fraction for tensor in step.tensors)
    return [(at, tensor.num_elements) for at, tensor in zip(ready, step.tensors, strict=True)]


def _alone(gpu: str) -> Cluster:
    """Return one GPU that sends nothing."""
    link = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(0))
    return Cluster(num_nodes=1, ranks_per_node=1, intra_node=link, inter_node=link, gpu=gpu)
