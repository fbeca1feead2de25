"""Fit what computes to measured times: kernels, and backward beside communication.

A kernel takes launch + elements x time per element. Past the end of a cache an element takes longer, so a second slope
is fitted where it explains the times much better. Communication slows backward by one factor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simnet.calibration import fit
from simnet.calibration.comparison import Comparison
from simnet.calibration.fit import (
    Fit,
    FittedPart,
    Floats,
    Interval,
    Linear,
    Samples,
    compared,
    duration_text,
    rate_text,
    widen,
)
from simnet.calibration.measurement_file import MeasurementFile, Series, Setup
from simnet.cluster.kernel_times import fraction_beyond_cache
from simnet.core.errors import SimnetError
from simnet.core.system_options import SystemOptions
from simnet.core.units import format_bytes, format_seconds
from simnet.strategies.base import every_kernel
from simnet.workload.kernel_cost import ADAMW

SIMULATED_NAMES: dict[str, str] = {
    "update_": "binsgdm_update",
    "update_quantize_pack_": "binsgdm_update_quantize",
    "quantize_pack": "quantize",
    "update_shape_pack_": "binsgdm_update_shape",
    "shape_pack_": "shape",
    "merge_shaped_": "merge_shaped",
    "mean_": "mean",
    "unpack_apply_": "binsgdm_apply",
    "gather": "gather_gradients",
    "cast_fp32_bf16": "cast",
}
"""Names of simulated kernels by the names of measured ones, where the two differ."""
COPY = "copy"
GPU = "cuda"
"""Of `Setup.device`."""
COPY_BYTES = 8
"""Bytes moved by a copy of one fp32 element: one read, one write."""
SLOWEST = "reference"
PREFERRED = ("triton", "cpu", "torch", SLOWEST)
"""Implementations from the fastest to the slowest."""
LAUNCHED = "launch_"
"""Begins the names of kernels that were launched to an idle GPU, the host's part included."""
LAUNCH, ELEMENT, BEYOND, RESULT = "launch", "time_per_element", "time_per_element_beyond", "time_per_result"
MIN_SIZES = 3
MIN_ELEMENTS = 2**16
"""Smaller sizes are left out where that improves a bad fit: gradient buckets are larger and do not fit in a cache."""

KNEE_GAIN = 0.6
"""A second slope is kept if it lowers the mean error to this fraction."""
VECTORS_OF = {"merge": "num_nodes", "mean": "ranks_per_node"}
"""Attribute of a setup that gives the number of vectors of a kernel, by simulated kernel."""


@dataclass(frozen=True, kw_only=True)
class TimedKernel(Samples):
    """One measured series.

    Attributes:
        kernel: name of the simulated kernel.
        num_elements: elements of all vectors together.
        num_vectors: vectors that the kernel combines.
        layout_vectors: vectors that the measured layout would combine; None if unknown.
        options: of the system that the kernel belongs to.
    """

    kernel: str
    num_elements: float
    num_vectors: int
    layout_vectors: int | None = None
    options: SystemOptions = field(default_factory=SystemOptions)


@dataclass(frozen=True)
class _Line(Linear[TimedKernel]):
    """Times of a kernel over its elements, with another slope beyond those that a cache holds; inf for one slope."""

    cache_elements: float

    def columns(self, rows: Sequence[TimedKernel]) -> dict[str, Floats]:
        """Return what multiplies each time: 1, elements within the cache, beyond, and of results if these vary."""
        elements = np.array([row.num_elements for row in rows])
        # As `KernelTime.seconds` charges it: beyond the cache all elements take longer, not the last ones alone.
        beyond = elements * [fraction_beyond_cache(row.num_elements, self.cache_elements) for row in rows]
        columns = {LAUNCH: np.ones(len(rows)), ELEMENT: elements - beyond, BEYOND: beyond}
        if len({row.num_vectors for row in rows}) > 1:
            columns[RESULT] = elements / [row.num_vectors for row in rows]
        return columns

    def through(self, rows: Sequence[TimedKernel]) -> "_FittedLine":
        """Solve for the times."""
        free = dict.fromkeys(self.columns(rows), 0.0)
        fit = Fit(rows=rows, times=[row.median_s for row in rows], model=self, free=free)
        times_s = fit.solve()
        return _FittedLine(fit, self.cache_elements, times_s, fit.mean_error(times_s))


