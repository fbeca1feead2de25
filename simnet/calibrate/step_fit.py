"""Fit compute, links and codec to step times, one number after another, each to the rows that tell it.

1. Compute: a factor on forward and backward for each workload and batch, from steps of one rank; without such, and
   without times of its own in the workload, from dense steps of one node.
2. The links inside a node: one efficiency, from the dense steps of one node that compute has not used.
3. The network: one efficiency of the NICs for each number of nodes, from the dense steps there.
4. The codec: `codec_efficiency`, from the compressed steps of the fewest nodes, where the network weighs least.

All other rows are predicted. Each number meets its rows in the mean of their logarithms.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from simnet.calibrate.fitted_part import FittedPart, Interval
from simnet.calibrate.step_model import Batch, StepModel, Trained
from simnet.calibrate.step_rows import StepTable, TimedStep
from simnet.comparison import Comparison, Role
from simnet.errors import SimnetError
from simnet.hardware import Calibration, LinkCalibration
from simnet.numeric import find_root
from simnet.units import format_seconds
from simnet.values import MAX_SPREAD

LEAST_EFFICIENCY = 1e-5
LEAST_CODEC_EFFICIENCY = 1e-4
FACTORS = (1e-4, 1e4)
RUN_SPREAD = 0.05
"""Of a step from one run to the next, 5 % and 95 % points, where a table repeats no setting: rows of one setting in
Table 1 of 1-bit Adam (64 GPUs, with and without accumulation, two networks) differ by 1 to 7 %."""
NORMAL_90 = 1.645
"""The 95 % point of the standard normal distribution."""
Change = Callable[[Calibration, float], Calibration]


@dataclass(frozen=True, kw_only=True)
class FittedNumber:
    """A fitted number, its 90 % interval as factors on it, and the rows that it was fitted to."""

    value: float
    factors: Interval
    rows: tuple[TimedStep, ...]

    @property
    def text(self) -> str:
        """The number with its interval."""
        low, high = (self.value * factor for factor in self.factors)
        return f"{self.value:.4g} (90 %: {low:.4g} to {high:.4g})"


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """All that was fitted to step times.

    Attributes:
        model: with the fitted compute times.
        compute: factor on the workload's compute, by workload and batch.
        intra_node: efficiency of the links inside a node.
        by_nodes: efficiency of the NICs by number of nodes, ascending.
        codec: fraction of the memory bandwidth that encode and decode reach.
        spread: of a step from one run to the next, 5 % and 95 % points.
        notes: sentences for the reader.
    """

    model: StepModel
    compute: dict[Batch, FittedNumber]
    intra_node: FittedNumber | None
    by_nodes: dict[int, FittedNumber]
    codec: FittedNumber | None
    spread: float
    notes: tuple[str, ...]

    @property
    def fitted_rows(self) -> set[TimedStep]:
        """Rows that some number was fitted to."""
        found = [*self.compute.values(), *self.by_nodes.values(), self.intra_node, self.codec]
        return {row for one in found if one is not None for row in one.rows}


def fit(rows: Sequence[TimedStep], trained: Trained, start: Calibration) -> StepFit:
    """Fit to rows of one or more tables.

    Args:
        rows: to fit.
        trained: what was trained.
        start: calibration that gives all that is not fitted.

    Raises:
        SimnetError: a step is shorter than its compute or than its bytes take, or nothing tells the compute.
    """
    spread = _run_spread(rows)
    compute, model = _fit_compute(rows, StepModel(trained=trained, start=start), spread)
    for row in rows:
        _check_compute(row, model)
    used = {row for one in compute.values() for row in one.rows}
    dense = [row for row in rows if not model.strategy(row).compresses]
    found, intra_node = start, None
    inside = [row for row in dense if row.num_nodes == 1 and row.ranks_per_node > 1 and row not in used]
    if inside:
        intra_node = _fit_link(inside, model, found, _with_intra_node, spread, "the links inside a node")
        found = _with_intra_node(found, intra_node.value)
    by_nodes: dict[int, FittedNumber] = {}
    for nodes in sorted({row.num_nodes for row in dense} - {1}):
        there = [row for row in dense if row.num_nodes == nodes]
        by_nodes[nodes] = _fit_link(there, model, found, _with_inter_node, spread, "the NICs")
    codec, notes = _fit_codec(rows, model, found, by_nodes, spread)
    return StepFit(
        model=model, compute=compute, intra_node=intra_node, by_nodes=by_nodes, codec=codec, spread=spread, notes=notes
    )


def _run_spread(rows: Sequence[TimedStep]) -> float:
    """Return the spread of a step from one run to the next: pooled from repeated settings, else `RUN_SPREAD`."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(row.setting, []).append(float(np.log(row.step_s)))
    repeated = [np.array(group) for group in groups.values() if len(group) > 1]
    freedom = sum(len(group) - 1 for group in repeated)
    if not freedom:
        return RUN_SPREAD
    variance = sum(float(np.sum((group - group.mean()) ** 2)) for group in repeated) / freedom
    return NORMAL_90 * float(np.sqrt(variance))


