"""Calibrations drawn from the intervals of a calibration, and the interval of what follows from them.

Every fitted value is drawn on its own: log-normal around the value, with its own width below and above it, so that 5 %
of the draws lie below the given interval and 5 % above. A file does not know how the errors of its values correlate:
errors that a fit made together (a latency too low and a bandwidth too low) are drawn as if they were independent, which
makes intervals wider than they need be. Intervals know nothing of what the model leaves out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from simnet.errors import SimnetError, did_you_mean
from simnet.hardware import Calibration
from simnet.scenario import Scenario
from simnet.units import Bandwidth, Duration
from simnet.workload.workload import Workload

CONFIDENCE = 0.9
SIGMAS = 1.6448536269514722
"""The 95 % point of the standard normal distribution: a 90 % interval reaches so far on either side."""
SEED = 0


def draw_calibration(given: Calibration, number: int) -> Calibration:
    """Return one drawn calibration; the same number gives the same one.

    Args:
        given: has `intervals`.
        number: of the draw, from 0.

    Raises:
        SimnetError: an interval of a key that the calibration does not have, or that has no number.
    """
    where = f"calibration {given.name!r}"
    libraries = {
        name: _drawn(library, number, f"{where}: libraries: {name!r}", {}, f"libraries.{name}.")
        for name, library in given.libraries.items()
    }
    result: Calibration = _drawn(given, number, where, {})
    return msgspec.structs.replace(result, libraries=libraries) if libraries else result


def draw_workload(given: Workload, number: int) -> Workload:
    """Return one drawn workload, as `draw_calibration`; "compute" stands for forward and backward.

    Raises:
        SimnetError: an interval of a key that the workload does not have, or that has no number.
    """
    result: Workload = _drawn(given, number, f"workload {given.name!r}", {"compute": ("forward", "backward")})
    return result


def draw_scenario(given: Scenario, number: int) -> Scenario:
    """Return a scenario with its calibration and its workload drawn; the same number gives the same one.

    Args:
        given: drawn where it has intervals.
        number: of the draw, from 0.

    Raises:
        SimnetError: as `draw_calibration` and `draw_workload`.
    """
    return msgspec.structs.replace(
        given,
        calibration=draw_calibration(given.calibration.at_nodes(given.cluster.num_nodes), number),
        workload=draw_workload(given.workload, number),
    )


def has_intervals(given: Scenario) -> bool:
    """Tell whether anything of a scenario has an interval."""
    calibration = given.calibration.at_nodes(given.cluster.num_nodes)
    libraries = any(library.intervals for library in calibration.libraries.values())
    return bool(calibration.intervals or libraries or given.workload.intervals)


def _drawn(given: Any, number: int, where: str, short_names: Mapping[str, tuple[str, ...]], prefix: str = "") -> Any:
    from random import Random  # which most runs need not load

    drawn = given
    for key, (low, high) in given.intervals.items():
        normal = Random(f"{SEED}/{prefix}{key}/{number}").gauss(0.0, 1.0)
        width = math.log(high) if normal > 0 else -math.log(low)
        factor = math.exp(normal * width / SIGMAS)
        for path in short_names.get(key, (key,)):
            drawn = _changed(drawn, path.split("."), factor, f"{where}: intervals: {key!r}")
    return drawn


def middle_90_percent(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle 90 % of at least one value, interpolated between neighbours."""
    ordered = sorted(values)
    return quantile(ordered, (1 - CONFIDENCE) / 2), quantile(ordered, (1 + CONFIDENCE) / 2)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of at least one ascending value lies, interpolated between neighbours."""
    position = share * (len(ordered) - 1)
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
    """Multiply a quantity, a factor of at least 1, a fraction, or every fraction of a curve."""
    if isinstance(value, tuple):
        return tuple((size, min(1.0, share * factor)) for size, share in value)
    if isinstance(value, Bandwidth | Duration):
        return type(value)(value * factor)
    if isinstance(value, float | int) and not isinstance(value, bool):
        return min(1.0, value * factor) if name.endswith("efficiency") else max(1.0, value * factor)
    raise SimnetError(f"{where}: holds no number to draw; drop it")