class _FittedLine(NamedTuple):
    """A fit of `_Line`: times by key of a calibration [s], and the mean relative error."""

    fit: Fit[TimedKernel]
    cache_elements: float
    times_s: Mapping[str, float]
    error: float

    def intervals(self, draws: int) -> dict[str, Interval]:
        """Return the interval of each time, with the end of the cache fixed: else slopes would not be comparable."""
        num_counts = len({row.num_vectors for row in self.fit.rows})

        def solve(resample: Fit[TimedKernel]) -> Mapping[str, float]:
            # Such a resample has no slope: it is drawn again.
            if len({row.num_elements for row in resample.rows}) < 2:
                raise SimnetError("all rows have one size")
            if len({row.num_vectors for row in resample.rows}) < num_counts:
                raise SimnetError("rows of a number of vectors are missing")
            return resample.solve()

        return self.fit.intervals(self.times_s, draws, solve)


def select_kernels(measurements: Sequence[MeasurementFile]) -> list[TimedKernel]:
    """Return the kernels in measurement files that the simulator knows, in the fastest measured implementation.

    AdamW counts on a GPU alone: on a CPU a workload has the time of its optimizer, measured in the model.
    """
    timed = [
        (series, whole.setups[series.setup])
        for whole in measurements
        for series in whole.series
        if series.kind == "kernel"
    ]
    names = {*SIMULATED_NAMES, *every_kernel(), COPY}
    known = [
        (series, setup)
        for series, setup in timed
        if series.name in names and (setup.device == GPU or series.name != ADAMW.name)
    ]
    return [
        _timed_kernel(series, setup)
        for name in dict.fromkeys(series.name for series, _ in known)
        for series, setup in _preferred_implementation([pair for pair in known if pair[0].name == name])
    ]


def fit_kernels(train: Sequence[TimedKernel], bound: float, draws: int) -> list[FittedPart]:
    """Fit every kernel by itself, and the memory bandwidth to copies.

    Args:
        train: from `select_kernels`.
        bound: mean relative error above which small sizes are left out.
        draws: bootstrap resamples.

    Returns:
        A part of a calibration for each kernel.
    """
    names = dict.fromkeys(row.kernel for row in train)
    return [_fit_kernel([row for row in train if row.kernel == name], bound, draws) for name in names]


def fit_launch(measurements: Sequence[MeasurementFile]) -> FittedPart | None:
    """Return the launch of a kernel without a time: the median over kernels that an idle GPU was given, tiny ones.

    The interval is that over kernels, since the next one may be any of them. None where none was measured so.
    """
    launches_s = [
        float(np.median(series.values))
        for whole in measurements
        for series in whole.series
        if series.kind == "kernel" and series.name.startswith(LAUNCHED)
        and series.labels["kernels"] != SLOWEST and whole.setups[series.setup].device == GPU
    ]  # fmt: skip
    if not launches_s:
        return None
    launch_s, (low, high) = float(np.median(launches_s)), np.percentile(launches_s, [fit.LOW, fit.HIGH]).tolist()
    return FittedPart(
        table={"kernel_launch": duration_text(launch_s)},
        shown={"kernel_launch": f"{format_seconds(launch_s)} (90 % of {len(launches_s)} kernels: {format_seconds(low)} "
               f"to {format_seconds(high)})"},
        intervals={"kernel_launch": (low / launch_s, high / launch_s)},
        is_checked=False,
    )  # fmt: skip


def _fit_kernel(train: Sequence[TimedKernel], bound: float, draws: int) -> FittedPart:
    name = train[0].kernel
    cost = every_kernel().get(name)
    # Only a kernel with bytes of a result depends on how many vectors share one.
    shares_results = cost is not None and cost.bytes_per_result > 0
    line, notes = _select_fit(train if shares_results else _of_one_vector_count(train), bound)
    rows = line.fit.rows
    if not line.times_s[ELEMENT] + line.times_s.get(RESULT, 0.0) > 0:
        raise SimnetError(
            f"kernel {name}: time must grow with the number of elements; measure larger sizes on an idle machine"
        )
    residuals = compared(f"kernel {name}", rows, np.asarray(line.fit.model(line.times_s, rows)))
    spread = {
        key: widen(factors, residuals) if key != "launch" else factors for key, factors in line.intervals(draws).items()
    }
    # A copy only moves memory: its slower slope is the memory bandwidth beyond all caches.
    if name == COPY:
        slowest, of_slowest = max((line.times_s[key], key) for key in (ELEMENT, BEYOND))
        table: dict[str, object] = {"memory_bandwidth": rate_text(COPY_BYTES / slowest)}
        intervals = {"memory_bandwidth": (1 / spread[of_slowest][1], 1 / spread[of_slowest][0])}
    else:
        table = {"kernels": {name: _kernel_table(line, rows)}}
        intervals = {f"kernels.{name}.{key}": factors for key, factors in spread.items()}
    return FittedPart(
        table=table,
        shown={name: _shown(line, spread)},
        intervals=intervals,
        residuals=residuals,
        notes=tuple(notes),
    )


