"""A rank that fails ends the others: checked among ranks, over a backend with NCCL's rules."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import failures
from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from binsgdm.bench.timing import StopRule
from binsgdm.comm import groups
from tests.helpers import fake_nccl
from tests.helpers.launch import launch

CPU = torch.device("cpu")


def ranks_of(rank: int, world_size: int, made: groups.Groups | None) -> Ranks:
    return Ranks(
        rank=rank, world_size=world_size, ranks_per_node=world_size, ranks_on_machine=world_size, device=CPU,
        backend="", groups=made,
    )  # fmt: skip


def work(rank: int, folder: str) -> None:
    fake_nccl.FakeNccl.patience_s = 0.1
    failures.TIMEOUT = timedelta(seconds=2)
    with fake_nccl.ranks(rank, 3, f"file://{folder}/store"):
        made = ranks_of(rank, 3, None)
        record = Record(made)
        failures.measure(Bench(record=record, ranks=made, stop_rule=StopRule()), quick=True, seconds=5.0)
        torch.save((record.checks, record.notes), Path(folder) / f"{rank}.pt")
        os._exit(0)


def test_the_others_end_in_time_and_are_told_why(tmp_path) -> None:
    launch(work, str(tmp_path), nprocs=3)
    for rank in range(3):
        checks, notes = torch.load(tmp_path / f"{rank}.pt")
        assert [(one["name"], one["passed"], one["count"], one["detail"]) for one in checks] == [
            ("a rank that refuses", True, 2, ""),
            ("a rank that takes no step", True, 2, ""),
        ]
        assert "rank 2 refused: BinSGDM: a sparse gradient" in notes[0]
        assert "no answer for 2 s, rank 2 not among those that wait" in notes[1]


def test_ranks_that_go_on_or_end_late_fail_the_check() -> None:
    made = ranks_of(0, 3, None)
    bench = Bench(record=Record(made), ranks=made, stop_rule=StopRule())
    failures._check(bench, "late", [("rank 2 refused: no", 11.0), ("", 1.0)], "refused")
    failures._check(bench, "on", [("rank 2 refused: no", 1.0), ("", 2.0)], "refused")
    assert [(one["passed"], one["detail"]) for one in bench.record.checks] == [
        (False, "rank 2 refused: no, after 11.0 s"),
        (False, "went on, after 2.0 s"),
    ]


def test_one_card_is_skipped_with_a_reason() -> None:
    alone = ranks_of(0, 1, None)
    with pytest.raises(NotMeasurableError, match="needs two"):
        failures.measure(Bench(record=Record(alone), ranks=alone, stop_rule=StopRule()), quick=True, seconds=5.0)
