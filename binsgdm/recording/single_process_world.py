"""Let a script believe that it is rank 0 of a world: its environment, its store, its process groups, its hooks.

A process group without other ranks notes a collective, and answers as if all ranks sent what this one sends.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from binsgdm.comm.groups import RECORDING
from binsgdm.errors import BinsgdmError
from binsgdm.recording.fake_tensors import FakeDdp, storage_of
from binsgdm.recording.recorder import Place, Recorder, in_graph_task
from binsgdm.recording.tape import Mark


class RecordedFuture(torch.futures.Future):  # type: ignore[type-arg]
    """A future that has its value; whose stream waits for it waits for a mark.

    Its callbacks run on a stream of their own, as those of NCCL's futures do.
    """

    def __new__(cls, *_: Any, **__: Any) -> "RecordedFuture":
        """Make a future of no device."""
        made: RecordedFuture = super().__new__(cls)
        return made

    def __init__(self, recorder: Recorder, mark: Mark, callbacks: int) -> None:
        super().__init__()
        self._recorder, self.mark, self._callbacks = recorder, mark, callbacks

    def then(self, callback: Callable[[Any], Any]) -> "RecordedFuture":
        """Run a callback on the stream of callbacks, and return the future of what it returns."""
        recorder = self._recorder
        with recorder.on_stream(self._callbacks, "decode"):
            recorder.wait(self.mark)
            chained = RecordedFuture(recorder, self.mark, self._callbacks)
            try:
                value = callback(self)
            except Exception as error:
                chained.set_exception(error)
            else:
                chained.mark = recorder.mark()
                chained.set_result(value)
        recorder.wait_after_backward(chained.mark)
        return chained


class RecordedWork(dist.Work):
    """The handle of a collective: its end is the mark, or for half of a hop, until the other half is there, refused."""

    def __init__(
        self, recorder: Recorder, mark: Mark | Callable[[], NoReturn], callbacks: int, result: list[Tensor]
    ) -> None:
        super().__init__()
        self._recorder, self.mark, self._callbacks, self._result = recorder, mark, callbacks, result

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

    def result(self) -> list[Tensor]:
        """Return its tensors."""
        return self._result

    def get_future(self) -> RecordedFuture:
        """Return its future, for which DDP waits at the end of backward."""
        future = RecordedFuture(self._recorder, self._known_mark(), self._callbacks)
        future.set_result(self._result)
        self._recorder.wait_after_backward(future.mark)
        return future

    def _known_mark(self) -> Mark:
        return self.mark if isinstance(self.mark, frozenset) else self.mark()


_ProcessGroup: Any = dist.ProcessGroup  # whose overloads, of another API, torch never calls on a group in Python


class RecordingGroup(_ProcessGroup):  # type: ignore[misc]
    """A group as its rank 0 sees it, which is rank 0 of the world."""

    def __init__(self, recorder: Recorder, number: int, size: int, name: str) -> None:
        super().__init__(0, size)
        self._recorder, self._number, self._size, self._label = recorder, number, size, name
        self._callbacks: int | None = None
        self._half: tuple[tuple[str, int, float, Place], Tensor, RecordedWork] | None = None
        self._torch_name = ""

    def getBackendName(self) -> str:  # noqa: N802
        """Return how torch calls the backend."""
        return RECORDING

    @property
    def pg_name(self) -> str:
        """Name under which torch knows the group."""
        # Torch asks once more when it has forgotten the group.
        self._torch_name = dist.distributed_c10d._world.pg_names.get(self, self._torch_name)
        return self._torch_name

    group_name = pg_name

    def _noted(
        self,
        kind: str,
        sent: Sequence[Tensor],
        result: list[Tensor],
        answer: Callable[[], object] = lambda: None,
        num_bytes: float | None = None,
    ) -> RecordedWork:
        """Note a collective of as many bytes as are sent, or others, and return its handle; the answer is no work."""
        num_bytes = _bytes(sent) if num_bytes is None else num_bytes
        mark = self._recorder.collective(kind, self._number, self._label, sent, num_bytes)
        with torch.no_grad(), self._recorder.unnoticed():
            work = self._work(mark, result)
            answer()
        self._recorder.forget_time()
        return work

    def _work(self, mark: Mark | Callable[[], NoReturn], result: list[Tensor]) -> RecordedWork:
        if self._callbacks is None:
            self._callbacks = self._recorder.tape.add_stream(f"callbacks {self._label}")
        return RecordedWork(self._recorder, mark, self._callbacks, result)

    # Reductions: as if all ranks were alike

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> RecordedWork:
        """Sum tensors in one message."""
        return self._noted("all_reduce", tensors, tensors, lambda: self._sum(tensors, opts))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> RecordedWork:
        """Sum at one rank."""
        return self._noted("reduce", tensors, tensors, lambda: self._sum(tensors, opts))

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> RecordedWork:
        """Sum, and keep the part of this rank."""
        parts = [part for row in inputs for part in row]
        self.check_alike([part.numel() for part in parts], "reduce_scatter")

        def answer() -> None:
            _copy([row[0] for row in inputs], outputs)
            self._sum(outputs, opts)

        return self._noted("reduce_scatter", parts, outputs, answer)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> RecordedWork:
        """Sum, and keep the part of this rank."""

        def answer() -> None:
            _copy([source.reshape(-1)[: output.numel()]], [output])
            self._sum([output], opts)

        return self._noted("reduce_scatter", [source], [output], answer)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> RecordedWork:
        """Sum several, and keep the parts of this rank."""
        return [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _sum(self, tensors: Sequence[Tensor], opts: Any) -> None:
        # The mean, the least and the greatest of equal values is that value.
        if getattr(opts, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.SUM:
            for tensor in tensors:
                tensor.mul_(self._size)

    # Copies of what this rank has

    def broadcast(self, tensors: list[Tensor], *_: Any) -> RecordedWork:
        """Leave tensors as they are: the first rank sends its own, and any other one's are taken to be the same."""
        return self._noted("broadcast", tensors, tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Gather: one list of the ranks' tensors an input."""
        gathered = [output for row in outputs for output in row]
        sources = [tensor for tensor, row in zip(inputs, outputs, strict=True) for _ in row]
        return self._noted("all_gather", inputs, gathered, lambda: _copy(sources, gathered), _bytes(gathered))

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Gather several: one list of tensors a rank."""
        return self.allgather([list(row) for row in zip(*outputs, strict=True)], inputs)

    def all_gather_single(self, output: Tensor, source: Tensor, *_: Any) -> RecordedWork:
        """Gather into one tensor, of which the source may be a part, as FSDP's is."""
        return self._noted("all_gather", [source], [output], lambda: self._repeat(source, output), _bytes([output]))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Gather several."""
        return [self.all_gather_single(*pair) for pair in zip(outputs, inputs, strict=True)][-1]

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _repeat(self, part: Tensor, output: Tensor) -> None:
        output.view(self._size, -1).copy_(part.reshape(1, -1).clone().expand(self._size, -1))

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Give rank 0 what this rank has; no step may hold it, since one rank alone receives."""
        gathered = [output for row in outputs for output in row]
        answer = partial(_copy, inputs * len(gathered), gathered)
        return self._noted("gather", inputs, gathered, answer, _bytes(inputs) * self._size)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], *_: Any) -> RecordedWork:
        """Keep the part of this rank; no step may hold it, since one rank alone sends."""
        parts = [row[0] for row in inputs]
        answer = partial(_copy, parts, outputs[: len(parts)])
        return self._noted("scatter", outputs, outputs, answer, _bytes(outputs) * self._size)

    # Exchanges: every rank gets the part of this rank

    def all_to_all_single(
        self, output: Tensor, source: Tensor, output_sizes: list[int], sizes: list[int], *_: Any
    ) -> RecordedWork:
        """Exchange the parts of one tensor."""
        # Sizes that differ hang on what other ranks have, of which a recording knows nothing.
        self.check_alike([*output_sizes, *sizes], "all_to_all")
        return self._noted(
            "all_to_all", [source], [output], lambda: self._repeat(source.reshape(self._size, -1)[0], output)
        )

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], *_: Any) -> RecordedWork:
        """Exchange tensors."""
        self.check_alike([tensor.numel() for tensor in (*outputs, *inputs)], "all_to_all")
        return self._noted("all_to_all", inputs, outputs, lambda: _copy([inputs[0].clone()] * len(outputs), outputs))

    # What has no place in a step that all ranks do alike

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> RecordedWork:  # noqa: ARG002
        """Note a hop, if this rank receives as much from the rank as far before it."""
        return self._half_of_hop("send", tensors[0], destination % self._size)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> RecordedWork:  # noqa: ARG002
        """Note a hop, if this rank sends as much to the rank as far after it."""
        return self._half_of_hop("recv", tensors[0], -source % self._size)

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
            why = f"one rank alone {'sends' if kind == 'send' else 'receives'}"
            work = self._work(lambda: self._refuse(kind, why), [tensor])
            self._half = ((kind, *wanted[1:-1], self._recorder.place()), tensor, work)
            return work
        if distance != 1:
            self._refuse(kind, f"a hop of {distance} ranks: only neighbours are simulated")
        _, other, first = half
        sent, received = (tensor, other) if kind == "send" else (other, tensor)
        work = self._noted("send_recv", [sent], [tensor], lambda: received.copy_(sent))
        first.mark = work.mark
        return work

    def barrier(self, *_: Any, **__: Any) -> RecordedWork:
        """Wait for all ranks."""
        return self._noted("barrier", [], [])

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Wait for all ranks."""
        self.barrier().wait()

    def abort(self) -> None:
        """Do nothing."""

    shutdown = abort

    def check_alike(self, sizes: Sequence[int], kind: str) -> None:
        """Refuse parts of several sizes, which other ranks would not have alike."""
        if len(set(sizes)) > 1:
            self._refuse(kind, f"parts of {min(sizes)} to {max(sizes)} elements hang on the data")

    def _refuse(self, kind: str, why: str) -> NoReturn:
        raise BinsgdmError(
            f"{kind} in group {self._label!r}: {why}: a recording needs ranks that all do the same; measure such a "
            "step on the cluster"
        )


def _copy(sources: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for source, output in zip(sources, outputs, strict=True):
        output.copy_(source.reshape(output.shape))


ONE_SIDED = ("gather", "scatter")
"""What no step may hold; before the steps, models are handed out so."""


def _bytes(tensors: Sequence[Tensor]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


FUNCTIONAL = ("_c10d_functional", "_dtensor")
"""Namespaces of the collectives of DTensor, which return what they give."""
_CALLS: dict[str, Callable[[RecordingGroup, Any, Any], RecordedWork]] = {
    "all_reduce": lambda group, _, result: group.allreduce([result]),
    "all_reduce_coalesced": lambda group, _, result: group.allreduce(result),
    "all_gather_into_tensor": lambda group, source, result: group.all_gather_single(result, source),
    "all_gather_into_tensor_coalesced": lambda group, source, result: group.all_gather_single_coalesced(result, source),
    "reduce_scatter_tensor": lambda group, source, result: group.reduce_scatter_single(result, source),
    "reduce_scatter_tensor_coalesced": lambda group, source, result: group.reduce_scatter_single_coalesced(
        result, source
    ),
    "all_to_all_single": lambda group, source, result: group.all_to_all_single(result, source, [], []),
    "shard_dim_alltoall": lambda group, source, result: group.all_to_all_single(result, source, [], []),
    "broadcast": lambda group, _, result: group.broadcast([result]),
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
            _, work = self._works.pop(storage_of(args[0]), (None, None))
            if work is not None:
                work.wait()
            return args[0]
        call = _CALLS.get(name.removesuffix("_out").removesuffix("_"))
        if call is None:
            raise BinsgdmError(f"--fake: {operator}: is answered with memory alone: record without --fake")
        named = dict(zip([argument.name for argument in operator._schema.arguments], args, strict=False)) | dict(kwargs)
        group = named["group_name"]
        if isinstance(group, str):
            group = torch._C._distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        group.check_alike([*named.get("output_split_sizes", ()), *named.get("input_split_sizes", ())], "all_to_all")
        result = operator(*args, **kwargs)
        work = call(group, args[0], result)
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            self._works[storage_of(tensor)] = tensor, work
        return result


_Store: Any = getattr(dist, "Store")  # noqa: B009 - torch has no types for it


class _AloneStore(_Store):  # type: ignore[misc]
    """Keeps what this rank sets, and refuses to wait for what another one would."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._world_size = world_size
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter what all ranks add, so that nobody waits for the last one to arrive."""
        total = int(self._values.get(key, b"0")) + amount * self._world_size
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self._values.get(key, expected.encode()) == expected.encode():
            self.set(key, desired)
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002
        for key in keys:
            if key not in self._values:
                raise BinsgdmError(
                    f"store.get({key!r}): another rank would set it, and a recording has none: leave out what ranks "
                    "tell each other through the store"
                )

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: nothing waits."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A cluster that is not there."""

    num_nodes: int
    ranks_per_node: int

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.num_nodes * self.ranks_per_node

    def environment(self) -> dict[str, str]:
        """Return what torchrun sets for rank 0."""
        size, zeros = str(self.size), ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK")
        return dict.fromkeys(zeros, "0") | {
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "GROUP_WORLD_SIZE": str(self.num_nodes),
            "ROLE_WORLD_SIZE": size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "TORCHELASTIC_RUN_ID": "recording",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }


