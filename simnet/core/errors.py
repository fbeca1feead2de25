"""The one error type that a user's mistake raises."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# Up to this number all known names are listed where none is near: the 25 strategies are.
MAX_LISTED_NAMES = 30
# Similarity (difflib's ratio) from which a name counts as a misspelling of another.
MISSPELLING_RATIO = 0.55
# Characters of a value that a message shows.
MAX_SHOWN = 120
# Characters of a whole message.
MAX_MESSAGE = 500
# Names of the field for what is not modelled: the answer is "Not modelled yet", not a misspelling.
NOT_MODELLED = frozenset({
    "ad_psgd", "byteps", "deep_gradient_compression", "dgc", "easgd", "gossip", "horovod", "natural_compression",
    "ok_topk", "one_bit_lamb", "parameter_server", "pipeline_parallel", "tensor_parallel", "zero_one_adam",
})  # fmt: skip
# Names of the field for what has another name here.
OTHER_NAMES = {
    "deepspeed": "zero2", "fsdp2": "fsdp", "fully_shard": "fsdp", "fully_sharded": "fsdp",
    "h100_tcp": "a100_tcp_estimate", "h100_tcp_estimate": "a100_tcp_estimate", "hybrid_shard": "hsdp",
    "post_local_sgd": "local_sgd", "rank": "matrix_rank", "zero": "zero1", "zero_1": "zero1", "zero_2": "zero2",
    "zero3": "fsdp", "zero_3": "fsdp",
}  # fmt: skip

NOT_YET = "Not modelled yet, but simnet record takes the collectives of your own script."


class SimnetError(Exception):
    """A mistake in what the user gave; the message says where, what was given, the rule, and the repair.

    It is one line of at most `MAX_MESSAGE` characters, in which those that steer a terminal are escaped.
    """

    def __init__(self, text: str) -> None:
        super().__init__(cut(escaped(text), MAX_MESSAGE))


class NotInstalledError(SimnetError):
    """A name of a strategy or a fault that nothing which is installed brings.

    Attributes:
        in_data: the same message for a file that a program wrote, where the name is no misspelling.
    """

    def __init__(self, text: str, in_data: str) -> None:
        super().__init__(text)
        self.in_data = in_data


@contextmanager
def blamed_on_package(where: str) -> Iterator[None]:
    """Turn a failure of another package's code, of any kind, into a sentence; its own `SimnetError` goes through."""
    try:
        yield
    except SimnetError:
        raise
    except Exception as error:
        raise SimnetError(f"{where}: {type(error).__name__}: {error}; fix the package that provides it") from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest the known name nearest to a given one.

    Returns:
        `" Did you mean 'num_nodes'?"`, or a list of the known names if none is near and they are few; before the list
        that it is not modelled, and what to do instead, where the given name is in `NOT_MODELLED`.
    """
    names = sorted(known)
    usual = name.lower().replace("-", "_")
    if OTHER_NAMES.get(usual) in names:
        return f" Did you mean {OTHER_NAMES[usual]!r}?"
    is_known_elsewhere = usual in NOT_MODELLED
    near = None if is_known_elsewhere else nearest(name, names)
    if near is not None:
        return f" Did you mean {near!r}?"
    not_yet = f" {NOT_YET}" if is_known_elsewhere else ""
    return f"{not_yet} Known: {', '.join(names)}." if 0 < len(names) <= MAX_LISTED_NAMES else not_yet


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a given one is a misspelling of; None if there is none."""
    import difflib  # takes a millisecond, which most runs need not spend

    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=MISSPELLING_RATIO)), None)


def install(extra: str = "") -> str:
    """Return how to install the packages, with an extra of pyproject.toml: they are in no registry yet."""
    return f"in the checkout: pip install '.[{extra}]'" if extra else "in the checkout: pip install ."


def shown(value: object) -> str:
    """Return a value as messages show it: as in Python, cut in the middle where it is long.

    Example:
        >>> shown("25"), len(shown([0] * 10_000))
        ("'25'", 120)
    """
    try:
        text = repr(value)
    except Exception:  # a number of more than 4,300 digits, say, or an object whose own text fails
        text = f"a {type(value).__name__} that cannot be shown"
    return cut(text, MAX_SHOWN)


def escaped(text: str) -> str:
    """Return text on one line, characters that cannot be printed as Python writes them in quotes."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def cut(text: str, length: int) -> str:
    """Return text that is no longer than a number of characters: of a longer one its beginning and its end."""
    if len(text) <= length:
        return text
    end = (length - 3) // 2
    return f"{text[: length - 3 - end]}...{text[-end:]}"
