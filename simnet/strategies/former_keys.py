"""Replace former keys of strategies by the present ones, in files that a former version of the product wrote."""

from collections.abc import Mapping
from typing import Any

from simnet.registry import tag_of
from simnet.strategies.base import STRATEGIES


def with_present_keys(data: Any) -> Any:
    """Return plain data with every former key of a strategy replaced; other data are returned unchanged."""
    if isinstance(data, list):
        return [with_present_keys(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    former = former_keys(data)
    return {former.get(key, key): with_present_keys(value) for key, value in data.items()}


def former_keys(table: Mapping[str, object]) -> Mapping[str, str]:
    """Return the former keys of the strategy that a table names, each with its present key; none if it names none."""
    kind = table.get("kind")
    return next((one.former_keys for one in STRATEGIES.built_in() if tag_of(one) == kind), {})
