"""Two ranks under torchrun's agent: one is killed, both are started again, and end where they would have ended."""

import multiprocessing
import signal
from collections.abc import Iterator

import pytest

from tests.helpers.needs import needs

needs("torch")

from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.helpers.launch import PRELOAD
from tests.works import elastic
from tests.works.table import WAYS


@pytest.fixture
def _handlers() -> Iterator[None]:
    """The agent leaves its own for all signals that end a process."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("_handlers")
def test_a_run_that_torchrun_restarts_ends_where_it_would_have_ended(tmp_path, monkeypatch) -> None:
    # Else restarted ranks share the store of those before them, with the addresses of the dead (pytorch issue 135712).
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="works",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=1,
        monitor_interval=0.1,
        start_method="forkserver",
    )
    found = elastic_launch(config, elastic.work)(str(tmp_path))
    for rank, differing in found.items():
        assert differing == dict.fromkeys(map(str, WAYS), ""), f"rank {rank}"
