"""Fixed pieces of work that show the speed of a machine: when they are timed, and what is kept."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import record
from binsgdm.bench.record import SpeedProbe


class SlowerRanks:
    """Ranks of which another one takes a second longer for everything."""

    device = torch.device("cpu")

    def barrier(self) -> None:
        pass

    def slowest(self, seconds: list[float]) -> list[float]:
        return [one + 1.0 for one in seconds]


class Kept:
    """What was added to a record."""

    def __init__(self) -> None:
        self.series: list[tuple[str, str, list[float]]] = []

    def add(self, kind: str, name: str, values: list[float]) -> None:
        self.series.append((kind, name, values))


def test_samples_are_those_of_the_slowest_rank_and_not_taken_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SHARED_S", 1e-4)
    monkeypatch.setattr(record, "EVERY_S", 1e3)
    kept, ranks = Kept(), SlowerRanks()
    mine: Any = SpeedProbe(ranks)
    for _ in range(3):
        mine.sample()
    mine.add_to(kept)
    assert [(kind, name, len(values)) for kind, name, values in kept.series] == [
        ("speed", "multiply", 1), ("speed", "stream", 1)
    ]  # fmt: skip
    assert all(value > 1.0 for _, _, values in kept.series for value in values)
