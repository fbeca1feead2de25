"""Let a script believe that it is rank 0 of a world: its environment, its store, its process groups, its hooks."""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from binsgdm.comm.groups import RECORDING
from binsgdm.errors import BinsgdmError
from binsgdm.recording.fake_tensors import FakeDdp
from binsgdm.recording.recorder import Recorder, in_graph_task
from binsgdm.recording.recording_group import RecordingGroup

_Store: Any = getattr(dist, "Store")  # noqa: B009 - torch has no types for it


class AloneStore(_Store):  # type: ignore[misc]
    """Keeps what this rank sets, and refuses to wait for what another one would."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._world_size = world_size
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """Keep a value."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value that this rank has set."""
        if key not in self._values:
            self._refuse(key)
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter what all ranks add, so that nobody waits for the last one to arrive."""
        total = int(self._values.get(key, b"0")) + amount * self._world_size
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value if it is what is expected."""
        if self._values.get(key, expected.encode()) == expected.encode():
            self.set(key, desired)
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """Tell whether all keys are set."""
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002
        """Refuse keys that are not set."""
        for key in keys:
            if key not in self._values:
                self._refuse(key)

    def delete_key(self, key: str) -> bool:
        """Forget a key."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: nothing waits."""

    def _refuse(self, key: str) -> NoReturn:
        raise BinsgdmError(
            f"store.get({key!r}): another rank would set it, and a recording has none: leave out what ranks tell each "
            "other through the store"
        )


@dataclass(frozen=True, kw_only=True)
class World:
    """A cluster that is not there.

    Attributes:
        num_nodes: nodes.
        ranks_per_node: ranks on each.
    """

    num_nodes: int
    ranks_per_node: int

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.num_nodes * self.ranks_per_node

    def environment(self) -> dict[str, str]:
        """Return what torchrun sets for rank 0."""
        return {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "GROUP_RANK": "0",
            "ROLE_RANK": "0",
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "GROUP_WORLD_SIZE": str(self.num_nodes),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "TORCHELASTIC_RUN_ID": "recording",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }


@dataclass(frozen=True, kw_only=True)
class MeshGroup:
    """Ranks of a group: a dimension of a device mesh, whose groups tile the world.

    Attributes:
        name: torch's description or name of it.
        size: ranks.
        stride: distance of neighbours.
    """

    name: str
    size: int
    stride: int


@dataclass
class MeshGroups:
    """The process groups of a script.

    Attributes:
        found: by number.
    """

    world: World
    recorder: Recorder
    found: list[MeshGroup] = field(default_factory=list)

    def create(self, options: Any, _: Any) -> RecordingGroup:
        """Make the group that torch asks for."""
        ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
        name = f"group {len(self.found)}" if self.found else "world"
        self.found.append(_mesh_group(name, ranks, self.world.size))
        return RecordingGroup(self.recorder, len(self.found) - 1, options.group_rank, options.group_size, name)


def _mesh_group(name: str, ranks: Sequence[int], world_size: int) -> MeshGroup:
    stride = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    is_regular = list(ranks) == list(range(ranks[0], ranks[0] + stride * len(ranks), stride)) if stride > 0 else False
    if ranks[0] != 0 or not is_regular or world_size % (stride * len(ranks)):
        shown = f"{list(ranks[:6])}{'...' if len(ranks) > 6 else ''}"
        raise BinsgdmError(
            f"{name} of ranks {shown} in a world of {world_size}: must be one dimension of a mesh that holds rank 0 "
            "(ranks 0, s, 2 s, ..., whose equals tile the world); measure other groups on the cluster"
        )
    return MeshGroup(name=name, size=len(ranks), stride=stride)


@contextmanager
def alone(
    world: World, recorder: Recorder, on_step_end: Callable[[], None], on_gradients: Callable[[Any], None]
) -> Iterator[MeshGroups]:
    """Let what runs inside be rank 0 of a world.

    Args:
        world: to be in.
        recorder: takes notes.
        on_step_end: called at the end of a step of the first optimizer that follows a backward pass.
        on_gradients: called with every optimizer before its step.
    """
    if dist.is_initialized():
        raise BinsgdmError("record: the process group exists already: start to record before init_process_group")
    groups = MeshGroups(world, recorder)
    if RECORDING.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(RECORDING, lambda *_: None, extended_api=True, devices=["cpu", "cuda"])
    plugin = dist.Backend._BackendPlugin(groups.create, True)
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, world.environment()))
        stack.enter_context(patch.multiple(dist.Backend, _plugins={**dist.Backend._plugins, RECORDING.upper(): plugin}))
        init_process_group, new_group = _init_alone(world), _new_group(c10d.new_group)
        for home in (dist, c10d):
            stack.enter_context(patch.multiple(home, init_process_group=init_process_group, new_group=new_group))
        for module in (DistributedDataParallel, FakeDdp):
            stack.enter_context(_noted_hooks(recorder, module))
        stack.enter_context(_noted_backward(recorder))
        stack.enter_context(_noted_optimizers(recorder, on_step_end, on_gradients))
        for home in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            stack.enter_context(patch.multiple(home, start_processes=_refuse_processes))
        try:
            yield groups
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _refuse_processes(*_: Any, **__: Any) -> NoReturn:
    raise BinsgdmError(
        "torch.multiprocessing.spawn: the script starts its ranks itself, and one process is recorded: call what each "
        "rank runs as rank 0 where WORLD_SIZE is set, as under torchrun"
    )


def _init_alone(world: World) -> Callable[..., None]:
    original = c10d.init_process_group
    store = AloneStore(world.size)  # kept here: torch keeps the part of it that is not Python's alone

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
        kept = {key: value for key, value in named.items() if key in ("group_desc", "use_local_synchronization")}
        return original(ranks, backend=RECORDING, **kept)

    return new_group


@contextmanager
def _noted_hooks(recorder: Recorder, module: Any) -> Iterator[None]:
    """Note what communication hooks of DDP compute, and wait for their futures at the end of backward."""
    original = module.register_comm_hook

    def register_comm_hook(self: Any, state: object, hook: Callable[[Any, Any], Any]) -> None:
        @functools.wraps(hook)
        def noted(state: object, bucket: Any) -> Any:
            with recorder.in_part("encode"), recorder.of_bucket(bucket.index()):
                future = hook(state, bucket)
            recorder.wait_after_backward_for(future)
            return future

        original(self, state, noted)

    with patch.multiple(module, register_comm_hook=register_comm_hook):
        yield


@contextmanager
def _noted_backward(recorder: Recorder) -> Iterator[None]:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*given: Any, **named: Any) -> None:
        if in_graph_task():  # one that checkpoints run inside another
            original(*given, **named)
            return
        with recorder.backward():
            original(*given, **named)

    with patch.multiple(torch.autograd, backward=backward):
        yield


@contextmanager
def _noted_optimizers(
    recorder: Recorder, on_step_end: Callable[[], None], on_gradients: Callable[[Any], None]
) -> Iterator[None]:
    running: list[Any] = []
    first: list[Any] = []

    def before(optimizer: Any, *_: Any) -> None:
        if not running:
            recorder.enter_optimizer()
            on_gradients(optimizer)
        running.append(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        running.pop()
        if running:
            return
        recorder.leave_optimizer()
        first[:] = first or [optimizer]
        if optimizer is first[0] and recorder.step_has_ended:
            on_step_end()

    handles = [
        optimizers.register_optimizer_step_pre_hook(before),
        optimizers.register_optimizer_step_post_hook(after),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
