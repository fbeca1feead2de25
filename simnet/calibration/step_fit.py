"""Fit compute, links and codec to step times, one number after another, each to the rows that tell it.

1. Compute: a factor on forward and backward for each workload and batch, from steps of one rank; without such, and
   without times of its own in the workload, from dense steps of one node.
2. The links inside a node: one efficiency, from the dense steps of one node that compute has not used.
3. The network: one efficiency of the NICs for each number of nodes, from the dense steps there.
4. The codec: `codec_efficiency`, from the compressed steps of the fewest nodes, where the network weighs least.
5. The exchange of each compressing strategy: one efficiency of the NICs for each further number of nodes, since its
   messages, all-to-alls among them, do not fill a NIC as a dense all-reduce does.

Links that other files measure are not fitted. All other rows are predicted. Each number meets its rows in the mean of
their logarithms.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from simnet.calibration.fit import Fit, Fitted, Interval, Values, counted
from simnet.calibration.step_model import Batch, StepModel, Trained
from simnet.calibration.step_rows import TimedStep
from simnet.cluster.hardware import Calibration
from simnet.cluster.network_costs import LibraryCosts
from simnet.core.errors import SimnetError
from simnet.core.units import format_seconds

LINKS = {"intra_node": "the links inside a node", "inter_node": "the NICs"}
FACTORS, EFFICIENCIES, CODEC_EFFICIENCIES = (1e-4, 1e4), (1e-5, 1.0), (1e-4, 1.0)
"""Bounds of factors on compute, and of fractions of the nominal and of the memory bandwidth."""
LEAST_EFFICIENCY, MOST_STRETCHED = 0.02, 10
"""Of a link, and of a step over that at the nominal rate: beyond both, a time in milliseconds was given as seconds."""
ROUNDING = 1e-6
RUN_SPREAD = 0.05
"""Of a step from one run to the next, 5 % and 95 % points, where a table repeats no setting: rows of one setting in
Table 1 of 1-bit Adam (64 GPUs, with and without accumulation, two networks) differ by 1 to 7 %."""
LEAST_SPREAD = 0.005
"""Where a table repeats its settings all but exactly."""
NORMAL_90 = 1.645
"""The 95 % point of the standard normal distribution."""
NUMBER = "number"
"""Name of the only free number of a fit."""
Number = Fitted[TimedStep]


@dataclass(frozen=True, kw_only=True)
class StepFit:
    """All that was fitted to step times.

    Attributes:
        model: with the fitted compute times.
        compute: factor on the workload's compute, by workload and batch.
        intra_node: efficiency of the links inside a node.
        by_nodes: efficiency of the NICs by number of nodes, ascending.
        codec: fraction of the memory bandwidth that encode and decode reach.
        exchanges: efficiency of the NICs in the exchange of a compressing strategy, by number of nodes, ascending.
        spread: of a step from one run to the next, 5 % and 95 % points.
        notes: sentences for the reader.
    """

    model: StepModel
    compute: dict[Batch, Number]
    intra_node: Number | None
    by_nodes: dict[int, Number]
    codec: Number | None
    exchanges: dict[str, dict[int, Number]]
    spread: float
    notes: tuple[str, ...]

    @property
    def fitted_rows(self) -> set[TimedStep]:
        """Rows that some number was fitted to."""
        exchanges = [number for by_nodes in self.exchanges.values() for number in by_nodes.values()]
        numbers = [*self.compute.values(), *self.by_nodes.values(), self.intra_node, self.codec, *exchanges]
        return {row for number in numbers if number is not None for row in number.rows}


def fit(
    rows: Sequence[TimedStep],
    trained: Trained,
    start: Calibration,
    known_links: Collection[str] = (),
    *,
    refits_compute: bool = False,
) -> StepFit:
    """Fit to rows of one or more tables.

    Args:
        rows: to fit.
        trained: what was trained.
        start: calibration that gives all that is not fitted.
        known_links: links of `LINKS` that other files measure.
        refits_compute: fit the compute to rows of one node also where the workload has times of its own.

    Raises:
        SimnetError: a step is shorter than its compute or than its bytes take, or nothing tells the compute.
    """
    if "inter_node" not in known_links:
        # Points of the start were measured with other efficiencies: the new ones take their place as a whole.
        start = replace(start, by_nodes=())
    model = StepModel(trained=trained, start=start)
    fits = _Fits(model=model, spread=_run_spread(rows))
    compute = fits.compute(rows, {row.workload for row in rows} if refits_compute else ())
    fits = fits.with_factors(compute)
    # Twice: only after compute is known do steps show that are shorter than it.
    # Steps that the workload's own compute exceeds were made on faster GPUs, or with other settings.
    if short := {row.workload for row in rows if fits.model.knows_compute(row) and _excess(row, fits.model) > 1}:
        compute |= fits.compute(rows, short)
        fits = fits.with_factors(compute)
    for row in rows:
        _check_compute(row, fits.model)
    refitted = _refitted_notes(compute, model)
    used = {row for factor in compute.values() for row in factor.rows}
    dense = [row for row in rows if not fits.model.strategy(row).compresses]
    links, intra_node = fits.model.start, None
    inside = [row for row in dense if row.num_nodes == 1 and row.ranks_per_node > 1 and row not in used]
    if inside and "intra_node" not in known_links:
        intra_node = fits.link(inside, links, "intra_node")
        links = with_efficiency(links, "intra_node", intra_node.value)
    by_nodes: dict[int, Number] = {}
    # Each number of nodes by itself: published rows show no direction in which more nodes change a bandwidth.
    for nodes in sorted({row.num_nodes for row in dense if "inter_node" not in known_links} - {1}):
        by_nodes[nodes] = fits.link([row for row in dense if row.num_nodes == nodes], links, "inter_node")
    # Without the network of a number of nodes a codec would have to explain that, too.
    known_nodes = {row.num_nodes for row in rows} if "inter_node" in known_links else {1, *by_nodes}
    compressed = [row for row in rows if row not in dense and row.num_nodes in known_nodes]
    codec, notes = fits.codec(compressed, links, by_nodes)
    if codec is not None:
        links = replace(links, codec_efficiency=codec.value)
    # Each row tells one number: a second fit to it would find the first one's rounding.
    used = set(codec.rows) if codec is not None else set()
    exchanges, more_notes = fits.exchanges([row for row in compressed if row not in used], links)
    return StepFit(
        model=fits.model,
        compute=compute,
        intra_node=intra_node,
        by_nodes=by_nodes,
        codec=codec,
        exchanges=exchanges,
        spread=fits.spread,
        notes=(*refitted, *notes, *more_notes, *_slower_notes(dense)),
    )


def _fit_of(rows: Sequence[TimedStep], bounds: Interval, step_s: Callable[[TimedStep, float], float]) -> Fit[TimedStep]:
    """Return the fit of one number to rows, of which those of one setting are predicted once."""

    def times_s(values: Values, steps: Sequence[TimedStep]) -> list[float]:
        predicted: dict[tuple[object, ...], float] = {}
        for row in steps:
            if row.setting not in predicted:
                predicted[row.setting] = step_s(row, values[NUMBER])
        return [predicted[row.setting] for row in steps]

    return Fit(
        rows=rows, times=[row.step_s for row in rows], model=times_s, free={NUMBER: 1.0}, bounds={NUMBER: bounds}
    )


@dataclass(frozen=True, kw_only=True)
class _Fits:
    """The fits of single numbers to steps that differ by `spread` from one run to the next."""

    model: StepModel
    spread: float

    def with_factors(self, compute: Mapping[Batch, Number]) -> "_Fits":
        """Return the fits with these factors on compute."""
        factors = {batch: factor.value for batch, factor in compute.items()}
        return _Fits(model=self.model.with_factors(factors), spread=self.spread)

    def compute(self, rows: Sequence[TimedStep], again: Collection[str] = ()) -> dict[Batch, Number]:
        """Return the factors on compute, where rows tell them; of workloads `again` also in place of their own."""
        dense = [row for row in rows if row.num_nodes == 1 and not self.model.strategy(row).compresses]
        # A rank that trains alone sends nothing: its step is compute, whatever the links are.
        alone = [row for row in dense if row.world_size == 1]
        of_one_rank = {row.workload for row in alone}
        # A published compute row says less of this cluster than a step of one of its nodes; times of the workload do.
        others = [
            row
            for row in dense
            if row.workload not in of_one_rank and (row.workload in again or not self.model.has_own_compute(row))
        ]
        groups: dict[Batch, list[TimedStep]] = {}
        for row in [*alone, *others]:
            groups.setdefault((row.workload, row.batch), []).append(row)
        return {batch: self._factor(group) for batch, group in groups.items()}

    def _factor(self, rows: Sequence[TimedStep]) -> Number:
        model = self.model
        fit = _fit_of(rows, FACTORS, lambda row, factor: model.step_s(row, model.start, factor))
        if fit.mean_log({NUMBER: FACTORS[0]}) > 0:
            least_s = model.step_s(rows[0], model.start, FACTORS[0])
            raise SimnetError(
                f"{rows[0].where}: a step of {format_seconds(rows[0].step_s)}: is shorter than the "
                f"{format_seconds(least_s)} of its optimizer and links; check the unit, the batch and the cluster"
            )
        return fit.fitted(self.spread)

    def link(self, rows: Sequence[TimedStep], start: Calibration, link: str) -> Number:
        """Return the efficiency of a link."""

        def step_s(row: TimedStep, efficiency: float) -> float:
            return self.model.step_s(row, with_efficiency(start, link, efficiency))

        fit = _fit_of(rows, EFFICIENCIES, step_s)
        # At the nominal rate a step is as short as it can be: a shorter one has another cluster, or another unit.
        if fit.mean_log({NUMBER: 1.0}) > max(self.spread, RUN_SPREAD):
            row = max(rows, key=lambda row: step_s(row, 1.0) / row.step_s)
            raise SimnetError(
                f"{row.where}: a step of {format_seconds(row.step_s)}: is shorter than the "
                f"{format_seconds(step_s(row, 1.0))} that compute and bytes take at the nominal rate of {LINKS[link]}; "
                "check the unit, the batch and the cluster"
            )
        value = fit.nearest()
        row = max(rows, key=lambda row: row.step_s / step_s(row, 1.0))
        if value < LEAST_EFFICIENCY and row.step_s > MOST_STRETCHED * step_s(row, 1.0):
            raise SimnetError(
                f"{row.where}: a step of {format_seconds(row.step_s)}: gives {LINKS[link]} {value:.2%} of their rate, "
                f"which no network has: is the time in ms? Then name the column step_ms, else check the cluster"
            )
        # How far single rows lie about the fit: half the width between their 5 % and 95 % points.
        low, high = np.percentile(np.log1p(fit.errors({NUMBER: value})), [5.0, 95.0])
        return fit.fitted(math.hypot(self.spread, float(high - low) / 2))

    def codec(
        self, compressed: Sequence[TimedStep], links: Calibration, by_nodes: Mapping[int, Number]
    ) -> tuple[Number | None, tuple[str, ...]]:
        """Return the efficiency of the codec, from the rows of the fewest nodes, or why there is none."""
        if not compressed:
            return None, ()
        # The less a step waits for the network, the more of it is the codec.
        fewest = min(row.num_nodes for row in compressed)
        rows = [row for row in compressed if row.num_nodes == fewest]
        what = f"steps of {', '.join(sorted({row.strategy for row in rows}))} are predicted, not fitted"
        if self.model.start.memory_bytes_per_s is None:
            return None, (f"{what}: no memory bandwidth is known; give --base",)
        start = with_efficiency(links, "inter_node", by_nodes[fewest].value) if fewest in by_nodes else links
        fit = _fit_of(
            rows,
            CODEC_EFFICIENCIES,
            lambda row, efficiency: self.model.step_s(row, replace(start, codec_efficiency=efficiency)),
        )
        # A codec matters only where its two ends differ.
        slowest, fastest = (fit.mean_log({NUMBER: bound}) for bound in CODEC_EFFICIENCIES)
        if slowest - fastest < ROUNDING:
            return None, (f"{what}: the calibration holds the times of their kernels",)
        if fastest > 0 or slowest < 0:
            than = "shorter than without kernels" if fastest > 0 else "longer than any codec explains"
            return None, (f"{what}: on {counted(fewest, 'node')} they are {than}",)
        return fit.fitted(self.spread), ()

    def exchanges(
        self, compressed: Sequence[TimedStep], links: Calibration
    ) -> tuple[dict[str, dict[int, Number]], tuple[str, ...]]:
        """Return the efficiency of the NICs by strategy and number of nodes, and what explains the rows it cannot."""
        exchanges: dict[str, dict[int, Number]] = {}
        notes = []
        groups: dict[tuple[str, int], list[TimedStep]] = {}
        for row in compressed:
            # Without a time of kernels, the exchange would have to explain that of the codec, too.
            if row.num_nodes > 1 and links.memory_bytes_per_s is not None:
                groups.setdefault((self.model.strategy(row).kind, row.num_nodes), []).append(row)
        for (kind, nodes), rows in sorted(groups.items()):
            fit = _fit_of(rows, EFFICIENCIES, partial(self._exchanged_s, kind, links))
            slowest, fastest = (fit.mean_log({NUMBER: bound}) for bound in EFFICIENCIES)
            if fastest > 0 or slowest < 0:
                than = (
                    "shorter than its bytes take at the nominal rate"
                    if fastest > 0
                    else "longer than any rate explains"
                )
                notes.append(f"steps of {kind} on {nodes} nodes are predicted, not fitted: they are {than}")
                continue
            exchanges.setdefault(kind, {})[nodes] = fit.fitted(self.spread)
        return exchanges, tuple(notes)

    def _exchanged_s(self, kind: str, links: Calibration, row: TimedStep, efficiency: float) -> float:
        others = {name: library for name, library in links.libraries.items() if kind not in library.carries}
        library = LibraryCosts(carries=(kind,), efficiency=efficiency)
        return self.model.step_s(row, replace(links, libraries={**others, kind: library}))


def _run_spread(rows: Sequence[TimedStep]) -> float:
    """Return the spread of a step from one run to the next: pooled from repeated settings, else `RUN_SPREAD`."""
    # Equal times are copies of one measurement, or so rounded that they tell no spread.
    groups: dict[tuple[object, ...], set[float]] = {}
    for row in rows:
        groups.setdefault(row.setting, set()).add(math.log(row.step_s))
    repeated = [np.array(sorted(group)) for group in groups.values() if len(group) > 1]
    freedom = sum(len(group) - 1 for group in repeated)
    if not freedom:
        return RUN_SPREAD
    # Pooled, since most settings are repeated two or three times at most.
    variance = sum(float(np.sum((group - group.mean()) ** 2)) for group in repeated) / freedom
    return max(NORMAL_90 * math.sqrt(variance), LEAST_SPREAD)


def _refitted_notes(compute: Mapping[Batch, Number], model: StepModel) -> list[str]:
    """Return where times of the workload's own were replaced by those of one node."""
    return [
        f"compute of {row.workload or 'the workload'}, batch {batch}: fitted to {counted(len(factor.rows), 'row')} of "
        f"one node, {factor.value:.3g} of the workload's own, in place of that"
        for (_, batch), factor in compute.items()
        for row in factor.rows[:1]
        if row.world_size > 1 and model.has_own_compute(row)
    ]


