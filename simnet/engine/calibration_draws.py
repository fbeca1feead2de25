"""Draws from the intervals of a scenario and from the model's own error, and the intervals that follow from them.

Every fitted value is drawn on its own: log-normal around the value, with its own width below and above it, so that 5 %
of the draws lie below the given interval and 5 % above. The draws of one value are spread evenly over its distribution,
one in each of as many equal parts (Latin hypercube), so that few draws suffice. A file does not know how the errors of
its values correlate: errors that a fit made together (a latency too low and a bandwidth too low) are drawn as if they
were independent, which makes intervals wider than they need be.

Source: M. D. McKay, R. J. Beckman, W. J. Conover, "A Comparison of Three Methods for Selecting Values of Input
Variables in the Analysis of Output from a Computer Code", Technometrics 21, 1979.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from simnet.cluster.hardware import Calibration
from simnet.core.bounded_types import Intervals
from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import Scenario
from simnet.workload import training_step
from simnet.workload.workload import Workload

CONFIDENCE = 0.9
MIN_DRAWS = 20
SIGMAS = 1.6448536269514722
"""The 95 % point of the standard normal distribution: a 90 % interval reaches so far on either side."""
SEED = 0
COMPUTE = ("forward", "backward")
"""What the key "compute" of a workload with times stands for."""
FREE_FACTORS = ("compute_factor",)
"""Numbers that may lie on both sides of 1; of all others, one below 1 is a fraction, and stays one."""


class Draw(NamedTuple):
    """One of several draws; the same number of the same total gives the same values.

    Attributes:
        number: of the draw, from 0.
        total: draws in all.
    """

    number: int
    total: int


def draws(count: int) -> Iterator[Draw]:
    """Return so many draws.

    Raises:
        SimnetError: they are too few for an interval: the middle 90 % of one value is no wider than the value.
    """
    if 0 < count < MIN_DRAWS:
        raise SimnetError(f"run.draws: {count}: must be 0, for no intervals, or at least {MIN_DRAWS}")
    return (Draw(number, count) for number in range(count))


def draw_calibration(given: Calibration, draw: Draw) -> Calibration:
    """Return one drawn calibration.

    Args:
        given: has `intervals`.
        draw: which one.

    Raises:
        SimnetError: an interval of a key that the calibration does not have, or that has no number.
    """
    where = given.label
    libraries = {
        name: _drawn(library, draw, f"{where}: libraries: {name!r}", f"libraries.{name}.")
        for name, library in given.libraries.items()
    }
    result: Calibration = _drawn(given, draw, where)
    return msgspec.structs.replace(result, libraries=libraries) if libraries else result


def draw_workload(given: Workload, draw: Draw) -> Workload:
    """Return one drawn workload, as `draw_calibration`.

    "compute" stands for forward and backward, or for all rows and work.

    Raises:
        SimnetError: an interval of a key that the workload does not have, or that has no number.
    """
    drawn = given
    for key, ends in given.intervals.items():
        drawn = _changed_workload(drawn, key, _factor(key, ends, draw))
    return drawn


def draw_scenario(given: Scenario, draw: Draw) -> Scenario:
    """Return a scenario with its calibration and its workload drawn.

    Args:
        given: drawn where it has intervals.
        draw: which one.

    Raises:
        SimnetError: as `draw_calibration` and `draw_workload`.
    """
    plain = plain_scenario(given)
    return msgspec.structs.replace(
        plain,
        calibration=draw_calibration(plain.calibration, draw),
        workload=draw_workload(plain.workload, draw),
    )


def plain_scenario(given: Scenario) -> Scenario:
    """Return a scenario whose intervals are all of plain keys: at its number of nodes, on its GPU, at its batch."""
    workload, found = given.workload, training_step.compute_interval(given.workload, given.cluster)
    if found is not None and "compute" not in workload.intervals:
        workload = msgspec.structs.replace(workload, intervals={**workload.intervals, "compute": found})
    calibration = given.calibration.at_nodes(given.cluster.num_nodes)
    return msgspec.structs.replace(given, calibration=calibration, workload=workload)


def has_intervals(given: Scenario) -> bool:
    """Tell whether anything of a scenario has an interval."""
    return bool(intervals(plain_scenario(given)))


def intervals(plain: Scenario) -> Intervals:
    """Return the intervals of a plain scenario by dotted key of the scenario; those without width are left out."""
    of_calibration = {f"calibration.{key}": ends for key, ends in calibration_intervals(plain.calibration).items()}
    of_workload = {f"workload.{key}": ends for key, ends in plain.workload.intervals.items() if ends != (1, 1)}
    return of_calibration | of_workload


def calibration_intervals(plain: Calibration) -> Intervals:
    """Return the intervals of a calibration and its libraries by dotted key; those without width are left out."""
    by_part = {
        "": plain.intervals,
        **{f"libraries.{name}.": library.intervals for name, library in plain.libraries.items()},
    }
    return {f"{part}{key}": ends for part, known in by_part.items() for key, ends in known.items() if ends != (1, 1)}


def changed(plain: Scenario, key: str, factor: float) -> Scenario:
    """Return a plain scenario with one of the values that have an interval multiplied.

    Args:
        plain: see `plain_scenario`.
        key: of `intervals`.
        factor: on the value.

    Raises:
        SimnetError: an interval of a key that the scenario does not have, or that has no number.
    """
    part, _, rest = key.partition(".")
    if part == "workload":
        workload = _changed_workload(plain.workload, rest, factor)
        return msgspec.structs.replace(plain, workload=workload)
    return msgspec.structs.replace(plain, calibration=changed_calibration(plain.calibration, rest, factor))


def changed_calibration(plain: Calibration, key: str, factor: float) -> Calibration:
    """Return a calibration with one of the values of `calibration_intervals` multiplied.

    Raises:
        SimnetError: as `changed`.
    """
    found: Calibration = _changed(plain, key.split("."), factor, f"intervals: {key!r}")
    return found


def _changed_workload(given: Workload, key: str, factor: float) -> Workload:
    if key == "compute" and given.forward_s is None and (given.compute or given.work):
        rows = tuple(row.slower_by(factor) for row in given.compute)
        work = given.work and given.work.slower_by(factor)
        return msgspec.structs.replace(given, compute=rows, work=work)
    changed = given
    for path in COMPUTE if key == "compute" else (key,):
        changed = _changed(changed, path.split("."), factor, f"{given.label}: intervals: {key!r}")
    return changed


def model_error_factor(factor: float, draw: Draw) -> float:
    """Return a drawn factor of the model's own error, whose 90 % interval reaches from 1 / `factor` to `factor`."""
    return math.exp(_normal("model error", draw) * math.log(factor) / SIGMAS)


