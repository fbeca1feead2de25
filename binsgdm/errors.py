"""The one error type that a user's mistake raises."""


class BinsgdmError(Exception):
    """A mistake in what the user gave; the message says where, what was given, the rule, and the repair."""
