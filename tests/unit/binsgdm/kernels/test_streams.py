"""On fake streams: no two use one memory in no order, and none of backward waits for an exchange, loaded or not."""

import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm import BinSGDM
from binsgdm.comm.groups import Groups
from binsgdm.comm.thread import CommunicationThread
from binsgdm.comm.transport import Transport
from binsgdm.compressors.registry import make
from binsgdm.optimizers import local_steps
from binsgdm.optimizers.local_steps import DiLoCo, LocalSGD, LocalStepsOptimizer
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import SCHEMES, Scheme
from binsgdm.parallel.local_gradients import OwnParameters, keep_gradients_local
from binsgdm.parallel.overlapped import OverlappedSession
from tests.helpers.fake_cuda import fake_cuda
from tests.helpers.fake_streams import SYSTEM_CASES, Hooked, Net, fake_ranks, watched
from tests.helpers.race_detector import COLLECTIVE_S, FakeEvent, FakeStream, RaceDetector

STEPS = 2
FLAT = Scheme(topology="flat")


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> RaceDetector:
    return watched(RaceDetector(), monkeypatch)


def train_binsgdm(
    detector: RaceDetector,
    *,
    scheme: Scheme = FLAT,
    world_size: int = 4,
    overlap: bool = True,
    stream: FakeStream | None = None,
    other: FakeStream | None = None,
    backwards: int = 1,
    ddp: dict[str, Any] | None = None,
) -> None:
    with fake_ranks(world_size) as made, detector.use(stream or detector.default):
        model: nn.Module = Net(detector, other)
        optimizer = BinSGDM(model.parameters(), kernels="reference")
        member = Transport(made).member()
        is_last = [True]
        session = Session(member, scheme, 100)
        if overlap:
            session = OverlappedSession(member, scheme, 100, lambda: is_last[0])
        if ddp is not None:
            model = DistributedDataParallel(model, bucket_cap_mb=0.0001, **ddp)
            keep_gradients_local([model], OwnParameters(optimizer, model.parameters(), print))
        optimizer.join(session)
        for _ in range(STEPS):
            for number in range(backwards):
                is_last[0] = number == backwards - 1
                detector.backward(model(torch.ones(5, 6)))
            optimizer.step()
            optimizer.zero_grad()


def train_with(detector: RaceDetector, system: str, options: dict[str, Any], world_size: int = 4, **ddp: Any) -> None:
    with fake_ranks(world_size) as made, detector.use(FakeStream("training")):
        Hooked(detector, made, system, options, **ddp).steps(STEPS)


@pytest.mark.parametrize(
    ("scheme", "world_size"), [*((scheme, 4) for scheme in SCHEMES), (FLAT, 2), (Scheme(), 2)], ids=str
)
def test_overlapped_steps_have_no_race(detector: RaceDetector, scheme: Scheme, world_size: int) -> None:
    train_binsgdm(detector, scheme=scheme, world_size=world_size)
    assert detector.races == []
    assert detector.waited_in_backward == []


@pytest.mark.parametrize(("system", "options"), SYSTEM_CASES, ids=str)
def test_the_hook_of_a_system_has_no_race(detector: RaceDetector, system: str, options: dict[str, Any]) -> None:
    train_with(detector, system, options)
    assert detector.races == []
    assert detector.waited_in_backward == []


SITUATIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "on a side stream": lambda: {"stream": FakeStream("training")},
    "gradients of two streams": lambda: {"other": FakeStream("other")},
    "two backwards before a step": lambda: {"backwards": 2, "stream": FakeStream("training")},
    "gradients in DDP's buckets": lambda: {"ddp": {"gradient_as_bucket_view": True}},
    "gradients copied back by DDP": lambda: {"ddp": {}},
    "in the step": lambda: {"overlap": False, "stream": FakeStream("training")},
}


@pytest.mark.parametrize("behind", [0, 1, 100])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_a_training_script_does_brings_no_race(
    monkeypatch: pytest.MonkeyPatch, situation: str, behind: int
) -> None:
    detector = watched(RaceDetector(), monkeypatch, behind=behind)
    train_binsgdm(detector, **SITUATIONS[situation]())
    assert detector.races == []
    assert detector.waited_in_backward == []


@pytest.mark.parametrize("behind", [0, 1, 100])
def test_a_hook_in_ddps_own_buckets_brings_no_race(monkeypatch: pytest.MonkeyPatch, behind: int) -> None:
    detector = watched(RaceDetector(), monkeypatch, behind=behind)
    train_with(detector, "ef_sign_sgd", {}, gradient_as_bucket_view=True)
    assert detector.races == []


