"""The fit of numbers to measured times, by scipy: rows, a model of their times, what is free, and bounds.

One engine for links, kernels, step times, NCCL and published sets. A model is linear in costs that cannot be negative,
or any function of the free numbers. `solve` takes the least squares, `posterior` the most likely numbers beside what is
believed of them, `zero_mean_error` the number at which the errors of its rows cancel. Intervals come from resampled
rows, from the posterior, or from the spread of rows. scipy loads where a fit is solved.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from simnet.calibration.comparison import Comparison, by_series, mean_error
from simnet.core.bounded_types import MAX_SPREAD
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration

Floats = NDArray[np.float64]
Interval = tuple[float, float]
Values = Mapping[str, float]
Row = TypeVar("Row")

RELATIVE_TOLERANCE = 1e-8
RELATIVE_STEP = 1e-6
"""Of finite differences: far above the rounding of a simulation, far below the scale on which its times bend."""
MAX_ROUNDS = 30
HUBER = 0.05
"""Relative residual beyond which a row of a linear fit counts by its distance and not by the distance's square."""

DRAWS = 200
SEED = 20260101
LOW, HIGH = 5.0, 95.0
"""Percentiles of a 90 % interval."""
Z = 1.6449
"""Standard deviations of a normal number in half of its 90 % interval."""
MIN_FACTOR = 0.01
"""Replaces a factor of 0 (a resample whose fit does without the cost), since draws take the logarithm of a factor."""
MIN_FITTED_SHARE = 0.5
"""Share of the wanted resamples that must have a fit. A resample may have none, such as one with a single size."""
MAX_DRAWS_RATIO = 10
"""Resamples tried at most, as a multiple of those wanted; if too few of these have a fit, there are too few rows."""


class Linear(ABC, Generic[Row]):
    """A model whose times are sums of costs, each times a column; a cost cannot be negative."""

    @abstractmethod
    def columns(self, rows: Sequence[Row]) -> Mapping[str, Floats]:
        """Return what multiplies each cost, by its name, with one number a row."""

    def __call__(self, values: Values, rows: Sequence[Row]) -> Floats:
        """Return the time of each row [s]; a cost or a column that is missing adds nothing."""
        total: Floats = np.zeros(len(rows))
        for name, column in self.columns(rows).items():
            total = total + values.get(name, 0.0) * column
        return total


Model = Callable[[Values, Sequence[Row]], Sequence[float] | Floats]
"""Returns times [s] at values of the free numbers by name, and of rows."""


