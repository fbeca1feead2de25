"""Streams of a GPU on a CPU: which of two accesses to one memory have no order, and what waits for what.

PyTorch on a CPU does everything at once, in the thread that asks. Here every operation is noted with the fake stream
that its thread enqueues to and the bytes that it reads and writes; events and waits give streams their order (a vector
clock each). Two accesses to the same bytes from two streams without an order are a race if one of them writes. So is
memory that is freed while another stream than its own may still use it: PyTorch would give it away at once.

The host's order is none: a GPU starts late. Reads by the host (`item()`) give no order either, though they do on a GPU,
so that what is found right here stays right when they are gone.

Collectives run on the stream that calls them, as NCCL's synchronous ones do in effect, on PyTorch's fake process group,
which answers as if all ranks sent what this one sends."""

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

OPERATION_S, COLLECTIVE_S = 1.0, 1000.0
# Of each collective's operation, the place of the tensors that it writes and of those that it reads.
COLLECTIVES: dict[str, tuple[int | None, int | None]] = {
    "allreduce_": (0, None),
    "alltoall_base_": (0, 1),
    "_allgather_base_": (0, 1),
    "allgather_": (0, 1),
    "broadcast_": (0, None),
    "recv_": (0, None),
    "send": (None, 0),
}


@dataclass(eq=False)
class FakeStream:
    """What is enqueued, in order: how far it has come itself, and which work of the others comes before its next."""

    name: str
    clock: dict["FakeStream", int] = field(default_factory=dict)
    ends_s: float = 0.0

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FakeEvent:
    """A point in a stream."""

    stream: FakeStream
    clock: dict[FakeStream, int]
    ends_s: float


@dataclass(frozen=True)
class _Access:
    """Bytes [first, end) of a memory."""

    first: int
    end: int
    stream: FakeStream
    writes: bool

    def conflicts_with(self, other: "_Access") -> bool:
        overlap = self.first < other.end and other.first < self.end
        return overlap and self.stream is not other.stream and (self.writes or other.writes)


@dataclass
class _Memory:
    """Memory of some tensors: the stream that it goes back to, and its uses, each with the time of its stream."""

    home: FakeStream
    uses: dict[_Access, tuple[int, str]] = field(default_factory=dict)
    kept_for: set[FakeStream] = field(default_factory=set)
    result_since: FakeEvent | None = None


