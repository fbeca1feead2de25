"""Fit a launch time and a time per element to measured kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simnet.calibration import bootstrap
from simnet.calibration.fit import Draw, Fitted, Floats, Residual, non_negative
from simnet.calibration.measurement import Measurements, Series
from simnet.errors import SimnetError
from simnet.units import Bandwidth, Duration, format_bytes, format_seconds

NAMES: dict[str, str] = {
    "update_": "binsgdm_update",
    "update_quantize_pack_": "binsgdm_update_quantize",
    "quantize_pack": "quantize",
    "merge": "merge",
    "mean_": "mean",
    "unpack_apply_": "binsgdm_apply",
    "gather": "gather_gradients",
    "cast_fp32_bf16": "cast",
}
"""Kernel as measured to kernel as simulated."""
COPY = "copy"
COPY_BYTES = 8
"""Bytes that a copy of fp32 moves an element."""
PREFERRED = ("triton", "cpu", "torch", "reference")
LEAST_SIZES = 3
LEAST_ELEMENTS = 2**16
"""Smaller kernels are left out where that makes a bad fit better: buckets are larger, and small ones lie in a cache."""

KNEE_GAIN = 0.6
"""A second slope is worth a sentence if it brings the mean error to this part of what it was."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One series: elements that the kernel works on, all vectors counted, their number, and every repetition [s]."""

    kernel: str
    num_elements: float
    num_vectors: int
    samples_s: Floats

    @property
    def median_s(self) -> float:
        """Median of the repetitions [s]."""
        return float(np.median(self.samples_s))


def timed(measurements: Sequence[Measurements]) -> list[Timed]:
    """Return the kernels of measurement files that the simulator knows, in the fastest implementation measured."""
    found = [series for whole in measurements for series in whole.series if series.kind == "kernel"]
    known = [series for series in found if series.name in NAMES or series.name == COPY]
    return [
        _timed(series)
        for name in dict.fromkeys(series.name for series in known)
        for series in _one_kind([series for series in known if series.name == name])
    ]


def fitted(known: Sequence[Timed], bound: float, draws: int) -> Fitted:
    """Fit every kernel by itself, and the memory bandwidth to copies.

    Args:
        known: from `timed`.
        bound: mean relative error from which on small sizes are left out.
        draws: bootstrap fits.

    Raises:
        SimnetError: a kernel at fewer than `LEAST_SIZES` sizes.
    """
    table: dict[str, object] = {}
    kernels: dict[str, object] = {}
    shown: dict[str, str] = {}
    intervals: dict[str, tuple[float, float]] = {}
    residuals: list[Residual] = []
    notes: list[str] = []
    for name in dict.fromkeys(one.kernel for one in known):
        rows, said = _chosen(_with_most_vectors([one for one in known if one.kernel == name]), bound)
        notes += said
        launch_s, element_s = _solve(rows)
        if not element_s > 0:
            raise SimnetError(f"kernel {name}: does not take longer for more elements; measure larger sizes, in quiet")
        spread = bootstrap.factors({"launch": launch_s, "element": element_s}, _draw(rows), draws)
        residuals += _residuals(rows, launch_s, element_s)
        shown[name] = f"{format_seconds(launch_s)} + {_shown(element_s, spread['element'])}"
        if name == COPY:
            table["memory_bandwidth"] = Bandwidth(float(f"{COPY_BYTES / element_s:.4g}")).text()
            intervals["memory_bandwidth"] = (1 / spread["element"][1], 1 / spread["element"][0])
            continue
        kernels[name] = _kernel(launch_s, element_s, rows)
        intervals |= {f"kernels.{name}.time_per_element": spread["element"]}
        intervals |= {f"kernels.{name}.launch": spread["launch"]} if "launch" in spread else {}
    if kernels:
        table["kernels"] = kernels
    return Fitted(table=table, shown=shown, intervals=intervals, residuals=tuple(residuals), notes=tuple(notes))


def _timed(series: Series) -> Timed:
    vectors = int(series.labels.get("num_vectors", 1))
    return Timed(
        kernel=NAMES.get(series.name, series.name),
        num_elements=float(series.labels["num_elements"]) * vectors,
        num_vectors=vectors,
        samples_s=np.array(series.values, dtype=np.float64),
    )


def _one_kind(series: Sequence[Series]) -> list[Series]:
    """Return the series of one implementation, one type and one setup: the first of `PREFERRED` that is there."""

    def rank(one: Series) -> tuple[int, bool, int]:
        kernels = str(one.labels["kernels"])
        place = PREFERRED.index(kernels) if kernels in PREFERRED else -1
        return place, one.labels["dtype"] not in {"float32", "fp32"}, one.setup

    best = min(map(rank, series))
    return [one for one in series if rank(one) == best]


