"""Read strategies as a former version of the product wrote them: with keys of other names, and without newer ones."""

from collections.abc import Mapping
from typing import Any

from simnet.core.registry import tag_of
from simnet.strategies.base import STRATEGIES, Strategy


def with_present_keys(data: Any) -> Any:
    """Return plain data with every former key of a strategy replaced, and keys that older files lack as they were.

    Other data are returned unchanged.
    """
    if isinstance(data, list):
        return [with_present_keys(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    former, missing = former_keys(data), _named_by(data).former_defaults
    return {**missing, **{former.get(key, key): with_present_keys(value) for key, value in data.items()}}


def former_keys(table: Mapping[str, object]) -> Mapping[str, str]:
    """Return the former keys of the strategy that a table names, each with its present key; none if it names none."""
    return _named_by(table).former_keys


def _named_by(table: Mapping[str, object]) -> type[Strategy]:
    """Return the class of the strategy that a table names; the base of all if it names none."""
    kind = table.get("kind")
    return next((one for one in STRATEGIES.built_in() if tag_of(one) == kind), Strategy)
