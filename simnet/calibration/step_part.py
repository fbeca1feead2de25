"""What step times give a calibration: the network by nodes, links inside a node, the codec; and all rows compared."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from simnet.calibration import merged_calibration, nccl, step_fit
from simnet.calibration.calibration_file import as_calibration
from simnet.calibration.comparison import Comparison
from simnet.calibration.fit import FittedPart, Interval, counted, text_with_interval
from simnet.calibration.step_fit import Number, StepFit
from simnet.calibration.step_model import Batch, Trained
from simnet.calibration.step_rows import StepTable, TimedStep
from simnet.cluster.hardware import Calibration, Cluster
from simnet.core.errors import SimnetError
from simnet.core.units import format_seconds
from simnet.engine.scenario import Scenario
from simnet.strategies import DenseAllReduce, Strategy

CODEC = "codec_efficiency"
AT_THE_NOMINAL_RATE = 0.995
MAX_NAMES = 8
"""Columns that a note names."""
ALGORITHMS = ("ring", "hierarchical", "tree")
LARGE = 1.15
"""A ratio of two bandwidths from which on another algorithm is worth a word."""


@dataclass(frozen=True, kw_only=True)
class FittedSteps(FittedPart):
    """What step times give a calibration, and all that was fitted to them."""

    steps: StepFit


def fit_tables(  # noqa: PLR0913 - rows, what was trained, and what is known beside
    tables: Sequence[StepTable],
    held_out: Sequence[StepTable],
    trained: Trained,
    others: Mapping[str, Any],
    known_links: Collection[str] = (),
    *,
    refits_compute: bool = False,
) -> FittedSteps:
    """Fit tables of step times.

    Args:
        tables: to fit.
        held_out: to predict.
        trained: what was trained.
        others: what other files and a base give, in file form.
        known_links: links that other files measure.
        refits_compute: as of `step_fit.fit`.

    Raises:
        SimnetError: a step is shorter than its compute, or nothing tells the compute.
    """
    rows = [row for table in tables for row in table.rows]
    others_rows = [row for table in held_out for row in table.rows]
    start = as_calibration(others)
    step_fitted = step_fit.fit(rows, trained, start, known_links, refits_compute=refits_compute)
    cluster = trained.scenario(rows[0].workload).cluster
    part = _table(step_fitted, cluster, [table.path.name for table in tables])
    intervals = _intervals(step_fitted)
    # Rows are predicted by what is written, rounded and over its base, and not by what was fitted.
    merged = merged_calibration.lay_over({**part, "intervals": intervals}, others)
    whole = as_calibration(merged)
    compared = [_comparison(row, step_fitted, whole) for row in [*rows, *others_rows]]
    return FittedSteps(
        steps=step_fitted,
        table=part,
        shown=_shown(step_fitted) | _speedups(compared, [*rows, *others_rows], step_fitted),
        intervals=intervals,
        residuals=tuple(compared),
        notes=(
            *_notes(step_fitted, tables),
            *_left_out(step_fitted, others, merged),
            *step_fitted.notes,
            *better_algorithm_note(step_fitted, rows, trained, start, known_links),
        ),
    )


def _table(fitted: StepFit, cluster: Cluster, names: Iterable[str]) -> dict[str, Any]:
    source = f"step times: {', '.join(names)}"
    table: dict[str, Any] = {}
    if fitted.codec:
        table[CODEC] = _rounded(fitted.codec.value)
    if fitted.intra_node:
        table["intra_node"] = {
            "measured_on": cluster.intra_node.bytes_per_s.text(),
            "efficiency": _rounded(fitted.intra_node.value),
            "source": source,
        }
    if fitted.by_nodes:
        # The plain efficiency serves clusters beyond all points: the largest is nearest to them.
        largest = fitted.by_nodes[max(fitted.by_nodes)]
        table["inter_node"] = {
            "measured_on": cluster.inter_node.bytes_per_s.text(),
            "efficiency": _rounded(largest.value),
            "source": source,
        }
        table["by_nodes"] = _points(fitted.by_nodes)
        if algorithm := _algorithm(fitted):
            table["all_reduce"] = algorithm
    if fitted.exchanges:
        table["libraries"] = {
            kind: {"carries": [kind], "by_nodes": _points(by_nodes), "source": source}
            for kind, by_nodes in fitted.exchanges.items()
        }
    return table


def _algorithm(fitted: StepFit) -> str | None:
    """Return the all-reduce that the experiment names, or else the base, which the bandwidths go with."""
    strategies = {fitted.model.strategy(row) for node in fitted.by_nodes.values() for row in node.rows}
    named = {
        strategy.algorithm or fitted.model.start.all_reduce
        for strategy in strategies
        if isinstance(strategy, DenseAllReduce)
    }
    # A bandwidth that explains rows of several algorithms goes with none of them.
    return named.pop() if len(named) == 1 else None


def _points(by_nodes: Mapping[int, Number]) -> list[dict[str, Any]]:
    return [
        {
            "nodes": nodes,
            "efficiency": _rounded(efficiency.value),
            "intervals": {"efficiency": [_rounded(factor) for factor in efficiency.factors]},
        }
        for nodes, efficiency in by_nodes.items()
    ]


def _intervals(fitted: StepFit) -> dict[str, Interval]:
    intervals: dict[str, Interval] = {}
    if fitted.codec:
        intervals[CODEC] = fitted.codec.factors
    if fitted.intra_node:
        intervals["intra_node.efficiency"] = fitted.intra_node.factors
    if fitted.by_nodes:
        intervals["inter_node.efficiency"] = fitted.by_nodes[max(fitted.by_nodes)].factors
    return intervals


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _shown(fitted: StepFit) -> dict[str, str]:
    shown = {_compute_name(batch): _compute_text(factor, fitted) for batch, factor in fitted.compute.items()}
    if fitted.intra_node:
        shown["intra_node.efficiency"] = fitted.intra_node.text
    for nodes, efficiency in fitted.by_nodes.items():
        shown[f"inter_node.efficiency, {nodes} nodes"] = efficiency.text
    if fitted.codec:
        shown[CODEC] = fitted.codec.text
    for kind, by_nodes in fitted.exchanges.items():
        shown |= {f"{kind}, efficiency, {nodes} nodes": efficiency.text for nodes, efficiency in by_nodes.items()}
    return shown


def _compute_name(batch: Batch) -> str:
    return ", ".join(filter(None, ["compute", batch[0], f"batch {batch[1]}"]))


def _compute_text(fitted: Number, fits: StepFit) -> str:
    """Return forward and backward of a micro-batch, and what factor on the workload's own compute this is."""
    row = fitted.rows[0]
    workload = fits.model.workload(row)
    seconds = float(workload.forward_s or 0.0) + float(workload.backward_s or 0.0)
    of_own = f", {fitted.value:.3g} of the workload's" if fits.model.gives_compute(row) else ""
    return text_with_interval(seconds, fitted.factors, format_seconds) + of_own