def _with_most_vectors(rows: Sequence[Timed]) -> Sequence[Timed]:
    """Return the rows of the largest number of vectors: an element costs less the more vectors are averaged at once."""
    most = max(row.num_vectors for row in rows)
    return [row for row in rows if row.num_vectors == most]


def _chosen(rows: Sequence[Timed], bound: float) -> tuple[Sequence[Timed], list[str]]:
    """Return the rows to fit, and sentences about what was left out and what a straight line cannot say."""
    name, vectors = rows[0].kernel, rows[0].num_vectors
    if len({row.num_elements for row in rows}) < LEAST_SIZES:
        raise SimnetError(f"kernel {name}: at least {LEAST_SIZES} sizes are needed; measure more")
    notes = [f"kernel {name}: fitted to {vectors} vectors at once; fewer cost more an element"] if vectors > 1 else []
    error = _mean_error(rows)
    large = [row for row in rows if row.num_elements >= LEAST_ELEMENTS]
    is_enough = len({row.num_elements for row in large}) >= LEAST_SIZES
    if error > bound and is_enough and _mean_error(large) < error:
        notes.append(
            f"kernel {name}: off by {error:.0%} with those below {LEAST_ELEMENTS:,} elements, which are left out"
        )
        rows, error = large, _mean_error(large)
    if error > bound:
        notes += _knee(rows, error)
    return rows, notes


def _knee(rows: Sequence[Timed], error: float) -> list[str]:
    """Say where a second slope begins, if one explains the times much better: what no longer fits into a cache."""
    times = np.array([row.median_s for row in rows])
    sizes = np.array([row.num_elements for row in rows])
    errors = {}
    for knee in sorted(set(sizes.tolist()))[1:-1]:
        columns = np.stack([np.ones_like(sizes), np.minimum(sizes, knee), np.maximum(sizes - knee, 0)], axis=1)
        errors[knee] = float(np.mean(np.abs(columns @ non_negative(columns, times) / times - 1)))
    best = min(errors, key=errors.__getitem__, default=0.0)
    if not errors or errors[best] > KNEE_GAIN * error:
        return []
    return [
        f"kernel {rows[0].kernel}: another time per element from {best:,.0f} elements on would bring {error:.0%} to "
        f"{errors[best]:.0%}, as where a cache ends; a calibration has one"
    ]


def _mean_error(rows: Sequence[Timed]) -> float:
    residuals = _residuals(rows, *_solve(rows))
    return sum(abs(residual.error) for residual in residuals) / len(residuals)


def _solve(rows: Sequence[Timed], medians_s: Sequence[float] | None = None) -> tuple[float, float]:
    """Return launch [s] and time per element [s]."""
    times = np.array(medians_s if medians_s is not None else [row.median_s for row in rows])
    columns = np.array([[1.0, row.num_elements] for row in rows])
    launch_s, element_s = non_negative(columns, times)
    return float(launch_s), float(element_s)


def _draw(rows: Sequence[Timed]) -> Draw:
    def draw(rng: np.random.Generator) -> Mapping[str, float]:
        picked = [rows[pick] for pick in rng.integers(len(rows), size=len(rows))]
        medians = [float(np.median(rng.choice(row.samples_s, size=len(row.samples_s)))) for row in picked]
        if len({row.num_elements for row in picked}) < 2:
            raise SimnetError("all of one size")
        launch_s, element_s = _solve(picked, medians)
        return {"launch": launch_s, "element": element_s}

    return draw


def _kernel(launch_s: float, element_s: float, rows: Sequence[Timed]) -> dict[str, object]:
    sizes = [row.num_elements for row in rows]
    return {
        "launch": Duration(float(f"{launch_s:.4g}")).text(),
        "time_per_element": Duration(float(f"{element_s:.4g}")).text(),
        "source": f"{len(rows)} series, {min(sizes):,.0f} to {max(sizes):,.0f} elements",
    }


def _residuals(rows: Sequence[Timed], launch_s: float, element_s: float) -> list[Residual]:
    return [
        Residual(
            group=f"kernel {row.kernel}",
            label=f"{row.num_elements:,.0f} elements",
            measured_s=row.median_s,
            fitted_s=launch_s + element_s * row.num_elements,
        )
        for row in rows
    ]


def _shown(element_s: float, spread: tuple[float, float]) -> str:
    low, high = (element_s * factor * 1e9 for factor in spread)
    rate = format_bytes(4 / element_s) + "/s of fp32" if element_s else "free"
    return f"{element_s * 1e9:.4g} ns an element ({rate}; 90 %: {low:.4g} to {high:.4g} ns)"
