"""Models, backward beside a load, and messages that are answered at once: what is timed, and what is left out."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import interference, training
from binsgdm.bench import model as models
from binsgdm.bench.timing import WARM_UP
from binsgdm.bench.training import answered_at_once, is_answered_at_once
from binsgdm.comm import AllGather, AllReduceMax, AllReduceSum, AllToAll
from binsgdm.comm.transport import Transport


class FakeTransport:
    _groups = SimpleNamespace(world=None)


def fake_transport() -> Any:
    return FakeTransport()


@pytest.mark.parametrize(
    ("kind", "answer"),
    [(AllGather, [[1.0, 2.0]] * 3), (AllReduceSum, [3.0, 6.0]), (AllToAll, [1.0, 2.0])],
)
def test_a_rank_gets_what_it_would_if_all_sent_the_same(
    kind: Any, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training.dist, "get_world_size", lambda _group: 3)
    transport = fake_transport()
    sent = torch.tensor([1.0, 2.0])
    with answered_at_once():
        assert is_answered_at_once()
        got = Transport._communicate(transport, kind(group="world", sent=sent))
        flags = Transport._communicate(transport, AllReduceMax(sent=sent))
    assert got.tolist() == answer
    assert flags.tolist() == [1.0, 2.0]


def test_payloads_of_pieces_are_answered_by_payloads_of_the_same_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.dist, "get_world_size", lambda _group: 3)
    monkeypatch.setattr(training.dist, "get_rank", lambda _group: 1)
    rows = torch.tensor([[1, 1], [2, 2], [3, 3]], dtype=torch.uint8)
    transport = fake_transport()
    with answered_at_once():
        owned = Transport._communicate(transport, AllToAll(group="world", sent=rows))
        means = Transport._communicate(transport, AllGather(group="world", sent=owned[0]))
        alike = Transport._communicate(transport, AllGather(group="world", sent=owned[0]))
    assert owned.tolist() == [[2, 2]] * 3, "rank 1 owns the second piece"
    assert means.tolist() == rows.tolist()
    assert alike.tolist() == [[2, 2]] * 3, "without pieces before it, all send the same"


def test_transports_send_again_afterwards_even_if_a_training_failed() -> None:
    carries = Transport._communicate
    with pytest.raises(RuntimeError), answered_at_once():
        raise RuntimeError
    assert not is_answered_at_once()
    assert Transport._communicate is carries


def one(**changes):
    """Return a model of 200 thousand parameters at batches 1, 2 and 4."""
    model = models.small_models()[0]
    return replace(model, **changes)


def passes(bench):
    return [
        (series["labels"]["precision"], series["labels"]["batch"])
        for series in bench.record.series
        if series["name"] == "backward"
    ]


def test_every_precision_of_a_cpu_is_measured_at_three_batches(bench):
    models.measure_models(bench, [one()], seconds=60.0)
    assert passes(bench) == [(precision, batch) for precision in ("bf16", "fp32") for batch in (1, 2, 4)]
    names = [series["name"] for series in bench.record.series if series["labels"]["precision"] == "fp32"]
    assert names == ["forward", "backward", *["gradient_ready"] * 8] * 3
    assert [s["labels"]["optimizer"] for s in bench.record.series if s["name"] == "optimizer"] == ["adamw"]
    assert bench.record.notes == [
        "tf32 is a mode of NVIDIA's tensor cores: left out on a CPU",
        "fp16 is slow on a CPU: left out on a CPU",
    ]


def test_a_batch_that_does_not_fit_is_left_out_with_a_reason_and_the_others_are_measured(bench):
    seen = set()

    def task(module, samples):
        if samples == 4:
            raise torch.cuda.OutOfMemoryError
        made = models.small_models()[0].task(module, samples)
        return replace(made, loss=lambda output: seen.add(output.dtype) or made.loss(output))

    models.measure_models(bench, [one(task=task)], seconds=60.0)
    assert passes(bench) == [("bf16", 1), ("bf16", 2), ("fp32", 1), ("fp32", 2)]
    assert bench.record.notes[-1] == "mlp_200k: out of memory: bf16 at 4, fp32 at 4 samples: left out"
    assert seen == {torch.bfloat16, torch.float32}, "bf16 runs under autocast"


@pytest.mark.parametrize("precision", models.PRECISIONS)
def test_tf32_is_allowed_in_its_own_measurement_alone(precision):
    places = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [place.allow_tf32 for place in places]
    with models.matrix_products(precision):
        assert [place.allow_tf32 for place in places] == [precision == "tf32"] * 2
    assert [place.allow_tf32 for place in places] == before


def test_one_rank_measures_backward_beside_copies_at_three_shares_and_says_what_they_stand_for(bench):
    interference.measure_cards(bench, quick=True, seconds=5.0)
    found = [
        (series["name"], series["labels"]["collective"], series["labels"]["share"]) for series in bench.record.series
    ]
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
