"""A strategy as users name one: a word of text such as "qsgd:bits=4", or a table that may hold paths of files."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from simnet.core import schema
from simnet.core.errors import SimnetError, shown
from simnet.core.registry import tag_of
from simnet.core.system_options import read_option
from simnet.strategies.base import STRATEGIES, Strategy


def strategy_from_text(text: str, where: str, own: Iterable[Strategy | None] = ()) -> Strategy:
    """Return the strategy that a text names: the first of one's own of this kind, else with its options or defaults.

    Args:
        text: a kind, with options after a colon or without.
        where: how messages call the place of the text.
        own: strategies that a bare kind stands for, such as those of a scenario.

    Raises:
        SimnetError: the kind or an option is unknown, or does not fit.
    """
    kind, _, options = text.partition(":")
    found = next((one for one in own if one is not None and one.kind == kind and not options), None)
    try:
        return found or schema.build(STRATEGIES.find(kind), _options(options, where), where)
    except SimnetError as error:
        message = str(error)
        raise SimnetError(message if message.startswith(where) else f"{where}: {message}") from error
    except ValueError as error:
        raise SimnetError(f"{where}: {error}") from error


def with_paths_at(strategy: object, directory: Path) -> object:
    """Return the table of a strategy whose relative paths of files start from the working directory.

    Args:
        strategy: data of a scenario file, not checked yet.
        directory: where relative paths start there.
    """
    if not isinstance(strategy, Mapping):
        return strategy
    known = {tag_of(one): one for one in STRATEGIES.built_in()}
    kind = known.get(str(strategy.get("kind")))
    paths = {key: given for key in kind.path_keys if isinstance(given := strategy.get(key), str)} if kind else {}
    return {**strategy, **{key: str(directory / given) for key, given in paths.items() if given}}


def _options(text: str, where: str) -> dict[str, object]:
    """Return options such as "bits=4,overlap=false"."""
    found: dict[str, object] = {}
    for piece in filter(None, text.split(",")):
        option = read_option(piece)
        if option is None:
            raise SimnetError(f"{where}: {shown(piece)}: write options as key=value, such as qsgd:bits=4")
        found[option[0]] = option[1]
    return found