def _slower_notes(dense: Sequence[TimedStep]) -> list[str]:
    """Return where a step on fewer nodes is longer than on more, with as many samples a rank."""
    best: dict[tuple[object, ...], dict[int, TimedStep]] = {}
    for row in dense:
        known = best.setdefault(row.curve, {})
        if row.num_nodes not in known or row.step_s < known[row.num_nodes].step_s:
            known[row.num_nodes] = row
    pairs = [pair for by_nodes in best.values() for pair in pairwise(by_nodes[nodes] for nodes in sorted(by_nodes))]
    return [
        f"{few.where}: {format_seconds(few.step_s)} on {counted(few.num_nodes, 'node')} is longer than "
        f"{format_seconds(more.step_s)} on {more.num_nodes} ({more.where}): fewer nodes are slower, so that one of the "
        "rows is not of a quiet cluster; measure it again"
        for few, more in pairs
        if few.step_s > more.step_s * (1 + RUN_SPREAD)
    ]


def _excess(row: TimedStep, model: StepModel) -> float:
    """Return compute over the step, so that it cannot be that long above 1."""
    return model.compute_s(row) * (1 - RUN_SPREAD) / row.step_s


def _check_compute(row: TimedStep, model: StepModel) -> None:
    """Refuse a step of unknown compute, or one that compute alone exceeds by more than steps differ between runs."""
    if not model.knows_compute(row):
        raise SimnetError(
            f"{row.where}: no compute time: give the workload times or rows for this GPU, or add a step of one rank"
        )
    compute_s = model.compute_s(row)
    if _excess(row, model) > 1:
        raise SimnetError(
            f"{row.where}: a step of {format_seconds(row.step_s)}: is shorter than its compute of "
            f"{format_seconds(compute_s)}; check the unit, the batch and the workload, or add a step of one rank or of "
            "one node, to which compute is fitted"
        )


def with_efficiency(calibration: Calibration, link: str, efficiency: float) -> Calibration:
    """Return a calibration with one number as the efficiency of "intra_node" or "inter_node"."""
    return replace(calibration, **{link: replace(getattr(calibration, link), efficiency=efficiency)})
