"""The one error type that a user's mistake raises, and text that a terminal may be given."""


class BinsgdmError(Exception):
    """A mistake in what the user gave; the message says where, what was given, the rule, and the repair."""


def printable(text: str) -> str:
    """Return a line for a terminal: paths and names of processes hold whatever their makers wrote."""
    return "".join(one if one.isprintable() else "?" for one in text)
