"""A process group without other ranks: it notes a collective, and answers as if all ranks sent what this one sends."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from binsgdm.comm.groups import RECORDING
from binsgdm.errors import BinsgdmError
from binsgdm.recording.rank_streams import Mark
from binsgdm.recording.recorder import Place, Recorder


class RecordedFuture(torch.futures.Future):  # type: ignore[type-arg]
    """A future that has its value; whose stream waits for it waits for a mark.

    Args:
        recorder: takes notes.
        mark: at which the value is there.
        callbacks: stream on which callbacks run, as those of NCCL's futures run on a stream of their own.
    """

    def __new__(cls, *_: Any, **__: Any) -> "RecordedFuture":
        """Make a future of no device."""
        made: RecordedFuture = super().__new__(cls)
        return made

    def __init__(self, recorder: Recorder, mark: Mark, callbacks: int) -> None:
        super().__init__()
        self._recorder, self.mark, self._callbacks = recorder, mark, callbacks

    def wait(self) -> Any:
        """Return the value; the stream of this thread waits for it."""
        self._recorder.wait(self.mark)
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> "RecordedFuture":
        """Run a callback on the stream of callbacks, and return the future of what it returns."""
        recorder = self._recorder
        with recorder.on_stream(self._callbacks, "decode"):
            recorder.wait(self.mark)
            chained = RecordedFuture(recorder, self.mark, self._callbacks)
            try:
                found = callback(self)
            except Exception as error:
                chained.set_exception(error)
            else:
                chained.mark = recorder.mark()
                chained.set_result(found)
        recorder.wait_after_backward(chained.mark)
        return chained


class RecordedWork(dist.Work):
    """The handle of a collective.

    Args:
        recorder: takes notes.
        mark: at which it has ended; None for half of a hop, until the other half is there.
        callbacks: stream on which callbacks run.
        result: tensors that it gives.
    """

    def __init__(self, recorder: Recorder, mark: Mark | None, callbacks: int, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._recorder, self.mark, self._callbacks, self._result = recorder, mark, callbacks, result
        self.refuse: Callable[[], NoReturn] | None = None

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002
        """Let the stream of this thread wait for it."""
        self._recorder.wait(self._known_mark())
        return True

    def synchronize(self) -> None:
        """Let the stream of this thread wait for it."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Return True."""
        return True

    is_success = is_completed

    def result(self) -> list[torch.Tensor]:
        """Return its tensors."""
        return self._result

    def get_future(self) -> RecordedFuture:
        """Return its future, for which DDP waits at the end of backward."""
        found = RecordedFuture(self._recorder, self._known_mark(), self._callbacks)
        found.set_result(self._result)
        self._recorder.wait_after_backward(found.mark)
        return found

    def _known_mark(self) -> Mark:
        if self.mark is None and self.refuse is not None:
            self.refuse()
        assert self.mark is not None
        return self.mark


_ProcessGroup: Any = dist.ProcessGroup  # whose overloads, of another API, torch never calls on a group in Python