def _timed_kernel(series: Series, setup: Setup) -> TimedKernel:
    over = VECTORS_OF.get(SIMULATED_NAMES.get(series.name, series.name), "")
    vectors = series.count("num_vectors") if "num_vectors" in series.labels else 1
    return TimedKernel(
        kernel=SIMULATED_NAMES.get(series.name, series.name),
        # A file counts the elements of one vector, a calibration those of all.
        num_elements=float(series.number("num_elements") * vectors),
        num_vectors=vectors,
        layout_vectors=getattr(setup, over) if over and setup.world_size > 1 else None,
        options=series.options,
        label=f"{series.number('num_elements') * vectors:,.0f} elements",
        samples_s=np.array(series.values, dtype=np.float64),
    )


def _preferred_implementation(timed: Sequence[tuple[Series, Setup]]) -> list[tuple[Series, Setup]]:
    """Return the series of one implementation, one dtype and one setup, the first in the order of `PREFERRED`."""

    def rank(pair: tuple[Series, Setup]) -> tuple[int, bool, int]:
        kernels = str(pair[0].labels["kernels"])
        speed = PREFERRED.index(kernels) if kernels in PREFERRED else -1
        return speed, pair[0].labels["dtype"] not in {"float32", "fp32"}, pair[0].setup

    best = min(map(rank, timed))
    return [pair for pair in timed if rank(pair) == best]


def _of_one_vector_count(rows: Sequence[TimedKernel]) -> Sequence[TimedKernel]:
    """Return the rows of one number of vectors: the nearest to that of the layout, else the largest.

    The time per element falls with the number of vectors that are averaged at once, so one fit needs one number.
    """
    wanted = {row.layout_vectors for row in rows} - {None}
    counts = sorted({row.num_vectors for row in rows})
    if len(wanted) == 1:
        aim = wanted.pop() or 1
        # By ratio: 4 vectors are as far from 2 as from 8.
        best = min(counts, key=lambda count: abs(math.log(count / aim)))
    else:
        best = counts[-1]
    return [row for row in rows if row.num_vectors == best]


def _select_fit(rows: Sequence[TimedKernel], bound: float) -> tuple[_FittedLine, list[str]]:
    """Return the fit, and notes about the rows that are left out.

    Args:
        rows: of one kernel.
        bound: mean relative error above which small sizes are left out.
    """
    name, vectors = rows[0].kernel, rows[0].num_vectors
    if any(row.options != rows[0].options for row in rows):
        options = sorted({row.options.text() for row in rows})
        raise SimnetError(f"kernel {name}: timed with {' and with '.join(options)}: calibrate each alone")
    if len({row.num_elements for row in rows}) < MIN_SIZES:
        raise SimnetError(f"kernel {name}: at least {MIN_SIZES} sizes are needed; measure more sizes")
    notes = (
        [f"kernel {name}: fitted to {vectors} vectors at once; fewer take longer per element"]
        if vectors > 1 and len({row.num_vectors for row in rows}) == 1
        else []
    )
    line = _best_line(rows)
    large = [row for row in rows if row.num_elements >= MIN_ELEMENTS]
    # Only if the fit of all sizes is bad: a fit that also holds for small sizes says more.
    if line.error > bound and len({row.num_elements for row in large}) >= MIN_SIZES:
        line_of_large = _best_line(large)
        if line_of_large.error < line.error:
            notes.append(
                f"kernel {name}: sizes below {MIN_ELEMENTS:,} elements are left out (mean error with them: "
                f"{line.error:.0%})"
            )
            return line_of_large, notes
    return line, notes


def _best_line(rows: Sequence[TimedKernel]) -> _FittedLine:
    """Return a single slope, or two slopes where the end of a cache explains the times much better."""
    straight = _Line(math.inf).through(rows)
    sizes = sorted({row.num_elements for row in rows})
    # Two sizes within the cache determine its slope, and one must lie beyond.
    bent = [_Line(size).through(rows) for size in sizes[1:-1]]
    # Beyond a cache an element takes longer; a bend the other way is noise.
    bent = [line for line in bent if line.times_s[BEYOND] > line.times_s[ELEMENT] > 0]
    best = min(bent, key=lambda line: line.error, default=straight)
    return best if best.error <= KNEE_GAIN * straight.error else straight


