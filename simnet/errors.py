"""The one error type that a user's mistake raises."""

from collections.abc import Iterable

FEW = 20
"""Names that are all listed where none is near: the 17 strategies are."""
ALIKE = 0.55
"""How much of two names must be the same for one to be a misspelling of the other."""
SHOWN = 120
"""Characters of a value that a message shows."""
# What people ask for by the field's names; that it is not here is another answer than a misspelling.
NOT_MODELLED = frozenset({
    "ad_psgd", "byteps", "deep_gradient_compression", "deepspeed", "dgc", "diloco", "easgd", "fsdp", "fsdp2",
    "fully_shard", "fully_sharded", "gossip", "horovod", "hsdp", "local_sgd", "natural_compression", "ok_topk",
    "one_bit_lamb", "parameter_server", "pipeline_parallel", "post_local_sgd", "tensor_parallel", "zero", "zero1",
    "zero2", "zero3", "zero_1", "zero_2", "zero_3", "zero_one_adam",
})  # fmt: skip


class SimnetError(Exception):
    """A mistake in what the user gave; the message says where, what was given, the rule, and the repair."""


class NotInstalledError(SimnetError):
    """A name of a strategy or a fault that nothing which is installed brings.

    Attributes:
        in_data: the same message for a file that a program wrote, where the name is no misspelling.
    """

    def __init__(self, text: str, in_data: str) -> None:
        super().__init__(text)
        self.in_data = in_data


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Suggest the known name nearest to a given one.

    Returns:
        `" Did you mean 'num_nodes'?"`, or the list of the known names if none is near and they are few, after
        `" Not modelled yet."` where the given one means something that is not here.
    """
    import difflib  # takes a millisecond, which most runs need not spend

    names = sorted(known)
    is_known_elsewhere = given.lower().replace("-", "_") in NOT_MODELLED
    close = [] if is_known_elsewhere else difflib.get_close_matches(given, names, n=1, cutoff=ALIKE)
    if close:
        return f" Did you mean {close[0]!r}?"
    not_yet = " Not modelled yet." if is_known_elsewhere else ""
    return f"{not_yet} Known: {', '.join(names)}." if 0 < len(names) <= FEW else not_yet


def shown(value: object) -> str:
    """Return a value as messages show it: as in Python, cut in the middle where it is long.

    Example:
        >>> shown("25"), len(shown([0] * 10_000))
        ("'25'", 120)
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more than 4,300 digits, or lists in lists without end
        text = f"a {type(value).__name__} without end"
    return cut(text, SHOWN)


def cut(text: str, length: int) -> str:
    """Return text that is no longer than a number of characters: of a longer one its beginning and its end."""
    if len(text) <= length:
        return text
    end = (length - 3) // 2
    return f"{text[: length - 3 - end]}...{text[-end:]}"
