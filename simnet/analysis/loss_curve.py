"""A loss curve as a trainer logged it, checked point by point."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from simnet.core.errors import SimnetError, shown

# As of a curve in a convergence file; samples are more than steps.
MAX_STEP, MAX_VALUE = 10**15, 1e100
Counted = Literal["steps", "samples"]


class Point(NamedTuple):
    """One logged value; `where` names its place in messages, `position` is a number of steps or samples."""

    where: str
    position: int
    value: float


class LoggedCurve(Struct, frozen=True, kw_only=True):
    """One training's loss, over steps or samples.

    Attributes:
        where: the file, and the run in it, for messages.
        metric: name of the column or tag; empty where the file has none.
        counted: what the positions are: steps, or samples of all ranks together.
        positions: at which values were logged, ascending, from 1 on.
        values: None from where the training had diverged.
        run: its name, where the file holds several; else empty.
        system: as the file names it; empty if it does not.
        seed: as the file says; None if it does not.
        ranks: as the file says; None if it does not.
        notes: what a reader should know of how it was read.
    """

    where: str
    metric: str
    counted: Counted
    positions: tuple[int, ...]
    values: tuple[float | None, ...]
    run: str = ""
    system: str = ""
    seed: int | None = None
    ranks: int | None = None
    notes: tuple[str, ...] = ()


def checked(
    points: Sequence[Point], where: str, metric: str, counted: Counted = "steps"
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return positions and values of logged points.

    A value that is no number (NaN, infinity) is a training that has diverged if none of those after it is one, and
    becomes None. What was logged at step 0 is left out: nothing was trained until then.

    Raises:
        SimnetError: positions do not increase, no value is a number, or one that is none stands between numbers.
    """
    _check_ascending(points, counted)
    kept = [point for point in points if point.position > 0]
    numbers = [index for index, point in enumerate(kept) if math.isfinite(point.value)]
    if not numbers:
        raise SimnetError(f"{where}: {shown(metric)}: no number after step 0; give a training with losses")
    for point in kept[: numbers[-1]]:
        if not math.isfinite(point.value):
            raise SimnetError(
                f"{point.where}: {shown(metric)} is {point.value:g} and later a number: must be a number until the "
                "training diverges; drop the row, or all after it"
            )
    for index in numbers:
        if abs(kept[index].value) > MAX_VALUE:
            raise SimnetError(f"{kept[index].where}: {kept[index].value:g}: must be at most {MAX_VALUE:g}; drop it")
    return (
        tuple(point.position for point in kept),
        tuple(point.value if math.isfinite(point.value) else None for point in kept),
    )


def _check_ascending(points: Sequence[Point], counted: Counted) -> None:
    last = -1
    for point in points:
        if not 0 <= point.position <= MAX_STEP:
            raise SimnetError(f"{point.where}: {point.position} {counted}: must be from 0 to {MAX_STEP}; correct it")
        if point.position <= last:
            raise SimnetError(
                f"{point.where}: {point.position} {counted} after {last}: must increase; sort the rows, or write each "
                "training with a seed or a system of its own"
            )
        last = point.position
