"""What is refused, is refused in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simnet.core.errors import SimnetError


@contextmanager
def refused(said: str) -> Iterator[None]:
    """Check that a SimnetError is raised, of one line in which some text stands."""
    with pytest.raises(SimnetError) as caught:
        yield
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