def _kernel_table(line: _FittedLine, rows: Sequence[TimedKernel]) -> dict[str, object]:
    """Return the fit as the table of a kernel in a calibration file."""
    sizes = [row.num_elements for row in rows]
    cache = {"cached_elements": round(line.cache_elements)} if math.isfinite(line.cache_elements) else {}
    times = {key: line.times_s[key] for key in (LAUNCH, ELEMENT, RESULT, BEYOND) if key in line.times_s}
    if not cache:
        del times[BEYOND]
    return {
        **{name: duration_text(seconds) for name, seconds in times.items()},
        **cache,
        **({"options": rows[0].options} if rows[0].options else {}),
        "source": f"{len(rows)} series, {min(sizes):,.0f} to {max(sizes):,.0f} elements",
    }


def _shown(line: _FittedLine, spread: Mapping[str, Interval]) -> str:
    low, high = (line.times_s[ELEMENT] * factor * 1e9 for factor in spread.get("time_per_element", (1.0, 1.0)))
    text = f"{format_seconds(line.times_s[LAUNCH])} + {line.times_s[ELEMENT] * 1e9:.4g} ns per element"
    rate = f"{format_bytes(4 / line.times_s[ELEMENT])}/s of fp32; " if line.times_s[ELEMENT] else ""
    text += f" ({rate}90 %: {low:.4g} to {high:.4g} ns)"
    if math.isfinite(line.cache_elements):
        text += f"; {line.times_s[BEYOND] * 1e9:.4g} ns beyond {line.cache_elements:,.0f} elements"
    if of_results := line.times_s.get(RESULT):
        text += f"; {of_results * 1e9:.4g} ns per element of the result"
    return text


@dataclass(frozen=True, kw_only=True)
class BackwardPair:
    """Every repetition of backward, alone and overlapped with one collective [s]."""

    label: str
    alone_s: Floats
    overlapped_s: Floats


def select_pairs(measurements: Sequence[MeasurementFile]) -> list[BackwardPair]:
    """Return the pairs of backward times in measurement files."""
    pairs = []
    for whole in measurements:
        # Copies that stand for a collective come at several shares of the bandwidth.
        times = {
            (series.name, *(str(series.labels.get(label, "")) for label in ("model", "collective", "share"))): np.array(
                series.values, dtype=np.float64
            )
            for series in whole.series
            if series.kind == "interference"
        }
        for (name, model, collective, share), overlapped_s in times.items():
            if name != "backward_beside":
                continue
            if ("backward_alone", model, collective, share) not in times:
                raise SimnetError(
                    f"interference: backward of {model} with {collective}: needs a time without it; measure again"
                )
            label = f"backward of {model} overlapped with {collective}{f' at {share}' if share else ''}"
            alone_s = times["backward_alone", model, collective, share]
            pairs.append(BackwardPair(label=label, alone_s=alone_s, overlapped_s=overlapped_s))
    return pairs


def fit_slowdown(train: Sequence[BackwardPair], draws: int) -> FittedPart:
    """Fit one factor on backward: the geometric mean of the slowdowns, at least 1."""
    slowdown = _slowdown([(float(np.median(pair.alone_s)), float(np.median(pair.overlapped_s))) for pair in train])
    resampled = fit.resampled_median

    def draw(rng: np.random.Generator) -> Mapping[str, float]:
        picked = [train[pick] for pick in rng.integers(len(train), size=len(train))]
        return {
            "backward_slowdown": _slowdown(
                [(resampled(p.alone_s, rng), resampled(p.overlapped_s, rng)) for p in picked]
            )
        }

    spread = fit.interval_factors({"backward_slowdown": slowdown}, draw, draws)
    low, high = (max(1.0, slowdown * factor) for factor in spread["backward_slowdown"])
    return FittedPart(
        table={"backward_slowdown": float(f"{slowdown:.4g}")},
        shown={"backward_slowdown": f"{slowdown:.3f} (90 %: {low:.3f} to {high:.3f})"},
        intervals=spread,
        residuals=tuple(_backward_residual(pair, slowdown) for pair in train),
        # One factor stands for all collectives: the spread between them belongs to its interval.
        is_checked=False,
    )


def _backward_residual(pair: BackwardPair, slowdown: float) -> Comparison:
    return Comparison(
        series="backward overlapped with communication",
        label=pair.label,
        measured=float(np.median(pair.overlapped_s)),
        predicted=slowdown * float(np.median(pair.alone_s)),
        role="fitted",
    )


def _slowdown(medians_s: Sequence[tuple[float, float]]) -> float:
    # The geometric mean treats a slowdown and a speedup of the same ratio alike; below 1 there is only noise.
    return max(1.0, float(np.exp(np.mean([np.log(overlapped / alone) for alone, overlapped in medians_s]))))
