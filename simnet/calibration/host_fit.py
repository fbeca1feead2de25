"""Fit the CPU time of a rank's sends, measured in place: with as many ranks on a machine as in training.

Ranks that share cores wait for each other's turns. Only a measurement with all of them running contains these waits.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from simnet.calibration import bootstrap
from simnet.calibration.collective_fit import MIN_SERIES, TimedCollective
from simnet.calibration.comparison import Comparison
from simnet.calibration.fitted_part import FittedPart, Floats, Interval, duration_text, widen
from simnet.calibration.solvers import non_negative_least_squares
from simnet.core.errors import SimnetError

COSTS = ("launch", "round", "message", "time_per_byte")


def fit_host(rows: Sequence[TimedCollective], draws: int) -> FittedPart:
    """Fit the CPU time of a collective, a round, a send and a byte to collectives whose network is no limit.

    Inside a node gloo sends over the loopback device: there is no wire, only CPU time, so the link is written as free.

    Args:
        rows: collectives on NICs without a limit.
        draws: bootstrap resamples.

    Raises:
        SimnetError: too few series.
    """
    if len(rows) < MIN_SERIES:
        raise SimnetError(f"--in-place: {len(rows)} collectives: at least {MIN_SERIES} are needed; measure more sizes")
    point = _solve(rows, [row.median_s for row in rows])
    spread = bootstrap.interval_factors(point, lambda rng: _solve(*bootstrap.resample_rows(rows, rng)), draws)
    residuals = _residuals(rows, point)
    table = {name: duration_text(value) for name, value in point.items() if value > 0}
    return FittedPart(
        table={
            "host": {**table, "source": f"{len(rows)} series of collectives in place"},
            "intra_node": {"latency": "0 s", "efficiency": 1.0, "source": "CPU time; no wire inside a node"},
        },
        shown={f"host.{name}": _shown(name, value, spread.get(name)) for name, value in point.items()},
        intervals={f"host.{name}": widen(factors, residuals) for name, factors in spread.items()},
        residuals=residuals,
        # The scheduler decides when a rank runs: such times scatter far more than a wire, and intervals say so.
        is_checked=False,
    )


def _solve(rows: Sequence[TimedCollective], times_s: Sequence[float]) -> dict[str, float]:
    found = non_negative_least_squares(_columns(rows), np.array(times_s))
    return dict(zip(COSTS, found.tolist(), strict=True))


def _columns(rows: Sequence[TimedCollective]) -> Floats:
    """Return the design matrix: a row for each collective, a column for each of `COSTS`."""
    return np.array([[1, row.rounds, row.sends, row.sends * row.send_bytes] for row in rows], dtype=np.float64)


def _residuals(rows: Sequence[TimedCollective], point: Mapping[str, float]) -> tuple[Comparison, ...]:
    fitted_s = (_columns(rows) @ np.array([point[name] for name in COSTS])).tolist()
    series = "collectives, CPU time in place"
    return tuple(
        Comparison(series=series, label=row.label, measured=row.median_s, predicted=time_s, role="fitted")
        for row, time_s in zip(rows, fitted_s, strict=True)
    )


def _shown(name: str, value: float, spread: Interval | None) -> str:
    scale, unit = (1e9, "ns a byte") if name == "time_per_byte" else (1e6, "us")
    text = f"{value * scale:.4g} {unit}"
    if spread is None:
        return text
    return f"{text} (90 %: {value * spread[0] * scale:.4g} to {value * spread[1] * scale:.4g})"
