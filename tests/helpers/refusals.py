"""What is refused, is refused in one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simnet.core.errors import SimnetError


@contextmanager
def refused(*said: str, start: object = "") -> Iterator[None]:
    """Check that a SimnetError is raised, of one line that starts with some text, and in which others stand."""
    with pytest.raises(SimnetError) as caught:
        yield
    sentence = str(caught.value)
    assert sentence.startswith(str(start))
    assert [text for text in said if text not in sentence] == [], sentence
    assert "\n" not in sentence
