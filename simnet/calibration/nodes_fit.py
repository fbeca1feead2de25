"""Fit how the bandwidth between nodes changes with their number: a factor on it for each number that was measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simnet.calibration.fitted_part import Floats, Interval
from simnet.calibration.solvers import find_root
from simnet.core.errors import SimnetError

BOUNDS = (1e-3, 1e3)
"""Of a factor on a bandwidth."""


@dataclass(frozen=True, kw_only=True)
class TimedBytes:
    """One collective between nodes: its number of nodes, and seconds measured, of its bytes, and of all else."""

    num_nodes: int
    measured_s: float
    bytes_s: float
    rest_s: float


def fit_factors(rows: Sequence[TimedBytes]) -> dict[int, float]:
    """Return a factor on the bandwidth by number of nodes, 1 where one number was measured.

    Raises:
        SimnetError: no factor explains the rows of some number of nodes.
    """
    groups: dict[int, list[TimedBytes]] = {}
    for row in rows:
        groups.setdefault(row.num_nodes, []).append(row)
    if len(groups) < 2:
        return dict.fromkeys(groups, 1.0)
    return {nodes: _factor(nodes, groups[nodes]) for nodes in sorted(groups)}


def _factor(nodes: int, rows: Sequence[TimedBytes]) -> float:
    def error(log_factor: float) -> float:
        times = ((row.rest_s + row.bytes_s / math.exp(log_factor)) / row.measured_s for row in rows)
        return sum(map(math.log, times))

    low, high = map(math.log, BOUNDS)
    if error(low) * error(high) >= 0:
        raise SimnetError(
            f"collectives on {nodes} nodes: no bandwidth explains them with the latencies of the other numbers of "
            "nodes; measure larger messages, or calibrate this number of nodes in a run of its own"
        )
    return math.exp(find_root(error, low, high))


def factors_at(factors: Mapping[int, float], num_nodes: Sequence[int]) -> Floats:
    """Return the factors at some numbers of nodes, as a calibration interpolates them; 1 without any."""
    if not factors:
        return np.ones(len(num_nodes))
    known = sorted(factors)
    logs = np.interp(np.log(num_nodes), np.log(known), np.log([factors[nodes] for nodes in known]))
    found: Floats = np.exp(logs)
    return found


def points(factors: Mapping[int, float], efficiency: object, interval: Interval | None) -> list[dict[str, Any]]:
    """Return the points of a calibration in file form.

    Args:
        factors: by number of nodes.
        efficiency: of all numbers of nodes together, a number or a curve in file form.
        interval: of that efficiency, which holds for each of its factors.
    """
    intervals = {"intervals": {"efficiency": list(interval)}} if interval else {}
    return [
        {"nodes": nodes, "efficiency": _scaled(efficiency, factor), **intervals} for nodes, factor in factors.items()
    ]


def _scaled(efficiency: object, factor: float) -> object:
    if isinstance(efficiency, list):
        return [[size, _scaled(value, factor)] for size, value in efficiency]
    assert isinstance(efficiency, float | int)
    # A calibration holds fractions: a rate above the nominal one counts as 1.
    return min(round(efficiency * factor, 4), 1.0)
