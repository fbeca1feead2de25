"""Gather the notes of many results for people: each once, with how many points it belongs to."""

import re
import textwrap
from collections.abc import Sequence

from simnet.report.text import WIDTH, hanging

MAX_CHARACTERS = 200
GIST_WORDS = 4
IN_FULL = "notes in full: the column 'notes' of simnet sweep --format csv, or simnet simulate at one point"


def notes_lines(notes_by_point: Sequence[Sequence[str]]) -> list[str]:
    """Return the notes of all points, wrapped; those that differ in numbers or details alone stand as one.

    Args:
        notes_by_point: the notes of each point.

    Example:
        >>> notes_lines([["batch 16 scaled", "an estimate"], ["batch 32 scaled", "an estimate"]])
        ['note: batch 16 scaled (and 1 more like it)', 'note: an estimate', ...]
    """
    groups: dict[str, dict[str, set[int]]] = {}
    for index, notes in enumerate(notes_by_point):
        for note in notes:
            groups.setdefault(_gist(note), {}).setdefault(note, set()).add(index)
    lines = [line for group in groups.values() for line in hanging("note: ", _places_text(group, len(notes_by_point)))]
    shortened = any(len(group) > 1 or len(next(iter(group))) > MAX_CHARACTERS for group in groups.values())
    return [*lines, *(textwrap.wrap(IN_FULL, WIDTH) if shortened else [])]


def _gist(note: str) -> str:
    """Return what notes of one kind share: their first words, without numbers."""
    return " ".join(re.sub(r"\d[\d.,]*", "#", note).split()[:GIST_WORDS])


def _places_text(group: dict[str, set[int]], num_points: int) -> str:
    """Return the first note of a group, shortened, with how many there are and how many points have one."""
    first, *others = group
    num_touched = len(set().union(*group.values()))
    counts = [f"at {num_touched} of {num_points} points"] if num_touched < num_points else []
    counts += [f"and {len(others)} more like it"] if others else []
    return textwrap.shorten(first, MAX_CHARACTERS, placeholder=" ...") + (f" ({', '.join(counts)})" if counts else "")
