"""The parts run here as in `simnet measure gpu --device cpu --quick`, in this process."""

import pytest

from tests.helpers.needs import is_here


@pytest.fixture(autouse=True)
def one_thread():
    """Let torch work on one thread: small tensors on several mostly wait, and other tests run beside these."""
    if not is_here("torch"):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bench_of():
    """Return what makes the bench of a rank, which times each call once."""
    import torch

    from binsgdm.bench.ranks import Ranks
    from binsgdm.bench.record import Bench, Record
    from binsgdm.bench.timing import StopRule

    def make(device="cpu"):
        place = torch.device(device)
        ranks = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=place, backend="", groups=None)
        once = StopRule(min_repetitions=1, max_repetitions=1)
        return Bench(record=Record(ranks), ranks=ranks, stop_rule=once)

    return make


@pytest.fixture
def bench(bench_of):
    return bench_of()