class RaceDetector:
    """Streams of one device, as `binsgdm.kernels.streams.CudaStreams`.

    Attributes:
        races: what was found, a sentence each.
        waited_in_backward: what kept a stream of backward waiting for an exchange before backward was over.
        default: the stream that all threads begin on.
        exchanges: the streams that were made.
        backwards_end_s: when, if an operation takes 1 s and a collective 1000 s.
        exchange_begins_s: when; None if nothing was done on the stream of exchanges.
    """

    def __init__(self) -> None:
        self.races: list[str] = []
        self.waited_in_backward: list[str] = []
        self.default = FakeStream("default")
        self.backwards_end_s: list[float] = []
        self.exchange_begins_s: float | None = None
        self.exchanges: list[FakeStream] = []
        self._lock = threading.RLock()
        self._local = threading.local()
        self._memories: dict[int, _Memory] = {}
        self._freed: deque[_Memory] = deque()
        self._is_in_backward = False

    # What binsgdm.kernels.streams has.

    def current(self) -> FakeStream:
        return getattr(self._local, "stream", None) or self.default

    def make(self) -> FakeStream:
        self.exchanges.append(FakeStream("exchange"))
        return self.exchanges[-1]

    @contextmanager
    def use(self, stream: FakeStream) -> Iterator[FakeStream]:
        before = getattr(self._local, "stream", None)
        self._local.stream = stream
        try:
            # Once a thread: what two modes see is noted twice.
            with nullcontext() if before else _Noting(self):
                yield stream
        finally:
            self._local.stream = before

    def record(self, stream: FakeStream) -> FakeEvent:
        with self._lock:
            self._free()
            return FakeEvent(stream, dict(stream.clock), stream.ends_s)

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        with self._lock:
            self._free()
            if self._is_in_backward and event.stream in self.exchanges and stream not in self.exchanges:
                self.waited_in_backward.append(f"{stream} waits for {event.stream}")
            for other, time in event.clock.items():
                stream.clock[other] = max(stream.clock.get(other, 0), time)
            stream.ends_s = max(stream.ends_s, event.ends_s)

    def keep(self, stream: FakeStream, *tensors: torch.Tensor) -> None:
        with self._lock:
            for tensor in tensors:
                self._memory(tensor).kept_for.add(stream)

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        return _FakeFuture(self)

    # What a training script does.

    def backward(self, loss: torch.Tensor) -> None:
        """Call `loss.backward()` as on a GPU: gradients come on the streams of `on_stream`, and the caller's waits."""
        caller = self.current()
        self._used = {caller}

        def end_backward() -> None:
            self._is_in_backward = False
            for stream in self._used:
                self.wait(caller, self.record(stream))
            self.backwards_end_s.append(caller.ends_s)
            self._local.stream = caller

        def begin_backward(_: torch.Tensor) -> None:
            self._is_in_backward = True
            # The first callback of all, as autograd lets the caller's streams wait before any callback.
            torch.autograd.Variable._execution_engine.queue_callback(end_backward)

        loss.register_hook(begin_backward)
        loss.backward()

    def on_stream(self, values: torch.Tensor, stream: FakeStream) -> torch.Tensor:
        """Return the values; the backward of what they come from runs on a stream."""
        result: torch.Tensor = _OnStream.apply(values, self, stream)
        return result

    def switch_in_backward(self, stream: FakeStream, gradient: torch.Tensor) -> None:
        # Autograd lets the stream of a node wait for the work that made the gradients that it takes, and keep them.
        with self._lock:
            memory = self._memory(gradient)
            for access, (time, _) in memory.uses.items():
                if access.writes:
                    stream.clock[access.stream] = max(stream.clock.get(access.stream, 0), time)
            memory.kept_for.add(stream)
        self._used.add(stream)
        self._local.stream = stream

    # What operations tell.

    def note(self, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor]) -> None:
        """Take in an operation on the current stream."""
        with self._lock:
            stream = self.current()
            self._free(next_on=stream)
            for tensor in reads:
                self._wait_for_result(self._memory(tensor), stream)
            time = stream.clock[stream] = stream.clock.get(stream, 0) + 1
            self._note_time(name, stream)
            for tensors, is_write in ((reads, False), (writes, True)):
                for tensor in tensors:
                    self._use(tensor, is_write, time, name)

    def _note_time(self, name: str, stream: FakeStream) -> None:
        if stream in self.exchanges and self.exchange_begins_s is None:
            self.exchange_begins_s = stream.ends_s
        is_collective = name.startswith("c10d")
        if is_collective and self._is_in_backward and stream not in self.exchanges:
            self.waited_in_backward.append(f"{name} runs on {stream}")
        stream.ends_s += COLLECTIVE_S if is_collective else OPERATION_S

    def note_result(self, tensor: torch.Tensor) -> None:
        """Take in the result of a future: whoever reads it waits for what is enqueued now, and keeps it."""
        event = self.record(self.current())
        with self._lock:
            self._memory(tensor).result_since = event

    def _wait_for_result(self, memory: _Memory, stream: FakeStream) -> None:
        if memory.result_since is not None and stream is not memory.result_since.stream:
            event, memory.result_since = memory.result_since, None
            self.wait(stream, event)
            memory.kept_for.add(stream)

    def _use(self, tensor: torch.Tensor, is_write: bool, time: int, name: str) -> None:
        if not tensor.numel():
            return
        memory, stream = self._memory(tensor), self.current()
        first = tensor.storage_offset()
        last = first + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        access = _Access(first * tensor.element_size(), (last + 1) * tensor.element_size(), stream, is_write)
        for other, (other_time, other_name) in memory.uses.items():
            if access.conflicts_with(other) and stream.clock.get(other.stream, 0) < other_time:
                verbs = ("writes" if is_write else "reads"), ("writes" if other.writes else "reads")
                self.races.append(
                    f"{name} on {stream} {verbs[0]} what {other_name} on {other.stream} {verbs[1]}, in no order"
                )
        memory.uses[access] = time, name

    def _memory(self, tensor: torch.Tensor) -> _Memory:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._memories:
            self._memories[key] = _Memory(self.current())
            weakref.finalize(storage, lambda: self._freed.append(self._memories.pop(key)))
        return self._memories[key]

    def _free(self, next_on: FakeStream | None = None) -> None:
        """Look at what was freed and may be written to again: by the next operation of its stream."""
        left: list[_Memory] = []
        while self._freed:
            memory = self._freed.popleft()
            (self._reuse if memory.home is next_on else left.append)(memory)
        self._freed.extend(left)

    def _reuse(self, memory: _Memory) -> None:
        for access, (time, name) in memory.uses.items():
            is_ordered = memory.home.clock.get(access.stream, 0) >= time
            if access.stream is not memory.home and access.stream not in memory.kept_for and not is_ordered:
                self.races.append(f"memory of {memory.home} is freed while {name} on {access.stream} may use it")


