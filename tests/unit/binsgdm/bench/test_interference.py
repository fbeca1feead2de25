"""Backward is timed beside copies where there is one rank, and a load begins before backward and ends behind it."""

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import interference
from binsgdm.bench.timing import WARM_UP


def test_one_rank_measures_backward_beside_copies_at_three_shares_and_says_what_they_stand_for(bench):
    interference.measure_cards(bench, quick=True, seconds=5.0)
    found = [(one["name"], one["labels"]["collective"], one["labels"]["share"]) for one in bench.record.series]
    assert found == [
        (name, "copy", share) for share in interference.SHARES for name in ("backward_alone", "backward_beside")
    ]
    assert "stand for its kernels" in bench.record.notes[0]


def test_a_load_runs_before_backward_begins_and_has_ended_before_the_next_forward(bench):
    now, seen = [], []
    weight = torch.nn.Linear(2, 1)

    def forward():
        assert not now
        loss = weight(torch.ones(1, 2)).sum()
        loss.register_hook(lambda _: seen.append(list(now)))
        return loss

    def load(busy, running):
        now.append("load")
        running.set()
        while busy.is_set():
            pass
        now.clear()

    interference.add_backwards(bench, weight, forward, {"load": load}, {"load": {}})
    assert sorted(seen) == [[]] * (len(seen) // 2) + [["load"]] * (len(seen) // 2)
    assert len(seen) >= 2 * (WARM_UP + 1)