def _comparison(row: TimedStep, fitted: StepFit, calibration: Calibration) -> Comparison:
    accumulated = f" x {row.grad_accumulation}" if row.grad_accumulation > 1 else ""
    return Comparison(
        series=f"steps, {row.strategy}",
        label=f"{counted(row.num_nodes, 'node')} x {row.ranks_per_node}, batch {row.batch}{accumulated} ({row.where})",
        measured=row.step_s,
        # Beyond these digits there is only the tolerance of the solver.
        predicted=float(f"{fitted.model.step_s(row, calibration):.6g}"),
        role="fitted" if row in fitted.fitted_rows else "held out",
    )


def _speedups(compared: Sequence[Comparison], rows: Sequence[TimedStep], fitted: StepFit) -> dict[str, str]:
    """Return measured and predicted speedups over the dense steps of the same setting, where not both are fitted."""
    dense = {
        (*row.curve[:-1], row.num_nodes): comparison
        for row, comparison in zip(rows, compared, strict=True)
        if not fitted.model.strategy(row).compresses
    }
    shown = {}
    for row, comparison in zip(rows, compared, strict=True):
        of_dense = dense.get((*row.curve[:-1], row.num_nodes))
        # Of two fitted steps the speedup is no prediction.
        if (
            of_dense is None
            or not fitted.model.strategy(row).compresses
            or of_dense.role == comparison.role == "fitted"
        ):
            continue
        measured, predicted = of_dense.measured / comparison.measured, of_dense.predicted / comparison.predicted
        shown[f"{row.strategy}, {counted(row.num_nodes, 'node')}"] = (
            f"speedup {predicted:.2f}x, measured {measured:.2f}x ({predicted / measured - 1:+.1%})"
        )
    return shown


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _left_out(fitted: StepFit, others: Mapping[str, Any], merged: Mapping[str, Any]) -> list[str]:
    """Return what of a base's bandwidths by nodes is left out, and on how few numbers of nodes the others rest."""
    numbers = sorted({row.num_nodes for node in fitted.by_nodes.values() for row in node.rows})
    if not numbers:
        return []
    points = [point["nodes"] for point in others.get("by_nodes", ()) if "efficiency" in point]
    kept = {point["nodes"] for point in merged["by_nodes"]}
    dropped = [str(nodes) for nodes in points if nodes not in kept]
    notes = []
    if dropped:
        notes.append(
            f"bandwidths of the base on {', '.join(dropped)} nodes are left out, since they go with another "
            f"all-reduce: beyond {counted(numbers[-1], 'node')} that of {numbers[-1]} is taken"
        )
    if len({1, *numbers}) < nccl.MIN_NUMBERS:
        notes.append(nccl.few_numbers_note(sorted({1, *numbers})))
    return [*notes, *_slower(fitted)]


