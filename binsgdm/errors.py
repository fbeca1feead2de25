"""The one error type that a user's mistake raises, and what its sentences can show."""

from collections.abc import Iterable

INSTALL_MODELS = "in the checkout: pip install '.[models]'"
INSTALL_TORCH = (
    "in the checkout: pip install '.[torch]' (for CPUs: --extra-index-url https://download.pytorch.org/whl/cpu)"
)
"""Else pip brings gigabytes of CUDA to a machine that has no use for them."""
_LONGEST = 80
_LONGEST_NAME, _MOST_NAMES = 30, 6


class BinsgdmError(Exception):
    """A mistake in what the user gave; the message says where, what was given, the rule, and the repair."""


def printable(text: str) -> str:
    """Return a line for a terminal: paths and names of processes hold whatever their makers wrote."""
    return "".join(character if character.isprintable() else "?" for character in text)


def shown(value: object) -> str:
    """Return a value as a sentence can show it, or what it is where it takes a long text or several lines."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        text = ""
    return text if 0 < len(text) <= _LONGEST and "\n" not in text else f"a {type(value).__name__}"


def listed(names: Iterable[object]) -> str:
    """Return names as a sentence can list them, sorted; of many the first."""
    texts = sorted(str(name)[:_LONGEST_NAME] for name in names)
    more = f" and {len(texts) - _MOST_NAMES} more" if len(texts) > _MOST_NAMES else ""
    return f"{texts[:_MOST_NAMES]}{more}"
