"""One rank, which is a world of its own."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def alone() -> Iterator[None]:
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