def test_two_models_that_exchange_at_a_time_do_not_wait_for_each_other(detector: RaceDetector) -> None:
    with fake_ranks(4) as made, detector.use(detector.default):
        models = [Net(detector), Net(detector)]
        optimizers = [BinSGDM(model.parameters(), kernels="reference") for model in models]
        for optimizer in optimizers:
            optimizer.join(OverlappedSession(Transport(made).member(), FLAT, 100, lambda: True))
        ended: dict[FakeStream, int] = {}
        for _ in range(STEPS):
            for model in models:
                detector.backward(model(torch.ones(5, 6)))
            for stream, other in itertools.permutations(detector.exchanges):
                # It waits for the updates of the other in former steps, and so for its exchanges then.
                assert stream.clock.get(other, 0) <= ended.get(other, 0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            ended = {stream: stream.clock[stream] for stream in detector.exchanges}
    assert detector.races == []
    assert len(detector.exchanges) == 2


def test_the_first_collective_begins_before_backward_ends_and_lengthens_it_by_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends_s = {}
    for overlap in (False, True):
        detector = watched(RaceDetector(), monkeypatch)
        train_binsgdm(detector, overlap=overlap)
        ends_s[overlap] = detector.backwards_end_s[0]
        monkeypatch.undo()
        begins_s = detector.exchange_begins_s
        assert (begins_s is not None and begins_s < ends_s[overlap]) is overlap
    # A hook copies a few elements, each an operation of 1 s; a collective takes 1000 s.
    assert ends_s[True] - ends_s[False] < 10


class RecordsTooEarly(RaceDetector):
    """Events before the last operation, which copies the gradients."""

    def record(self, stream: FakeStream) -> FakeEvent:
        event = super().record(stream)
        if stream not in self.exchanges and stream in event.clock:
            event.clock[stream] -= 1
        return event


class KeepsNothing(RaceDetector):
    def keep(self, stream: FakeStream, *tensors: Any) -> None:
        pass


class HasOneStream(RaceDetector):
    """The thread stays on the stream that threads begin on."""

    def make(self) -> FakeStream:
        return self.default


DEFECTS: dict[str, tuple[type[RaceDetector], Callable[[RaceDetector], None], str]] = {
    "an event before the copy of the gradients": (
        RecordsTooEarly, lambda detector: train_with(detector, "dense", {}),
        "on exchange reads what aten.cat.default on training writes, in no order",
    ),
    "gradients freed while an exchange reads them": (
        KeepsNothing, lambda detector: train_with(detector, "dense", {}),
        "memory of training is freed while aten.clone.default on exchange may use it",
    ),
    "a bucket that waits for the stream of its last gradient alone": (
        RaceDetector, lambda detector: train_binsgdm(detector, other=FakeStream("other")),
        "on exchange reads what aten.sum.dim_IntList on other writes, in no order",
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_race_is_found(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    kind, train, race = DEFECTS[defect]
    if "last gradient alone" in defect:
        submit = CommunicationThread.submit
        monkeypatch.setattr(CommunicationThread, "submit", lambda thread, item, _sources=(): submit(thread, item))
    detector = watched(kind(), monkeypatch)
    train(detector)
    assert any(re.search(race, one) for one in detector.races)


def test_backward_that_waits_for_collectives_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = watched(HasOneStream(), monkeypatch)
    train_binsgdm(detector)
    assert detector.races == []
    # Before the first one over gloo ranks introduce themselves, by an all-gather.
    assert "c10d.alltoall_base_.default runs on default" in detector.waited_in_backward[:2]
    assert detector.backwards_end_s[0] > COLLECTIVE_S


def test_the_thread_of_a_gpu_works_on_that_gpu_and_asks_cuda_for_these_events(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = fake_cuda(monkeypatch)
    thread = CommunicationThread[str]("test", torch.device("cuda", 1), cuda.asked.append)
    thread.submit("an item")
    thread.finish()
    for asked in ("on cuda:1", "to own stream of cuda:1"):  # whose place the threads' turns decide
        cuda.asked.remove(asked)
    assert cuda.asked == [
        "record current stream of cuda:1",
        "own stream of cuda:1 waits for event of current stream of cuda:1",
        "an item",
        "record own stream of cuda:1",
        "current stream of cuda:1 waits for event of own stream of cuda:1",
    ]


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