class _Noting(TorchDispatchMode):
    """Tells the detector of every operation of this thread."""

    def __init__(self, detector: RaceDetector) -> None:
        super().__init__()
        self._detector = detector
        self._receiving: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            return self._collective(func, args, kwargs)
        before = args[0].clone() if func is torch.ops.aten.copy_.default else None
        result = func(*args, **kwargs)
        given = list(zip(func._schema.arguments, args, strict=False))
        given += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
        written = [t for one, value in given if one.alias_info and one.alias_info.is_write for t in _tensors(value)]
        if any(one.alias_info and not one.alias_info.is_write for one, _ in given):
            return result  # a view
        given_tensors = [tensor for _, value in given for tensor in _tensors(value)]
        known = {tensor.untyped_storage()._cdata for tensor in given_tensors}
        fresh = [tensor for tensor in _tensors(result) if tensor.untyped_storage()._cdata not in known]
        reads = [tensor for tensor in given_tensors if not any(tensor is one for one in written)]
        if func.__name__.partition(".")[0].endswith("_like") or func.__name__.startswith("new_"):
            reads = []  # shapes alone
        if before is not None and torch.equal(before, args[0]):
            # DDP gives every gradient back; who reads it meanwhile reads the same bytes before and after.
            written, reads = [], given_tensors
        self._detector.note(str(func), reads, written + fresh)
        return result

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        writes, reads = COLLECTIVES[func.__name__.partition(".")[0]]
        written = _tensors(args[writes]) if writes is not None else []
        sent = _tensors(args[reads]) if reads is not None else []
        result = func(*args, **kwargs)
        match func.__name__.partition(".")[0]:
            case "alltoall_base_":
                written[0].copy_(sent[0].view_as(written[0]))
            case "_allgather_base_":
                written[0].view(-1, sent[0].numel()).copy_(sent[0].view(1, -1))
            case "recv_":
                self._receiving += written
            case "send":
                self._receiving.pop(0).copy_(sent[0])
        self._detector.note(f"c10d.{func.__name__}", sent, written)
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


class _FakeFuture(torch.futures.Future):  # type: ignore[type-arg]
    """A future that takes an event, as one of a GPU."""

    def __new__(cls, _: RaceDetector) -> "_FakeFuture":
        return super().__new__(cls)  # type: ignore[call-arg]

    def __init__(self, detector: RaceDetector) -> None:
        super().__init__()
        self._detector = detector

    def set_result(self, result: torch.Tensor) -> None:
        self._detector.note_result(result)
        super().set_result(result)


class _OnStream(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, detector: RaceDetector, stream: FakeStream) -> torch.Tensor:
        ctx.where = detector, stream
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        detector, stream = ctx.where
        detector.switch_in_backward(stream, gradient)
        return gradient.clone(), None, None
