"""Steps of training need two ranks; those of two are measured in `tests/distributed/test_measure.py`."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench import training as steps
from binsgdm.bench.gpu import training
from binsgdm.bench.gpu.parts import NotMeasurableError
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule


def bench_of(world_size: int) -> Bench:
    ranks = Ranks(
        rank=0, world_size=world_size, ranks_per_node=world_size, ranks_on_machine=world_size,
        device=torch.device("cpu"), backend="", groups=None,
    )  # fmt: skip
    return Bench(record=Record(ranks), ranks=ranks, stop_rule=StopRule())


def test_one_card_is_skipped_with_a_reason() -> None:
    with pytest.raises(NotMeasurableError, match="needs two"):
        training.measure(bench_of(1), quick=True, seconds=5.0)


def test_the_time_is_shared_among_the_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(steps, "measure", lambda bench, **given: asked.append((bench.stop_rule.max_seconds, given)))
    training.measure(bench_of(2), quick=True, seconds=1.0)
    ((each_s, given),) = asked
    assert each_s == 1.0 / len(training.STRATEGIES)
    assert (given["models"], given["batch"], len(given["strategies"])) == (["mlp_200k"], 2, 5)
