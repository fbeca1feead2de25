"""Rounds and ring against the collectives, among gloo ranks on loopback."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist

from binsgdm.comm import AllGather, AllToAll, transport
from binsgdm.comm.groups import make
from binsgdm.errors import BinsgdmError
from tests.helpers.launch import join, launch, of_all, rank_of_gloo

DTYPES = [torch.uint8, torch.float32, torch.bfloat16]
LONG = transport.MIN_ROUND_BYTES
ROW_BYTES = [8, LONG - 4, LONG, 3 * LONG + 4]


def rows(rank, count, row_bytes, dtype):
    """Return rows that tell sender, receiver and place apart, all bit patterns allowed."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 256, (count, row_bytes), dtype=torch.uint8, generator=generator).view(dtype)


def differences(rank, group, carry, name):
    """Return the cases in which what `carry` brings is not, bit for bit, what the collective brings."""
    count, wrong = dist.get_world_size(group), []
    for dtype in DTYPES:
        for row_bytes in ROW_BYTES:
            sent = rows(rank, count, row_bytes, dtype)
            other = torch.empty_like(sent)
            dist.all_to_all_single(other, sent, group=group)
            brought = carry(AllToAll(group=name, sent=sent))
            piece, pieces = sent[0], [torch.empty_like(sent[0]) for _ in range(count)]
            dist.all_gather(pieces, piece, group=group)
            gathered = carry(AllGather(group=name, sent=piece))
            expected = {"all_to_all": (other, brought), "all_gather": (torch.stack(pieces), gathered)}
            for what, (wanted, got) in expected.items():
                if not torch.equal(wanted.view(torch.uint8), got.view(torch.uint8)):
                    wrong.append((what, name, dtype, row_bytes))
    return wrong


def carrier(groups, sent_log):
    """Return a function that carries one message through a transport."""
    through = transport.Transport(groups, sent_log.append)

    def one(message):
        answer = yield message
        return answer

    return lambda message: through.run(one(message))


def compare(rank, world_size, ranks_per_node, folder):
    """Carry every message in every group; rank 0 leaves what differs, what was recorded and how rows went."""
    log, rounds = [], []
    in_rounds, in_ring = transport.all_to_all_in_rounds, transport.all_gather_in_ring
    transport.all_to_all_in_rounds = lambda *given: rounds.append(given[1][0].nbytes) or in_rounds(*given)
    transport.all_gather_in_ring = lambda *given: rounds.append(given[1].nbytes) or in_ring(*given)
    with rank_of_gloo(rank, world_size, folder) as results, ThreadPoolExecutor(1) as thread:
        groups = make(ranks_per_node)
        carry, names = carrier(groups, log), ("world", "intra_node", "inter_node")
        found = [thread.submit(differences, rank, getattr(groups, name), carry, name) for name in names]
        for _ in range(20):  # beside other collectives of this process, as beside backward
            dist.all_reduce(torch.ones(1000))
        wrong = of_all([case for future in found for case in future.result()])
        results |= {"wrong": wrong, "log": [tuple(s) for s in log], "rounds": rounds}


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "ranks_per_node"), [(3, 1), (4, 2)])
def test_messages_of_any_length_and_dtype_arrive_as_by_the_collectives(world_size, ranks_per_node, tmp_path):
    launch(compare, world_size, ranks_per_node, str(tmp_path), nprocs=world_size)
    results = torch.load(tmp_path / "results.pt", weights_only=False)
    assert results["wrong"] == [[]] * world_size
    sizes = {"world": world_size, "intra_node": ranks_per_node, "inter_node": world_size // ranks_per_node}
    expected = [
        record
        for name, size in sizes.items()
        if size > 1
        for _ in DTYPES
        for row in ROW_BYTES
        for record in (("all_to_all", name, size * row), ("all_gather", name, row))
    ]
    assert results["log"] == expected, "once a collective, with the bytes that the rank gave, none in a group of one"
    in_rounds = [name for name, size in sizes.items() if size > 1 and name != "intra_node"]
    in_rings = [name for name, size in sizes.items() if size > 1]
    long_ones = [LONG, 3 * LONG + 4] * len(DTYPES)
    assert sorted(results["rounds"]) == sorted(long_ones * len(in_rounds + in_rings))


def receive_twice(rank, world_size, folder):
    with rank_of_gloo(rank, world_size, folder):
        carry = carrier(make(1), [])
        where = []
        for numel in (1000, 3000, 500):
            for _ in range(2):
                brought = carry(AllToAll(group="world", sent=torch.full((world_size, numel), float(rank))))
                where.append(brought.data_ptr())
                assert brought.tolist() == [[float(sender)] * numel for sender in range(world_size)]
        first, same, larger, *others = where
        assert first == same
        assert others == [larger] * 3


def test_memory_for_what_is_received_is_kept_from_step_to_step(tmp_path):
    """A thread that is handed fresh memory in every step waits for the system to clear it: steps of thrice the time."""
    launch(receive_twice, 2, str(tmp_path), nprocs=2)


def lose_a_rank(rank, world_size, folder, how, gathers):
    """Send a long message in which the last rank, gone or hanging, does not take part."""
    torch.set_num_threads(1)
    join(rank, world_size, folder)
    carry = carrier(make(1, timedelta(seconds=2)), [])
    (Path(folder) / f"connected{rank}").touch()
    if rank == world_size - 1:
        while len(list(Path(folder).glob("connected*"))) < world_size:  # so that it is lost in the message
            time.sleep(0.01)
        if how == "hangs":
            time.sleep(6)
        os._exit(0)
    piece = torch.zeros(world_size, 4 * LONG, dtype=torch.uint8)
    try:
        carry(AllGather(group="world", sent=piece[0]) if gathers else AllToAll(group="world", sent=piece))
    except BinsgdmError as error:
        (Path(folder) / f"told{rank}.txt").write_text(str(error))
    time.sleep(3)  # so that each is told of the lost rank, and not of one that left because it was told
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("how", ["is gone", "hangs"])
def test_a_long_message_to_a_rank_that_is_lost_ends_in_a_sentence_on_every_other_rank(how, gathers, tmp_path):
    launch(lose_a_rank, 3, str(tmp_path), how, gathers, nprocs=3)
    for rank in (0, 1):
        told = (tmp_path / f"told{rank}.txt").read_text()
        assert told.startswith("binsgdm: rank 2 is gone")
        assert f"as rank {rank} noticed in All" in told
