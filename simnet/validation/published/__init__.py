"""The published sets: each a module with `evaluate()`, and a template in docs/templates/sets."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from simnet.core.errors import SimnetError, did_you_mean
from simnet.validation.outcome import Outcome

Maker = Callable[[], Outcome]


@cache
def _makers() -> dict[str, Maker]:
    """Return the function of each set by name, in the order of the page."""
    modules = {found.name: import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)}
    sets = {name: module for name, module in modules.items() if hasattr(module, "evaluate")}
    return {name: module.evaluate for name, module in sorted(sets.items(), key=lambda item: item[1].ORDER)}


def names() -> tuple[str, ...]:
    """Return the names of all sets in the order of the page: sets with a target first."""
    return tuple(_makers())


def run(name: str) -> Outcome:
    """Fit and predict one set.

    Args:
        name: one of `names()`.

    Raises:
        SimnetError: there is no such set.
    """
    check(name)
    return replace(_makers()[name](), name=name)


def check(name: str) -> None:
    """Check that there is a set of this name.

    Raises:
        SimnetError: there is none.
    """
    if name not in names():
        raise SimnetError(f"--set: {name!r}: unknown set.{did_you_mean(name, names())}")