def _mesh_group(name: str, ranks: Sequence[int], world_size: int) -> dict[str, Any]:
    """Describe a dimension of a device mesh, whose groups tile the world: its ranks, and the distance of neighbours."""
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    is_regular = stride > 0 and list(ranks) == list(range(0, stride * len(ranks), stride))
    if not is_regular or world_size % (stride * len(ranks)):
        shown = f"{list(ranks[:6])}{'...' if len(ranks) > 6 else ''}"
        raise BinsgdmError(
            f"{name} of ranks {shown} in a world of {world_size}: must be one dimension of a mesh that holds rank 0 "
            "(ranks 0, s, 2 s, ..., whose equals tile the world); measure other groups on the cluster"
        )
    return {"name": name, "size": len(ranks), "stride": stride}


@contextmanager
def alone(
    world: World, recorder: Recorder, on_step_end: Callable[[], None], on_gradients: Callable[[Any], None]
) -> Iterator[list[dict[str, Any]]]:
    """Let what runs inside be rank 0 of a world.

    Args:
        world: to be in.
        recorder: takes notes.
        on_step_end: called at the end of a step of the first optimizer that follows a backward pass.
        on_gradients: called with every optimizer before its step.

    Yields:
        The process groups of the script, by number, as the step file holds them.
    """
    if dist.is_initialized():
        raise BinsgdmError("record: the process group exists already: start to record before init_process_group")
    groups: list[dict[str, Any]] = []

    def create(options: Any, _: Any) -> RecordingGroup:
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        name = f"group {len(groups)}" if groups else "world"
        groups.append(_mesh_group(name, ranks, world.size))
        return RecordingGroup(recorder, len(groups) - 1, options.group_size, name)

    # Torch refuses a name that it knows: once a process, with a maker that is replaced below.
    if RECORDING.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(RECORDING, lambda *_: None, extended_api=True, devices=["cpu", "cuda"])
    plugin = dist.Backend._BackendPlugin(create, True)
    made = {"init_process_group": _init_alone(world), "new_group": _new_group(c10d.new_group)}
    wrappers: tuple[Any, ...] = (DistributedDataParallel, FakeDdp)
    replaced: list[tuple[Any, dict[str, Any]]] = [
        (dist.Backend, {"_plugins": {**dist.Backend._plugins, RECORDING.upper(): plugin}}),
        (dist, made),  # under both names, as scripts import from either
        (c10d, made),
        (torch.autograd, {"backward": _noted_backward(recorder, torch.autograd.backward)}),
        (torch.multiprocessing, {"start_processes": _refuse_processes}),
        # By its module: the attribute `spawn` of the package is the function.
        (sys.modules["torch.multiprocessing.spawn"], {"start_processes": _refuse_processes}),
        *((wrapper, {"register_comm_hook": _noted_hook(recorder, wrapper.register_comm_hook)}) for wrapper in wrappers),
    ]
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, world.environment()))
        for home, names in replaced:
            stack.enter_context(patch.multiple(home, **names))
        for handle in _noted_optimizers(recorder, on_step_end, on_gradients):
            stack.callback(handle.remove)
        try:
            yield groups
        finally:
            if dist.is_initialized():
                # Also where the script has failed: the next recording makes its own.
                dist.destroy_process_group()