def _fit_compute(
    rows: Sequence[TimedStep], model: StepModel, spread: float
) -> tuple[dict[Batch, FittedNumber], StepModel]:
    """Return the factors on compute, and the model with them."""
    dense = [row for row in rows if row.num_nodes == 1 and not model.strategy(row).compresses]
    alone = [row for row in dense if row.world_size == 1]
    of_one_rank = {row.workload for row in alone}
    # A published compute row says less of this cluster than a step of one of its nodes; times of the workload do.
    others = [row for row in dense if row.workload not in of_one_rank and not model.has_own_compute(row)]
    groups: dict[Batch, list[TimedStep]] = {}
    for row in [*alone, *others]:
        groups.setdefault((row.workload, row.batch), []).append(row)
    found = {batch: _fit_factor(group, model, spread) for batch, group in groups.items()}
    model = model.with_factors({batch: one.value for batch, one in found.items()})
    for row in rows:
        if not model.knows_compute(row):
            raise SimnetError(
                f"{row.where}: no compute time: give the workload times or rows for this GPU, or add a row of one rank"
            )
    return found, model


def _fit_factor(rows: Sequence[TimedStep], model: StepModel, spread: float) -> FittedNumber:
    def error(factor: float, stretch: float = 0.0) -> float:
        return _mean_log_error(rows, lambda row: model.step_s(row, model.start, factor), stretch)

    if error(FACTORS[0]) > 0:
        least_s = model.step_s(rows[0], model.start, FACTORS[0])
        raise SimnetError(
            f"{rows[0].where}: a step of {format_seconds(rows[0].step_s)}: is shorter than the {format_seconds(least_s)} "
            "of its optimizer and links; check the unit, the batch and the cluster"
        )
    value = _root(error, FACTORS)
    low, high = (_root(lambda factor, s=sign: error(factor, s * spread), FACTORS) for sign in (-1.0, 1.0))  # type: ignore[misc]
    return FittedNumber(value=value, factors=_factors(value, low, high), rows=tuple(rows))


def _fit_link(
    rows: Sequence[TimedStep], model: StepModel, start: Calibration, change: Change, spread: float, what: str
) -> FittedNumber:
    """Fit an efficiency to steps; one that its bytes at the nominal rate exceed is refused."""

    def error(efficiency: float, stretch: float = 0.0) -> float:
        return _mean_log_error(rows, lambda row: model.step_s(row, change(start, efficiency)), stretch)

    if error(1.0) > spread:
        row = max(rows, key=lambda one: model.step_s(one, change(start, 1.0)) / one.step_s)
        least_s = model.step_s(row, change(start, 1.0))
        raise SimnetError(
            f"{row.where}: a step of {format_seconds(row.step_s)}: is shorter than the {format_seconds(least_s)} that "
            f"compute and bytes take at the nominal rate of {what}; check the unit, the batch and the cluster"
        )
    bounds = LEAST_EFFICIENCY, 1.0
    value = _root(error, bounds)
    scatter = _scatter([float(np.log(model.step_s(row, change(start, value)) / row.step_s)) for row in rows])
    wide = float(np.hypot(spread, scatter))
    # Longer steps give a lower efficiency.
    low, high = (_root(lambda tried, s=sign: error(tried, s * wide), bounds) for sign in (1.0, -1.0))  # type: ignore[misc]
    return FittedNumber(value=value, factors=_factors(value, low, high), rows=tuple(rows))


