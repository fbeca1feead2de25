"""Cells of the tables of docs/evidence/binsgdm.md: what a system's final runs come to, in a few characters."""

import math
import statistics

from studies.outcome import Outcome
from studies.page import number


def standing_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return the mean difference to dense, marked where its interval leaves zero out."""
    if system == outcome.reference:
        return "reference"
    if num_lost := outcome.num_lost(system, ranks):
        return f"lost {num_lost} of {len(outcome.rows(system, ranks))}"
    difference = outcome.difference(system, ranks)
    if difference is None:
        raise AssertionError("a system that lost no seed has a difference")
    mark = " behind" if difference.low > 0 else " ahead" if difference.high < 0 else ""
    return f"{difference.mean:+.3f}{mark}"


def loss_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return mean and range of the final loss over seeds, and how many diverged or ended at a guess."""
    finals = outcome.finals(system, ranks)
    num_lost, num_stuck = len(outcome.rows(system, ranks)) - len(finals), outcome.num_at_a_guess(system, ranks)
    notes = [f"{num_stuck} at a guess"] * bool(num_stuck) + [f"{num_lost} diverged"] * bool(num_lost)
    if finals:
        notes.insert(0, f"{number(statistics.fmean(finals))} ({number(min(finals))} to {number(max(finals))})")
    return ", ".join(notes)


def accuracy_text(finals: list[float]) -> str:
    """Return the mean accuracy over the seeds that did not diverge."""
    return f"{100 * statistics.fmean(finals):.1f} %" if finals else "-"


def difference_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return the difference to the reference."""
    difference = outcome.difference(system, ranks)
    if difference is None:
        return "-"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def steps_text(steps: list[float]) -> str:
    """Return the median over seeds, and how many never got there.

    Example:
        >>> steps_text([80, 90, 70, 90, math.inf]), steps_text([math.inf, math.inf, math.inf, 120, 150])
        ('90 (1 never)', 'never (3 of 5)')
    """
    num_never = sum(map(math.isinf, steps))
    middle = statistics.median(steps)
    if math.isinf(middle):
        return f"never ({num_never} of {len(steps)})"
    return f"{middle:g}" + (f" ({num_never} never)" if num_never else "")
