"""Put other things under names of a module or class for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(home: Any, **things: Any) -> Iterator[None]:
    """Let names of a module or a class mean other things inside."""
    before = {name: getattr(home, name) for name in things}
    try:
        for name, thing in things.items():
            setattr(home, name, thing)
        yield
    finally:
        for name, thing in before.items():
            setattr(home, name, thing)
