"""Messages that are answered at once: what a rank gets, and that transports send again afterwards."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import training
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