def _fit_codec(
    rows: Sequence[TimedStep],
    model: StepModel,
    links: Calibration,
    by_nodes: dict[int, FittedNumber],
    spread: float,
) -> tuple[FittedNumber | None, tuple[str, ...]]:
    """Return the fitted efficiency of the codec, or why there is none."""
    compressed = [row for row in rows if model.strategy(row).compresses]
    known = [row for row in compressed if row.num_nodes in {1, *by_nodes}]
    if not known:
        return None, ()
    fewest = min(row.num_nodes for row in known)
    used = [row for row in known if row.num_nodes == fewest]
    names = ", ".join(sorted({row.strategy for row in used}))
    if model.start.memory_bytes_per_s is None:
        return None, (f"steps of {names} are predicted, not fitted: no memory bandwidth is known; give --base",)
    found = _with_inter_node(links, by_nodes[fewest].value) if fewest in by_nodes else links

    def error(efficiency: float, stretch: float = 0.0) -> float:
        tried = replace(found, codec_efficiency=efficiency)
        return _mean_log_error(used, lambda row: model.step_s(row, tried), stretch)

    bounds = LEAST_CODEC_EFFICIENCY, 1.0
    slowest, fastest = error(bounds[0]), error(bounds[1])
    if slowest - fastest < 1e-6:
        return None, (f"steps of {names} are predicted, not fitted: the calibration holds the times of their kernels",)
    if fastest > 0 or slowest < 0:
        than = "shorter than without kernels" if fastest > 0 else "longer than any codec explains"
        return None, (f"steps of {names} on {fewest} nodes are {than}: they are predicted, not fitted",)
    value = _root(error, bounds)
    low, high = (_root(lambda tried, s=sign: error(tried, s * spread), bounds) for sign in (1.0, -1.0))  # type: ignore[misc]
    return FittedNumber(value=value, factors=_factors(value, low, high), rows=tuple(used)), ()


def _check_compute(row: TimedStep, model: StepModel) -> None:
    """Refuse a step that compute alone exceeds by more than steps differ from run to run."""
    compute_s = model.compute_s(row)
    if row.step_s < compute_s * (1 - RUN_SPREAD):
        raise SimnetError(
            f"{row.where}: a step of {format_seconds(row.step_s)}: is shorter than its compute of "
            f"{format_seconds(compute_s)}; check the unit, the batch and the workload"
        )


def _mean_log_error(rows: Iterable[TimedStep], predict: Callable[[TimedStep], float], stretch: float) -> float:
    """Return the mean of log(predicted / measured), with measured times stretched by exp(stretch)."""
    return float(np.mean([np.log(predict(row) / row.step_s) for row in rows])) - stretch


def _scatter(log_errors: Sequence[float]) -> float:
    """Return how far single rows lie about a fit: half the width between their 5 % and 95 % points."""
    low, high = np.percentile(log_errors, [5.0, 95.0])
    return float(high - low) / 2


def _root(error: Callable[[float], float], bounds: tuple[float, float]) -> float:
    """Return where an error is 0, on a logarithmic scale; the nearer bound if it is nowhere."""
    at_low, at_high = (error(bound) for bound in bounds)
    if at_low * at_high >= 0:
        return bounds[0] if abs(at_low) < abs(at_high) else bounds[1]
    low, high = np.log(bounds)
    return float(np.exp(find_root(lambda tried: error(float(np.exp(tried))), float(low), float(high))))


def _factors(value: float, low: float, high: float) -> Interval:
    return max(min(low / value, 1.0), 1 / MAX_SPREAD), min(max(high / value, 1.0), MAX_SPREAD)


def _with_intra_node(calibration: Calibration, efficiency: float) -> Calibration:
    return replace(calibration, intra_node=_with_efficiency(calibration.intra_node, efficiency))


def _with_inter_node(calibration: Calibration, efficiency: float) -> Calibration:
    return replace(calibration, inter_node=_with_efficiency(calibration.inter_node, efficiency))


def _with_efficiency(link: LinkCalibration, efficiency: float) -> LinkCalibration:
    return replace(link, efficiency=efficiency)