def _refuse_processes(*_: Any, **__: Any) -> NoReturn:
    raise BinsgdmError(
        "torch.multiprocessing.spawn: the script starts its ranks itself, and one process is recorded: call what each "
        "rank runs as rank 0 where WORLD_SIZE is set, as under torchrun"
    )


def _init_alone(world: World) -> Callable[..., None]:
    original = c10d.init_process_group
    store = _AloneStore(world.size)  # kept here: torch keeps the part of it that is not Python's alone

    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None, init_method: str | None = None, timeout: Any = None,
        world_size: int = -1, rank: int = -1, *others: Any, **named: Any,
    ) -> None:  # fmt: skip
        del backend, init_method, timeout, others, named
        if world_size not in (-1, world.size) or rank not in (-1, 0):
            raise BinsgdmError(
                f"init_process_group(world_size={world_size}, rank={rank}): the recording is rank 0 of {world.size}: "
                "leave both out, or take them from the environment (WORLD_SIZE, RANK)"
            )
        original(RECORDING, store=store, rank=0, world_size=world.size)

    return init_process_group


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *others: Any, **named: Any) -> Any:
        del timeout, backend, others
        # What else may be given is of another backend.
        kept = {key: value for key, value in named.items() if key in ("group_desc", "use_local_synchronization")}
        return original(ranks, backend=RECORDING, **kept)

    return new_group