def _slower(fitted: StepFit) -> list[str]:
    """Return where fewer nodes have less bandwidth than more."""
    return [
        f"NICs give {few.value:.3g} of their rate on {counted(at_few, 'node')} and {more.value:.3g} on {at_more}: "
        "fewer nodes are slower, so that another all-reduce ran than the one that is counted, or some rows are not of "
        "a quiet network; name what ran, or measure again"
        for (at_few, few), (at_more, more) in pairwise(sorted(fitted.by_nodes.items()))
        if few.value < nccl.SLOWER * more.value
    ]


def _notes(fitted: StepFit, tables: Iterable[StepTable]) -> list[str]:
    notes = [f"{table.path.name}: not read: {_names(table.unread)}" for table in tables if table.unread]
    if fitted.spread == step_fit.RUN_SPREAD:
        notes.append(
            f"no setting is repeated with another time: steps are taken to differ by {step_fit.RUN_SPREAD:.0%} from "
            "run to run, as the intervals say; give repetitions"
        )
    notes += [
        f"steps on {counted(nodes, 'node')} are as short as the nominal rate of the NICs allows: check these rows"
        for nodes, efficiency in fitted.by_nodes.items()
        if efficiency.value > AT_THE_NOMINAL_RATE
    ]
    return notes


def better_algorithm_note(
    fitted: StepFit,
    rows: Sequence[TimedStep],
    trained: Trained,
    start: Calibration,
    known_links: Collection[str] = (),
) -> tuple[str, ...]:
    """Return a sentence that names a better all-reduce than the fitted one; nothing where none is clearly better.

    Libraries do not say what they run, and algorithms differ most in the bytes that leave a node on two nodes and on
    more: the best is the one under which two numbers of nodes give one bandwidth. Published rows chosen so are
    predicted better on larger clusters (docs/evidence/validation.md).
    """
    disagreement = _ratio(fitted)
    dense = [row for row in rows if not fitted.model.strategy(row).compresses]
    # An option names the algorithm already: it is known what ran.
    if disagreement is None or disagreement < LARGE or any(":" in row.strategy for row in dense):
        return ()
    ratios = {}
    for algorithm in ALGORITHMS:
        try:
            ratio = _ratio(step_fit.fit(dense, _with_algorithm(trained, algorithm), start, known_links))
        except SimnetError:
            continue  # steps too short for this algorithm's bytes were not made by it
        if ratio is not None:
            ratios[algorithm] = ratio
    best = min(ratios, key=lambda algorithm: ratios[algorithm], default="")
    if not best or ratios[best] > disagreement / LARGE:
        return ()
    first, second = sorted(fitted.by_nodes)[:2]
    return (
        f"the bandwidths on {first} and {second} nodes differ {disagreement:.2f} times; under algorithm = '{best}' "
        f"they differ {ratios[best]:.2f} times: if it is not known what ran, name that in the experiment and calibrate "
        "again",
    )


def _ratio(fitted: StepFit) -> float | None:
    """Return the ratio of the bandwidths on the two smallest numbers of nodes, at least 1."""
    rates = [fitted.by_nodes[nodes].value for nodes in sorted(fitted.by_nodes)[:2]]
    return max(rates) / min(rates) if len(rates) == 2 else None


def _with_algorithm(trained: Trained, algorithm: str) -> Trained:
    """Return what was trained, with another algorithm of the dense all-reduce."""

    def changed(strategy: Strategy | None) -> Strategy | None:
        return replace(strategy, algorithm=algorithm) if isinstance(strategy, DenseAllReduce) else strategy

    def scenario(workload: str) -> Scenario:
        plain = trained.scenario(workload)
        strategy, baseline = changed(plain.strategy), changed(plain.baseline)
        if not any(isinstance(system, DenseAllReduce) for system in (strategy, baseline)):
            baseline = DenseAllReduce(algorithm=algorithm)
        return replace(plain, strategy=strategy, baseline=baseline)

    return trained._replace(scenario=scenario)
