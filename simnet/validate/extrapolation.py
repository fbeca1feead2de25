"""How far a predicted row may be off since it lies beyond the numbers of nodes that its calibration was fitted on."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from msgspec import structs

from simnet.hardware import Calibration
from simnet.network_costs import NodesPoint
from simnet.validate.published_rows import PublishedRow
from simnet.validate.study import Study

KEY = "efficiency"


def with_range(study: Study) -> Study:
    """Return a study whose rows beyond the fitted numbers of nodes have the range that a calibration gives them."""
    return replace(study, known_range=partial(known_range, study))


def known_range(study: Study, row: PublishedRow) -> tuple[float, float]:
    """Return the factors between which the value of a row lies, at 90 %, for the growing intervals of the network.

    Args:
        study: its fitted calibration has `by_nodes`, of its own, of its libraries, or both.
        row: one of its rows.
    """
    predicted = study.predict(study.fitted, row)
    below = above = 0.0
    for low, high in _ends(study.fitted, row.nodes):
        logs = [math.log(study.predict(one, row) / predicted) for one in (low, high)]
        # Independent intervals add up in squares, as independent draws do.
        below, above = math.hypot(below, min(logs)), math.hypot(above, max(logs))
    return math.exp(-below), math.exp(above)


def _ends(fitted: Calibration, num_nodes: int) -> Iterator[tuple[Calibration, Calibration]]:
    """Yield the calibrations at both ends of each interval."""
    there = fitted.at_nodes(num_nodes)
    low, high = there.intervals.get(f"inter_node.{KEY}", (1.0, 1.0))
    if low < high:
        yield (
            structs.replace(fitted, by_nodes=_scaled(fitted.by_nodes, low)),
            structs.replace(fitted, by_nodes=_scaled(fitted.by_nodes, high)),
        )
    for name, library in there.libraries.items():
        low, high = library.intervals.get(KEY, (1.0, 1.0))
        if low < high:
            ends = (structs.replace(fitted.libraries[name], by_nodes=_scaled(fitted.libraries[name].by_nodes, factor))
                    for factor in (low, high))  # fmt: skip
            slow, fast = (structs.replace(fitted, libraries=fitted.libraries | {name: one}) for one in ends)
            yield slow, fast


def _scaled(points: tuple[NodesPoint, ...], factor: float) -> tuple[NodesPoint, ...]:
    return tuple(structs.replace(point, efficiency=_fraction(point.efficiency, factor)) for point in points)


def _fraction(efficiency: object, factor: float) -> float:
    assert isinstance(efficiency, float)  # published rows give one number, no curve
    return min(efficiency * factor, 1.0)
