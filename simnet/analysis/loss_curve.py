"""A loss curve as a trainer logged it, checked point by point."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
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
        where: the file, for messages.
        metric: name of the column or tag; empty where the file has none.
        counted: what the positions are: steps, or samples of all ranks together.
        positions: at which values were logged, ascending, from 1 on.
        values: None from where the training had diverged.
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
    system: str = ""
    seed: int | None = None
    ranks: int | None = None
    notes: tuple[str, ...] = ()


RECUR = 0.5
"""Part of the steps dropped at a resumption, as far as it has come, that come again: else the rows are not those of one
training."""


def of_last_life(points: Sequence[Point], where: str) -> tuple[list[Point], list[str]]:
    """Return what a training that was resumed from a checkpoint came to: the steps logged again count, as logged last.

    Args:
        points: in the order in which they were logged.
        where: the file, for notes.

    Returns:
        The points that count, and what was left out. A jump back that is no resumption is left as it is: one to the
        beginning, or one after which the steps do not come again.

    Raises:
        SimnetError: a step comes twice in a row with two values, so that nothing says which is the later one.
    """
    kept: list[Point] = []
    notes: list[str] = []
    twice = 0
    for index, point in enumerate(points):
        if kept and point.position == kept[-1].position:
            values = kept[-1].value, point.value
            if values[0] != values[1] and not all(map(math.isnan, values)):
                raise SimnetError(
                    f"{point.where}: step {point.position} is there twice, with {values[0]:g} and {values[1]:g}: must "
                    f"be once; of a training that was resumed drop the rows of the first life from step "
                    f"{point.position} on; write two trainings with a seed or a system of their own"
                )
            twice += 1
            continue
        if kept and point.position < kept[-1].position:
            before = bisect_left(kept, point.position, key=attrgetter("position"))
            if not (before and _come_again(kept[before:], points[index:])):
                return [*kept, *points[index:]], notes
            notes.append(
                f"{where}: begins again at step {point.position}: {len(kept) - before} values from there on, of before "
                "it was resumed, are left out"
            )
            del kept[before:]
        kept.append(point)
    if twice:
        notes.append(f"{where}: {twice} steps are there twice with the same value, and count once")
    return kept, notes


def _come_again(dropped: Sequence[Point], later: Sequence[Point]) -> bool:
    """Return whether steps come again in the life that begins with `later`, as far as it goes."""
    life = [later[0].position]
    for point in later[1:]:
        if point.position < life[-1]:
            break
        life.append(point.position)
    reached = [point.position for point in dropped if point.position <= life[-1]]
    return bool(reached) and len(set(life).intersection(reached)) >= RECUR * len(reached)


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
                f"{point.where}: {point.position} {counted} after {last}: must increase; write each training with a "
                "seed or a system of its own; sort the rows of one that was shuffled; drop those of before a resumption"
            )
        last = point.position
