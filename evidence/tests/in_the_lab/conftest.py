"""One test with a lab at a time, where there can be one."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.needs import needs


@pytest.fixture(autouse=True, scope="module")
def one_at_a_time() -> Iterator[None]:
    """Skip where there can be no lab; keep tests apart: a lab that starts removes what another test has killed."""
    needs("lab")
    with (Path(tempfile.gettempdir()) / "simnet-lab-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
