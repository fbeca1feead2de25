"""One rank, which is a world of its own."""

from collections.abc import Iterator

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

dist = torch.distributed


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
