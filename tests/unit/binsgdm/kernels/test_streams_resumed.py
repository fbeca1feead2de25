"""On fake streams: a loaded state, local SGD and DiLoCo bring no race."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm.groups import Groups
from binsgdm.compressors.registry import make
from binsgdm.optimizers import local_steps
from binsgdm.optimizers.local_steps import DiLoCo, LocalSGD, LocalStepsOptimizer
from tests.helpers.fake_streams import SYSTEM_CASES, Hooked, Net, fake_ranks, watched
from tests.helpers.race_detector import FakeStream, RaceDetector

STATEFUL = [case for case in SYSTEM_CASES if make(case[0], rank=0, world_size=4, **case[1]).state_dict()]
SCATTERED = ("ef_sign_sgd", {"topology": "scatter_reduce"})
DILOCO: list[dict[str, Any]] = [
    {},
    {"overlap_steps": 2},
    {"overlap_steps": 2, "exchange": "bf16"},
    {"overlap_steps": 2, "exchange": "int8"},
    {"overlap_steps": 2, "exchange": "one_bit"},
    {"overlap_steps": 1, "exchange": "one_bit", "fragments": 2},
]


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> RaceDetector:
    return watched(RaceDetector(), monkeypatch)


@pytest.mark.parametrize(("system", "options"), [*STATEFUL, SCATTERED], ids=str)
def test_a_state_that_was_loaded_brings_no_race(detector: RaceDetector, system: str, options: dict[str, Any]) -> None:
    with fake_ranks(4) as made, detector.use(FakeStream("training")):
        # DDP then forms no buckets anew, for which the host waits.
        saved, loaded = (Hooked(detector, made, system, options, find_unused_parameters=True) for _ in range(2))
        saved.steps(2)
        state = saved.exchange.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a state without a layout
            loaded.exchange.load_state_dict(state | {"layout": None})
        del state
        loaded.steps(2)
    assert detector.races == []


class Wrapped:
    """A model whose steps are its own between exchanges."""

    def __init__(self, detector: RaceDetector, wrap: Callable[[torch.optim.Optimizer], LocalStepsOptimizer]) -> None:
        self._detector, self._model = detector, Net(detector)
        self.optimizer = wrap(torch.optim.SGD(self._model.parameters(), lr=0.1))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._detector.backward(self._model(torch.ones(5, 6)))
            self.optimizer.step()
            self.optimizer.zero_grad()


def pretend_that_ranks_agree(monkeypatch: pytest.MonkeyPatch, made: Groups) -> None:
    """Let rank 0 be all ranks."""
    monkeypatch.setattr(local_steps.grouping, "make", lambda *_: made)
    for name in ("check_same_settings", "check_same_tensors"):
        monkeypatch.setattr(local_steps, name, lambda *_: None)


@pytest.mark.parametrize("given", DILOCO, ids=str)
def test_diloco_and_its_loaded_state_bring_no_race(
    detector: RaceDetector, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    def wrap(optimizer: torch.optim.Optimizer) -> DiLoCo:
        return DiLoCo(optimizer, inner_steps=4, **given)

    with fake_ranks(4) as made, detector.use(FakeStream("training")):
        pretend_that_ranks_agree(monkeypatch, made)
        saved = Wrapped(detector, wrap)
        saved.steps(9)  # an exchange that steps hide has begun
        assert detector.races == []
        loaded = Wrapped(detector, wrap)
        loaded.optimizer.load_state_dict(saved.optimizer.state_dict())
        loaded.steps(8)
    assert detector.races == []
    assert len(detector.exchanges) == 2 * ("overlap_steps" in given)


@pytest.mark.parametrize("wire_dtype", ["fp32", "bf16"])
def test_local_sgd_brings_no_race(detector: RaceDetector, monkeypatch: pytest.MonkeyPatch, wire_dtype: Any) -> None:
    with fake_ranks(4) as made, detector.use(FakeStream("training")):
        pretend_that_ranks_agree(monkeypatch, made)
        Wrapped(detector, lambda one: LocalSGD(one, inner_steps=2, wire_dtype=wire_dtype)).steps(5)
    assert detector.races == []
