"""Fit how much communication slows backward: the time of backward overlapped with collectives over that alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simnet.calibration import bootstrap
from simnet.calibration.comparison import Comparison
from simnet.calibration.fitted_part import FittedPart, Floats
from simnet.calibration.measurement_file import MeasurementFile
from simnet.core.errors import SimnetError


@dataclass(frozen=True, kw_only=True)
class BackwardPair:
    """Every repetition of backward, alone and overlapped with one collective [s]."""

    label: str
    alone_s: Floats
    overlapped_s: Floats


def select_pairs(measurements: Sequence[MeasurementFile]) -> list[BackwardPair]:
    """Return the pairs of backward times in measurement files.

    Raises:
        SimnetError: an overlapped backward has no measurement of backward alone.
    """
    found = []
    for whole in measurements:
        # Copies that stand for a collective come at several shares of the bandwidth.
        series = {
            (one.name, *(str(one.labels.get(label, "")) for label in ("model", "collective", "share"))): np.array(
                one.values, dtype=np.float64
            )
            for one in whole.series
            if one.kind == "interference"
        }
        for (name, model, collective, share), values in series.items():
            if name == "backward_beside":
                if ("backward_alone", model, collective, share) not in series:
                    raise SimnetError(
                        f"interference: backward of {model} with {collective}: needs a time without it; measure again"
                    )
                found.append(
                    BackwardPair(
                        label=f"backward of {model} overlapped with {collective}{f' at {share}' if share else ''}",
                        alone_s=series["backward_alone", model, collective, share],
                        overlapped_s=values,
                    )
                )
    return found


def fit_slowdown(train: Sequence[BackwardPair], draws: int) -> FittedPart:
    """Fit one factor on backward: the geometric mean of the slowdowns, at least 1."""
    slowdown = _slowdown([(float(np.median(pair.alone_s)), float(np.median(pair.overlapped_s))) for pair in train])
    resampled = bootstrap.resampled_median

    def draw(rng: np.random.Generator) -> Mapping[str, float]:
        picked = [train[pick] for pick in rng.integers(len(train), size=len(train))]
        return {
            "backward_slowdown": _slowdown(
                [(resampled(p.alone_s, rng), resampled(p.overlapped_s, rng)) for p in picked]
            )
        }

    spread = bootstrap.interval_factors({"backward_slowdown": slowdown}, draw, draws)
    low, high = (max(1.0, slowdown * factor) for factor in spread["backward_slowdown"])
    return FittedPart(
        table={"backward_slowdown": float(f"{slowdown:.4g}")},
        shown={"backward_slowdown": f"{slowdown:.3f} (90 %: {low:.3f} to {high:.3f})"},
        intervals=spread,
        residuals=tuple(_residual(pair, slowdown) for pair in train),
        # One factor stands for all collectives: the spread between them belongs to its interval.
        is_checked=False,
    )


def _residual(pair: BackwardPair, slowdown: float) -> Comparison:
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