def _noted_hook(recorder: Recorder, original: Callable[..., None]) -> Callable[..., None]:
    """Note what communication hooks of DDP compute, and wait for their futures at the end of backward."""

    def register_comm_hook(self: Any, state: object, hook: Callable[[Any, Any], Any]) -> None:
        @functools.wraps(hook)
        def noted(state: object, bucket: Any) -> Any:
            with recorder.on_stream(recorder.stream, "encode"), recorder.of_bucket(bucket.index()):
                future = hook(state, bucket)
            recorder.wait_after_backward_for(future)
            return future

        original(self, state, noted)

    return register_comm_hook


def _noted_backward(recorder: Recorder, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(*arguments: Any, **named: Any) -> None:
        if in_graph_task():  # one that checkpoints run inside another
            original(*arguments, **named)
            return
        with recorder.backward():
            original(*arguments, **named)

    return backward


def _noted_optimizers(
    recorder: Recorder, on_step_end: Callable[[], None], on_gradients: Callable[[Any], None]
) -> list[Any]:
    running: list[Any] = []
    first: list[Any] = []

    def before(optimizer: Any, *_: Any) -> None:
        # An optimizer that steps another one inside, such as ZeRO's, takes one step.
        if not running:
            recorder.enter_optimizer()
            on_gradients(optimizer)
        running.append(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        running.pop()
        if running:
            return
        recorder.leave_optimizer()
        # Of several optimizers in a step, the first one that ever stepped ends it.
        first[:] = first or [optimizer]
        if optimizer is first[0] and recorder.step_has_ended:
            on_step_end()

    return [
        optimizers.register_optimizer_step_pre_hook(before),
        optimizers.register_optimizer_step_post_hook(after),
    ]