def _drawn(given: Any, draw: Draw, where: str, prefix: str = "") -> Any:
    drawn = given
    for key, ends in given.intervals.items():
        factor = _factor(f"{prefix}{key}", ends, draw)
        drawn = _changed(drawn, key.split("."), factor, f"{where}: intervals: {key!r}")
    return drawn


def _factor(key: str, ends: tuple[float, float], draw: Draw) -> float:
    normal = _normal(key, draw)
    width = math.log(ends[1]) if normal > 0 else -math.log(ends[0])
    return math.exp(normal * width / SIGMAS)


def _normal(key: str, draw: Draw) -> float:
    return _normals(key, draw.total)[draw.number]


@lru_cache(maxsize=1024)
def _normals(key: str, count: int) -> tuple[float, ...]:
    """Return values of the standard normal distribution, one in each of `count` equal parts of it, shuffled."""
    from random import Random  # both of which most runs need not load
    from statistics import NormalDist

    normal = NormalDist()
    found = [normal.inv_cdf((part + 0.5) / count) for part in range(count)]
    Random(f"{SEED}/{key}").shuffle(found)
    return tuple(found)


def middle_90_percent(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle 90 % of at least one value, interpolated between neighbours."""
    ordered = sorted(values)
    return quantile(ordered, (1 - CONFIDENCE) / 2), quantile(ordered, (1 + CONFIDENCE) / 2)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of at least one ascending value lies, interpolated between neighbours.

    Each of n values stands for the middle of an nth of the distribution, as the draws do. So few of them give no
    narrower interval than many; beyond the first and the last nothing is known.

    Source: A. Hazen, 1914; definition 5 of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996.
    """
    position = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1.0)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _changed(whole: Any, keys: Sequence[str], factor: float, where: str) -> Any:
    """Return a struct or mapping with the value at a path multiplied."""
    name, *rest = keys

    def change(value: Any) -> Any:
        return _changed(value, rest, factor, where) if rest else _scaled(name, value, factor, where)

    if isinstance(whole, dict):
        _check_known(name, list(whole), where)
        return {**whole, name: change(whole[name])}
    # msgspec.structs.fields would evaluate every annotation anew, which takes longer than a simulation.
    fields = dict(zip(whole.__struct_encode_fields__, whole.__struct_fields__, strict=True))
    _check_known(name, list(fields), where)
    return msgspec.structs.replace(whole, **{fields[name]: change(getattr(whole, fields[name]))})


def _check_known(name: str, known: list[str], where: str) -> None:
    if name not in known:
        raise SimnetError(f"{where}: {name!r}: unknown key.{did_you_mean(name, known)}")


def _scaled(name: str, value: Any, factor: float, where: str) -> Any:
    """Multiply a quantity, a factor of at least 1, a free factor, a fraction, or every fraction of a curve."""
    if isinstance(value, tuple):
        return tuple((size, min(1.0, share * factor)) for size, share in value)
    if isinstance(value, Bandwidth | Duration):
        return type(value)(value * factor)
    if isinstance(value, float | int) and not isinstance(value, bool):
        if name in FREE_FACTORS:
            return value * factor
        # A number below 1 is a fraction: no factor on a time is.
        is_fraction = name.endswith("efficiency") or value < 1
        return min(1.0, value * factor) if is_fraction else max(1.0, value * factor)
    raise SimnetError(f"{where}: holds no number to draw; drop it")