class Prior(NamedTuple):
    """What is believed of a number above 0 before its rows: log-normal.

    Attributes:
        middle: its median.
        spread: standard deviation of its logarithm.
    """

    middle: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Fit(Generic[Row]):
    """Rows with a measured time each, and a model of these times with free numbers.

    Attributes:
        rows: whatever the model takes.
        times: measured, above 0: one a row, or as many as the model returns [s].
        model: times at values of the free numbers by name, and of the rows.
        free: the first guess of each free number, not 0; of a linear model any number.
        bounds: of a number that is looked for between them.
        prior: what is believed of free numbers, all above 0, before their rows.
    """

    rows: Sequence[Row]
    times: Sequence[float] | Floats
    model: Model[Row]
    free: dict[str, float]
    bounds: Mapping[str, Interval] = field(default_factory=dict)
    prior: Mapping[str, Prior] = field(default_factory=dict)

    def errors(self, values: Values) -> Floats:
        """Return the signed relative error of each time: modelled / measured - 1."""
        modelled = np.asarray(self.model(values, self.rows), dtype=np.float64)
        errors: Floats = modelled / np.asarray(self.times) - 1
        return errors

    def mean_error(self, values: Values) -> float:
        """Return the mean absolute relative error."""
        return float(np.mean(np.abs(self.errors(values))))

    def solve(self) -> dict[str, float]:
        """Return the free numbers with the least squares of relative errors.

        Example:
            >>> model = lambda values, rows: [values["launch"] + values["rate"] * row for row in rows]
            >>> fit = Fit(rows=[1, 2, 4], times=[5.0, 7.0, 11.0], model=model, free={"launch": 1.0, "rate": 1.0})
            >>> {name: round(value, 6) for name, value in fit.solve().items()}
            {'launch': 3.0, 'rate': 2.0}
        """
        return self._non_negative(self.model) if isinstance(self.model, Linear) else self._least_squares()

    def posterior(
        self, sigmas: Floats, huber: float, starts: Sequence[Values] = ({},)
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return the most likely values of the numbers of `prior`, and the standard deviation of each one's logarithm.

        Args:
            sigmas: standard deviation of the relative error of each time.
            huber: number of standard deviations from which on a row, or what is believed, counts by its distance.
            starts: where the search begins, each with other first guesses of some numbers: the best end counts.

        Source: Laplace's method: near its most likely point the belief in logarithms is taken as normal, with the
            inverse of J'J as covariance (Gelman et al., "Bayesian Data Analysis", 2013, chapter 4).
        """
        from scipy.optimize import least_squares

        names = list(self.prior)
        middles, spreads = (np.array(column) for column in zip(*self.prior.values(), strict=True))

        def values(logs: Floats) -> dict[str, float]:
            return dict(zip(names, map(float, middles * np.exp(logs)), strict=True))

        def residuals(logs: Floats) -> Floats:
            errors = _less_when_far(self.errors(values(logs)) / sigmas, huber)
            return np.concatenate([errors, _less_when_far(logs / spreads, huber)])

        def solved(first: Values) -> Any:
            # As logarithms around the medians: a cost then stays above 0, and a belief is a plain square.
            start = np.log([{**self.free, **first}[name] for name in names]) - np.log(middles)
            return least_squares(residuals, start, method="lm")

        # Minima of `min` over algorithms and protocols: a single start may end in one that is not the least.
        best = min(map(solved, starts), key=lambda solution: float(solution.cost))
        jacobian = np.asarray(best.jac)
        # Residuals are in standard deviations already, so that J'J alone is the information.
        deviations = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
        return values(best.x), dict(zip(names, map(float, deviations), strict=True))

    def mean_log(self, values: Values) -> float:
        """Return the mean of log(modelled / measured)."""
        return float(np.mean(np.log1p(self.errors(values))))

    def zero_mean_error(self) -> float:
        """Return the only free number, at which relative errors have the mean 0, between its bounds."""
        ((name, bounds),) = self.bounds.items()
        return _root(lambda value: float(np.mean(self.errors({name: value}))), *bounds)

    def zero_mean_log(self, off: float = 0.0) -> float:
        """Return the only free number, above 0, at which logarithms of errors have this mean, between its bounds."""
        ((name, bounds),) = self.bounds.items()
        # Bounds lie decades apart: over the logarithm a tolerance is relative everywhere between them.
        logs = (math.log(bound) for bound in bounds)
        return math.exp(_root(lambda log: self.mean_log({name: math.exp(log)}) - off, *logs))

    def nearest(self, off: float = 0.0) -> float:
        """Return the number of `zero_mean_log`, or its nearer bound where there is none."""
        ((name, (low, high)),) = self.bounds.items()
        at_low, at_high = (self.mean_log({name: bound}) - off for bound in (low, high))
        # A number beyond its bounds is no mistake here: its rows scatter, and the callers have judged their ends.
        if at_low * at_high >= 0:
            return low if abs(at_low) < abs(at_high) else high
        return self.zero_mean_log(off)

    def fitted(self, spread: float) -> "Fitted[Row]":
        """Return the number of `nearest` with its interval: what rows that are longer and shorter by `spread` give.

        Args:
            spread: logarithm by which a row differs from one run to the next, 5 % and 95 % points.
        """
        # Longer rows ask for more of a time and for less of a bandwidth: sorted, the ends are right for either.
        value, (low, high) = self.nearest(), sorted(map(self.nearest, (spread, -spread)))
        factors = max(min(low / value, 1.0), 1 / MAX_SPREAD), min(max(high / value, 1.0), MAX_SPREAD)
        return Fitted(value=value, factors=factors, rows=tuple(self.rows))

    def intervals(
        self, values: Values, draws: int, solve: Callable[["Fit[Any]"], Values] | None = None
    ) -> dict[str, Interval]:
        """Return the 90 % interval of each value by a bootstrap of rows that are `Samples`; see `interval_factors`.

        Args:
            values: fitted to all rows.
            draws: number of resamples with a fit.
            solve: fits a resample, under the names of the values; `Fit.solve` if not given.
        """

        def draw(rng: np.random.Generator) -> Values:
            # The rows vary the choice of sizes and groups, the repetitions vary the noise of one measurement.
            picked: Any = [self.rows[pick] for pick in rng.integers(len(self.rows), size=len(self.rows))]
            medians = [resampled_median(row.samples_s, rng) for row in picked]
            return (solve or Fit.solve)(replace(self, rows=picked, times=medians))

        return interval_factors(values, draw, draws)

    def chosen(self, always: Sequence[str], gain: float) -> "Fit[Row]":
        """Return the linear fit of those costs that matter: those of `always`, then each that lowers the error enough.

        Args:
            always: costs that are always kept.
            gain: fraction by which a further cost must lower the mean absolute relative error.
        """
        assert isinstance(self.model, Linear)
        present = [name for name, column in self.model.columns(self.rows).items() if column.any()]
        chosen = [name for name in always if name in present]
        others = [name for name in present if name not in always]

        def error(names: Sequence[str]) -> float:
            tried = self.with_free(names)
            return tried.mean_error(tried.solve())

        best = error(chosen) if chosen else math.inf
        while others:
            errors = {name: error([*chosen, name]) for name in others}
            name = min(errors, key=errors.__getitem__)
            # The second test ends the search on exact data, where rounding alone would pass the first.
            if errors[name] > best * (1 - gain) or errors[name] > best - 1e-9:
                break
            best = errors[name]
            chosen.append(name)
            others.remove(name)
        return self.with_free(chosen)

    def with_free(self, names: Iterable[str]) -> "Fit[Row]":
        """Return the linear fit of these costs alone."""
        return replace(self, free=dict.fromkeys(names, 0.0))

    def _least_squares(self) -> dict[str, float]:
        """Solve by Levenberg and Marquardt's method, each number as a factor on its first guess: of one scale then."""
        from scipy.optimize import least_squares

        def values(factors: Floats) -> dict[str, float]:
            return {
                name: first * factor for (name, first), factor in zip(self.free.items(), factors.tolist(), strict=True)
            }

        def residuals(factors: Floats) -> Floats:
            return self.errors(values(factors))

        start = np.ones(len(self.free))
        # The solver's own steps would be lost in the rounding of a simulation.
        steps = [RELATIVE_STEP] * len(start)
        return values(np.asarray(least_squares(residuals, start, method="lm", diff_step=steps).x))

    def _non_negative(self, model: "Linear[Row]") -> dict[str, float]:
        """Solve for costs of 0 or more, outliers weighing less.

        Source: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23, on rows divided by their times;
            reweighted after Huber, "Robust Statistics", 1981. Not `least_squares(loss="huber")`, which stays inside the
            bounds: a cost that is absent must come out as exactly 0, since the file then leaves it out.
        """
        from scipy.optimize import nnls

        columns = model.columns(self.rows)
        # Divided by its time, each row counts by its relative error. Scaled to one length, columns of seconds and
        # columns of bytes meet the same tolerance of the solver.
        relative = np.stack([columns[name] for name in self.free], axis=1) / np.asarray(self.times)[:, None]
        norms = np.linalg.norm(relative, axis=0)
        scale = np.where(norms > 0, norms, 1.0)
        weights = np.ones(len(relative))
        costs = np.zeros(relative.shape[1])
        for _ in range(MAX_ROUNDS):
            before, costs = costs, nnls(relative / scale * weights[:, None], weights)[0] / scale
            if np.allclose(costs, before, rtol=1e-6, atol=0):
                break
            # Weight squared times residual squared is then linear in the residual beyond HUBER.
            weights = np.sqrt(HUBER / np.maximum(np.abs(relative @ costs - 1), HUBER))
        return dict(zip(self.free, costs.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Fitted(Generic[Row]):
    """A fitted number, its 90 % interval as factors on it, and the rows that it was fitted to."""

    value: float
    factors: Interval
    rows: tuple[Row, ...]

    @property
    def text(self) -> str:
        """The number with its interval."""
        return text_with_interval(self.value, self.factors, "{:.4g}".format)


def _less_when_far(errors: Floats, huber: float) -> Floats:
    """Return residuals whose squares grow with a far row's error, not with the error's square."""
    far = np.abs(errors) > huber
    # The solver squares what it gets: this square is Huber's loss, 2 h |e| - h^2, which meets e^2 at h.
    errors[far] = np.sign(errors[far]) * np.sqrt(2 * huber * np.abs(errors[far]) - huber**2)
    return errors


def factors_of(spread: float) -> Interval:
    """Return the 90 % interval of a log-normal number, as factors on its median: 1 / f and f."""
    factor = min(math.exp(Z * spread), 1 / MIN_FACTOR)
    return 1 / factor, factor


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function between `low` and `high` is zero, by Brent's method."""
    from scipy.optimize import brentq

    try:
        return float(brentq(function, low, high, xtol=RELATIVE_TOLERANCE**2 * (high - low), rtol=RELATIVE_TOLERANCE))
    except ValueError as error:
        raise SimnetError(
            f"calibration: no value between {low:g} and {high:g} meets the rows; check measurements.csv"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A row to fit: every repetition of one measured time.

    Attributes:
        label: for people.
        samples_s: the repetitions [s].
    """

    label: str = ""
    samples_s: Floats

    @property
    def median_s(self) -> float:
        """Median of the repetitions [s]."""
        return float(np.median(self.samples_s))


def compared(series: str, rows: Sequence[Samples], times_s: Floats) -> tuple[Comparison, ...]:
    """Return the residuals of rows at fitted times [s]."""
    return tuple(
        Comparison(series=series, label=row.label, measured=row.median_s, predicted=time_s, role="fitted")
        for row, time_s in zip(rows, times_s.tolist(), strict=True)
    )


Resample = Callable[[np.random.Generator], Values]
"""Fits to one resample; returns values under the names of the fit itself."""


def interval_factors(point: Values, draw: Resample, draws: int = DRAWS) -> dict[str, Interval]:
    """Return the 90 % interval of every fitted value, as two factors on it: `MIN_FACTOR` to 1, and 1 to `MAX_SPREAD`.

    A value of zero has no factors and is left out. A value of nearly zero has the upper factor `MAX_SPREAD`, which says
    that the rows do not determine it.

    Args:
        point: the fitted values by name.
        draw: fits once to a resample that it draws with the given generator.
        draws: number of resamples with a fit.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, percentile interval, chapter 13. Not
        `scipy.stats.bootstrap`, which resamples one level, and has no resample without a fit.

    Example:
        >>> low, high = interval_factors({"mean": 10.0}, lambda rng: {"mean": rng.normal(10.0, 1.0)})["mean"]
        >>> 0.8 < low < 0.9 and 1.1 < high < 1.2
        True
    """
    # From a fixed seed: the same measurements give the same file.
    rng = np.random.default_rng(SEED)
    resamples: list[Values] = []
    for tried in range(MAX_DRAWS_RATIO * draws):
        if tried >= draws and len(resamples) >= draws * MIN_FITTED_SHARE:
            break
        try:
            resamples.append(draw(rng))
        # A resample with few distinct rows may leave a cost undetermined, which is no evidence about its size.
        except (SimnetError, np.linalg.LinAlgError):
            continue
    if len(resamples) < draws * MIN_FITTED_SHARE:
        raise SimnetError(
            "bootstrap: fewer than one resample in twenty has a fit; measure more sizes, or give more files"
        )
    return {name: _interval([drawn[name] / value for drawn in resamples]) for name, value in point.items() if value > 0}


def resampled_median(samples: Floats, rng: np.random.Generator) -> float:
    """Return the median of a resample of the same size."""
    return float(np.median(rng.choice(samples, size=len(samples))))


def _interval(ratios: Sequence[float]) -> Interval:
    low, high = np.percentile(ratios, [LOW, HIGH])
    # The fitted value must lie in its interval, even if every resample falls on one side of it.
    return min(max(float(low), MIN_FACTOR), 1.0), min(max(float(high), 1.0), MAX_SPREAD)


@dataclass(frozen=True, kw_only=True)
class FittedPart:
    """A part of a calibration.

    Attributes:
        table: keys and values as in a calibration file, without intervals.
        shown: text of every fitted number with its interval, by name.
        intervals: 90 % interval of a value as two factors on the value, by dotted key of a calibration.
        residuals: of every fitted and every held-out row [s].
        notes: sentences for the reader.
        is_checked: whether `check_errors` refuses the fit where it explains its rows badly.
    """

    table: Mapping[str, object]
    shown: Mapping[str, str] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    residuals: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    is_checked: bool = True


def checked_residuals(parts: Iterable[FittedPart]) -> list[Comparison]:
    """Return the residuals of the parts that `check_errors` checks."""
    return [residual for part in parts if part.is_checked for residual in part.residuals]


def check_errors(residuals: Iterable[Comparison], bound: float) -> None:
    """Refuse fits that explain their own rows badly.

    Args:
        residuals: held-out rows are ignored.
        bound: largest mean absolute relative error of a series.
    """
    for series, rows in by_series(residual for residual in residuals if residual.role == "fitted").items():
        mean = mean_error(rows)
        if mean > bound:
            raise SimnetError(
                f"{series}: a mean error of {mean:.1%}: at most {bound:.0%} is accepted; measure again, leave out the "
                "files that differ, or accept the fit with --accept-poor-fit"
            )


def widen(factors: Interval, residuals: Sequence[Comparison]) -> Interval:
    """Return the interval of a fitted number, widened by the scatter of single rows about the fit.

    A bootstrap says how well the number itself is known. A new row also scatters about the fit, as the fitted rows do.

    Args:
        factors: the interval as factors on the number.
        residuals: at least one.
    """
    # Independent relative spreads add in squares of their logarithms.
    ratios = np.log([residual.measured / residual.predicted for residual in residuals])
    low, high = np.percentile(ratios, [LOW, HIGH])
    return (
        float(np.exp(-np.hypot(np.log(factors[0]), min(low, 0.0)))),
        min(float(np.exp(np.hypot(np.log(factors[1]), max(high, 0.0)))), MAX_SPREAD),
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Return a fitted time as text for a file, with four significant digits."""
    return Duration(float(f"{seconds:.4g}")).text()


def rate_text(bytes_per_s: float) -> str:
    """Return a fitted rate as text for a file, with four significant digits."""
    return Bandwidth(float(f"{bytes_per_s:.4g}")).text()


def text_with_interval(value: float, spread: Interval | None, text: Callable[[float], str]) -> str:
    """Return the text of a fitted number and its 90 % interval, given as factors on the number."""
    return text(value) + (f" (90 %: {text(value * spread[0])} to {text(value * spread[1])})" if spread else "")
