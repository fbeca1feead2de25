"""The parts run here as in `simnet measure gpu --device cpu --quick`, in this process."""

import pytest

from tests.helpers.needs import needs


@pytest.fixture(autouse=True)
def one_thread():
    """Let torch work on one thread: small tensors on several mostly wait, and other tests run beside these."""
    needs("torch")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
