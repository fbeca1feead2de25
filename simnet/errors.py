"""The one error type that a user's mistake raises."""

import difflib
from collections.abc import Iterable

FEW = 20
"""Names that are all listed where none is near: the 17 strategies are."""


class SimnetError(Exception):
    """A mistake in what the user gave; the message says where, what was given, the rule, and the repair."""


def nearest(given: str, known: Iterable[str]) -> str:
    """Suggest the known name nearest to a given one.

    Returns:
        `" Did you mean 'num_nodes'?"`, or the list of the known names if none is near and they are few.
    """
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]!r}?"
    if 0 < len(names) <= FEW:
        return f" Known: {', '.join(names)}."
    return ""
