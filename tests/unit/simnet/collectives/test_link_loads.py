"""What a schedule loads is counted once for repetitions that are alike."""

import pytest
from msgspec.structs import replace

from simnet.cluster.schedule import Send, group_of
from simnet.collectives import link_loads, ring
from simnet.collectives.ring import RingSends


@pytest.mark.parametrize("nodes", [1, 3, 16])
def test_the_work_of_a_rank_is_that_of_all_repetitions(nodes: int) -> None:
    schedule = ring.all_reduce(group_of("world", nodes, 8))
    one_by_one = replace(schedule, rounds=tuple(replace(one, same_pairs=False) for one in schedule.rounds))
    assert link_loads._work_of_ranks(schedule, nodes) == link_loads._work_of_ranks(one_by_one, nodes)
    assert link_loads._work_of_ranks(schedule, nodes) == ((2 * (8 * nodes - 1),) * 3,)


def test_a_ring_of_many_ranks_is_counted_by_one_of_its_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, sends = [], RingSends.__call__

    def counted(self: RingSends, rank: int, index: int) -> tuple[Send, ...]:
        asked.append(rank)
        return sends(self, rank, index)

    monkeypatch.setattr(RingSends, "__call__", counted)
    schedule = ring.all_reduce(group_of("world", 1_001, 8))
    assert link_loads._work_of_ranks(schedule, 1_001)
    assert len(asked) == 2 * 8
