"""What a training script calls is compared with one process; here by one rank, in tests/distributed by two."""

from contextlib import contextmanager

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist

from binsgdm import BinsgdmError
from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import attached, lockstep, replicas
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.bench.timing import StopRule
from binsgdm.comm import groups
from binsgdm.kernels import streams

CPU = torch.device("cpu")


@pytest.fixture
def ranks(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield Ranks(
        rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=CPU, backend="gloo", groups=groups.make(1)
    )
    dist.destroy_process_group()


def test_one_rank_passes_every_comparison(ranks):
    found = {case.name: case.num_wrong() for case in attached.cases(ranks)}
    assert len(found) == 14
    assert [name for name, wrong in found.items() if wrong] == []


def test_what_there_is_no_time_for_is_noted(ranks, monkeypatch):
    monkeypatch.setattr(lockstep, "cases", lambda _: ())
    bench = Bench(record=Record(ranks), ranks=ranks, stop_rule=StopRule())
    replicas.check(bench, seconds=0.0)
    assert len(bench.record.checks) == 1
    assert bench.record.notes[0].startswith("replicas: no time was left for ")
    assert bench.record.notes[0].endswith("on: give more with --budget")


def test_a_torch_without_fsdp2_is_noted(ranks, monkeypatch):
    monkeypatch.delattr(torch.distributed.fsdp, "fully_shard")
    bench = Bench(record=Record(ranks), ranks=ranks, stop_rule=StopRule())
    monkeypatch.setattr(lockstep, "cases", lambda _: ())
    replicas.check(bench, seconds=0.0)
    assert "fully_shard: FSDP2 is left out" in bench.record.notes[0]
    assert not any("fsdp" in case.name or "compress_replicas" in case.name for case in attached.cases(ranks))


@pytest.fixture
def graphs(monkeypatch):
    """Pretend that a graph is captured, which refuses what steps in it; yield whether it does."""
    capturing, refuses = [], [True]

    @contextmanager
    def graph(made, capture_error_mode):
        capturing.append(capture_error_mode)
        yield
        capturing.clear()

    def check(where, device, reason):
        if capturing and refuses[0]:
            raise BinsgdmError(f"{where}: in a graph")

    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(streams, "check_not_captured", check)
    return refuses


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("name", ["LocalSGD", "DiLoCo", "compress_replicas"])
def test_a_step_in_a_cuda_graph_that_is_not_refused_fails(ranks, graphs, name, refuses):
    graphs[0] = refuses
    make_step = attached._steps_to_capture(ranks)[name]
    if refuses:
        assert attached.num_not_refused(ranks, make_step) == 0
    else:
        with pytest.raises(AssertionError, match="no error"):
            attached.num_not_refused(ranks, make_step)


def test_a_refused_step_that_moves_something_fails(ranks, graphs):
    value = torch.zeros(2)

    def step():
        value.add_(1.0)
        raise BinsgdmError("too late")

    assert attached.num_not_refused(ranks, lambda: attached._ToCapture(step, [value], lambda: None)) == 1