class RecordingGroup(_ProcessGroup):  # type: ignore[misc]
    """The group of some ranks, as rank 0 of the world sees it."""

    def __init__(self, recorder: Recorder, number: int, rank: int, size: int, name: str) -> None:
        super().__init__(rank, size)
        self._recorder, self._number, self._rank, self._size = recorder, number, rank, size
        self._label = name
        self._callbacks: int | None = None
        self._half: tuple[tuple[str, int, float, Place], Tensor, RecordedWork] | None = None
        self._torch_name = ""

    def rank(self) -> int:
        """Return the rank of this process in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def getBackendName(self) -> str:  # noqa: N802
        """Return how torch calls the backend."""
        return RECORDING

    @property
    def pg_name(self) -> str:
        """Name under which torch knows the group."""
        # Torch asks once more when it has forgotten the group.
        self._torch_name = dist.distributed_c10d._world.pg_names.get(self, self._torch_name)
        return self._torch_name

    @property
    def group_name(self) -> str:
        """Name under which torch knows the group."""
        return self.pg_name

    @contextmanager
    def _noted(
        self, kind: str, sent: Sequence[Tensor], num_bytes: float, result: list[Tensor]
    ) -> Iterator[RecordedWork]:
        """Note a collective, and give its handle; what is done inside is its answer, and no work of the step."""
        mark = self._recorder.collective(kind, self._number, self._label, sent, num_bytes)
        with torch.no_grad(), self._recorder.unnoticed():
            yield RecordedWork(self._recorder, mark, self._callback_stream(), result)
        self._recorder.forget_time()

    def _callback_stream(self) -> int:
        if self._callbacks is None:
            self._callbacks = self._recorder.tape.add_stream(f"callbacks {self._label}")
        return self._callbacks

    # Reductions: as if all ranks were alike

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> RecordedWork:
        """Sum tensors in one message."""
        return self._reduced("all_reduce", tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> RecordedWork:
        """Sum at one rank."""
        return self._reduced("reduce", tensors, opts)

    def _reduced(self, kind: str, tensors: list[Tensor], opts: Any) -> RecordedWork:
        with self._noted(kind, tensors, _bytes(tensors), tensors) as work:
            self._sum(tensors, opts)
        return work

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> RecordedWork:
        """Sum, and keep the part of this rank."""
        given = [one for row in inputs for one in row]
        self.check_alike([one.numel() for one in given], "reduce_scatter")
        with self._noted("reduce_scatter", given, _bytes(given), outputs) as work:
            for output, row in zip(outputs, inputs, strict=True):
                output.copy_(row[self._rank].reshape(output.shape))
            self._sum(outputs, opts)
        return work

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> RecordedWork:
        """Sum, and keep the part of this rank."""
        with self._noted("reduce_scatter", [given], _bytes([given]), [output]) as work:
            part = given.reshape(-1)[self._rank * output.numel() :][: output.numel()]
            output.copy_(part.reshape(output.shape))
            self._sum([output], opts)
        return work

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> RecordedWork:
        """Sum several, and keep the parts of this rank."""
        works = [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return works[-1]

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Copies of what this rank has

    def broadcast(self, tensors: list[Tensor], *_: Any) -> RecordedWork:
        """Leave tensors as they are: the first rank sends its own, and any other one's are taken to be the same."""
        with self._noted("broadcast", tensors, _bytes(tensors), tensors) as work:
            return work

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Gather: one list of the ranks' tensors an input."""
        gathered = [one for row in outputs for one in row]
        with self._noted("all_gather", inputs, _bytes(gathered), gathered) as work:
            for row, given in zip(outputs, inputs, strict=True):
                for output in row:
                    output.copy_(given.reshape(output.shape))
        return work

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Gather several: one list of tensors a rank."""
        return self.allgather([list(row) for row in zip(*outputs, strict=True)], inputs)

    def all_gather_single(self, output: Tensor, given: Tensor, *_: Any) -> RecordedWork:
        """Gather into one tensor."""
        with self._noted("all_gather", [given], _bytes([output]), [output]) as work:
            # The source may be a part of the result, as FSDP's is.
            output.view(self._size, -1).copy_(given.reshape(1, -1).clone().expand(self._size, -1))
        return work

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> RecordedWork:
        """Gather several."""
        works = [self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return works[-1]

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> RecordedWork:  # noqa: ARG002
        """Give rank 0 what this rank has; no step may hold it, since one rank alone receives."""
        gathered = [one for row in outputs for one in row]
        with self._noted("gather", inputs, _bytes(inputs) * self._size, gathered) as work:
            for output in gathered:
                output.copy_(inputs[0].reshape(output.shape))
        return work

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], *_: Any) -> RecordedWork:
        """Keep the part of this rank; no step may hold it, since one rank alone sends."""
        with self._noted("scatter", outputs, _bytes(outputs) * self._size, outputs) as work:
            for output, row in zip(outputs, inputs, strict=False):
                output.copy_(row[self._rank].reshape(output.shape))
        return work

    # Exchanges: every rank gets the part of this rank

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_sizes: list[int], sizes: list[int], *_: Any
    ) -> RecordedWork:
        """Exchange the parts of one tensor."""
        self.check_alike([*output_sizes, *sizes], "all_to_all")
        with self._noted("all_to_all", [given], _bytes([given]), [output]) as work:
            first = given.reshape(self._size, -1)[self._rank]
            output.view(self._size, -1).copy_(first.clone().expand(self._size, -1))
        return work

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Exchange tensors."""
        self.check_alike([one.numel() for one in (*outputs, *inputs)], "all_to_all")
        with self._noted("all_to_all", inputs, _bytes(inputs), outputs) as work:
            first = inputs[self._rank].clone()
            for output in outputs:
                output.copy_(first.reshape(output.shape))
        return work

    # What has no place in a step that all ranks do alike

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> RecordedWork:  # noqa: ARG002
        """Note a hop, if this rank receives as much from the rank as far before it."""
        return self._half_of_hop("send", tensors[0], (destination - self._rank) % self._size)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> RecordedWork:  # noqa: ARG002
        """Note a hop, if this rank sends as much to the rank as far after it."""
        return self._half_of_hop("recv", tensors[0], (self._rank - source) % self._size)

    def recv_anysource(self, *_: Any) -> NoReturn:
        """Refuse."""
        self._refuse("recv", "one rank alone receives")

    def _half_of_hop(self, kind: str, tensor: Tensor, distance: int) -> RecordedWork:
        """Note the second half of a hop that all ranks do alike; the first half waits for it.

        The halves follow each other at once: a stage of a pipeline, which sends now and receives later, is no hop.
        """
        half, self._half = self._half, None
        # The place is that of this thread: others, such as backward, go on meanwhile.
        wanted = ({"send": "recv", "recv": "send"}[kind], distance, _bytes([tensor]), self._recorder.place())
        if half is None or half[0] != wanted:
            self._recorder.mark()  # what is computed from here on is a new operation
            work = RecordedWork(self._recorder, None, self._callback_stream(), [tensor])
            work.refuse = lambda: self._refuse(kind, f"one rank alone {'sends' if kind == 'send' else 'receives'}")
            self._half = ((kind, *wanted[1:-1], self._recorder.place()), tensor, work)
            return work
        if distance != 1:
            self._refuse(kind, f"a hop of {distance} ranks: only neighbours are simulated")
        _, other, first = half
        sent, received = (tensor, other) if kind == "send" else (other, tensor)
        with self._noted("send_recv", [sent], _bytes([sent]), [tensor]) as work:
            received.copy_(sent)
        first.mark = work.mark
        return work

    def barrier(self, *_: Any, **__: Any) -> RecordedWork:
        """Wait for all ranks."""
        with self._noted("barrier", [], 0.0, []) as work:
            return work

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Wait for all ranks."""
        self.barrier().wait()

    def abort(self) -> None:
        """Do nothing."""

    shutdown = abort

    def _sum(self, tensors: Sequence[Tensor], opts: Any) -> None:
        operation = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        if operation == dist.ReduceOp.SUM:
            for tensor in tensors:
                tensor.mul_(self._size)

    def check_alike(self, sizes: Sequence[int], kind: str) -> None:
        """Refuse parts of several sizes, which other ranks would not have alike."""
        if len(set(sizes)) > 1:
            self._refuse(kind, f"parts of {min(sizes)} to {max(sizes)} elements hang on the data")

    def _refuse(self, kind: str, why: str) -> NoReturn:
        raise BinsgdmError(
            f"{kind} in group {self._label!r}: {why}: a recording needs ranks that all do the same; measure such a "
            "step on the cluster"
        )


ONE_SIDED = ("gather", "scatter")
"""What no step may hold; before the steps, models are handed out so."""


def _bytes(tensors: Sequence[Tensor]) -> float:
    return float(sum(one.numel() * one.element_size() for one in tensors))


FUNCTIONAL = ("_c10d_functional", "_dtensor")
"""Namespaces of the collectives of DTensor, which return what they give."""
_CALLS: dict[str, Callable[[RecordingGroup, Any, Any], RecordedWork]] = {
    "all_reduce": lambda group, _, found: group.allreduce([found]),
    "all_reduce_coalesced": lambda group, _, found: group.allreduce(found),
    "all_gather_into_tensor": lambda group, given, found: group.all_gather_single(found, given),
    "all_gather_into_tensor_coalesced": lambda group, given, found: group.all_gather_single_coalesced(found, given),
    "reduce_scatter_tensor": lambda group, given, found: group.reduce_scatter_single(found, given),
    "reduce_scatter_tensor_coalesced": lambda group, given, found: group.reduce_scatter_single_coalesced(found, given),
    "all_to_all_single": lambda group, given, found: group.all_to_all_single(found, given, [], []),
    "shard_dim_alltoall": lambda group, given, found: group.all_to_all_single(found, given, [], []),
    "broadcast": lambda group, _, found: group.broadcast([found]),
}
"""What a functional collective asks of its group, by its name, for what it is given and what it returns."""


class FunctionalCollectives:
    """Lets collectives of DTensor reach their group where tensors have no memory, since torch asks no group there."""

    def __init__(self) -> None:
        self._works: dict[int, tuple[Tensor, RecordedWork]] = {}  # by storage, which the tensor keeps alive

    def answer(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what an operator of `FUNCTIONAL` does with real tensors, and note what it sends and waits for."""
        name = operator._schema.name.partition("::")[2]
        if name == "_wrap_tensor_autograd":
            return AsyncCollectiveTensor(args[0])
        if name == "wait_tensor":
            _, work = self._works.pop(_storage(args[0]), (None, None))
            if work is not None:
                work.wait()
            return args[0]
        call = _CALLS.get(name.removesuffix("_out").removesuffix("_"))
        if call is None:
            raise BinsgdmError(f"--fake: {operator}: is answered with memory alone: record without --fake")
        named = dict(zip([one.name for one in operator._schema.arguments], args, strict=False)) | dict(kwargs)
        group = named["group_name"]
        if isinstance(group, str):
            group = torch._C._distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        group.check_alike([*named.get("output_split_sizes", ()), *named.get("input_split_sizes", ())], "all_to_all")
        found = operator(*args, **kwargs)
        work = call(group, args[0], found)
        for one in found if isinstance(found, (list, tuple)) else [found]:
            self._works[_storage(one)] = one, work
        return found


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
