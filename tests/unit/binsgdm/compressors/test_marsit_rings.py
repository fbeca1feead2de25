"""Rings hop by hop: in one process against sums, and over gloo against one process."""

from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import run_in_lockstep
from binsgdm.comm.groups import make
from binsgdm.comm.transport import Transport, send_recv
from binsgdm.compressors.marsit import Marsit, all_reduce_round_rings
from tests.helpers.gradient_buckets import bucket, context
from tests.helpers.launch import launch, rank_of_gloo

NUMEL = 101
STEPS = 3


def add(came, own, *_):
    return came + own


@pytest.mark.parametrize("groups", [("world",), ("intra_node", "inter_node")])
def test_all_reduce_round_rings_and_tori_is_the_sum_on_every_rank(groups) -> None:
    values = torch.arange(6 * 24).view(6, 24)
    contexts = [context(rank, 6, ranks_per_node=3) for rank in range(6)]
    talks = [all_reduce_round_rings(values[p.rank], groups, p, add) for p in contexts]
    for total in run_in_lockstep(talks, 3):
        assert torch.equal(total, values.sum(dim=0))
    assert torch.equal(values, torch.arange(6 * 24).view(6, 24))


def values_of(rank: int, step: int):
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(10 * rank + step))


SETTINGS = ({"sync_period": 3}, {"torus": True})


def protocols_of(rank: int, world_size: int, settings):
    """Yield the protocol of each step, of one rank."""
    system = Marsit(**settings, rank=rank, world_size=world_size)
    for step in range(1, STEPS + 1):
        yield system.mean(bucket(values_of(rank, step), ((NUMEL,),)), context(rank, world_size, step, 2))


def work(rank: int, world_size: int, folder: str) -> None:
    with rank_of_gloo(rank, world_size, folder, node=2):
        groups, sent = make(2), []
        found = [send_recv(torch.full((2,), float(rank)), groups.world)]
        transport = Transport(groups, sent.append)
        for settings in SETTINGS:
            found += [transport.run(talk) for talk in protocols_of(rank, world_size, settings)]
        torch.save((found, sorted({one.collective for one in sent})), Path(folder) / f"{rank}.pt")


def test_gloo_ranks_get_to_the_bit_what_one_process_gets(tmp_path: Path) -> None:
    launch(work, 4, str(tmp_path), nprocs=4)
    wanted = []
    for settings in SETTINGS:
        every = [protocols_of(rank, 4, settings) for rank in range(4)]
        wanted += [run_in_lockstep(step, 2)[0] for step in zip(*every, strict=True)]
    for rank in range(4):
        (first, *found), sent = torch.load(tmp_path / f"{rank}.pt")
        assert first.tolist() == [(rank - 1) % 4] * 2
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert sent == ["all_gather", "send_recv"]
