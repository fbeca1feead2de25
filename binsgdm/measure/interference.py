"""Time backward alone and overlapped by a collective that repeats, which shows how much communication slows compute."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError
from binsgdm.measure import collectives
from binsgdm.measure.bench import Bench
from binsgdm.measure.model_zoo import Task, build
from binsgdm.measure.ranks import Ranks, guarded
from binsgdm.measure.timing import Stopwatch

MAX_BUCKET_BYTES = 25 * 2**20
SIGNS_PER_BYTE = 8
COLLECTIVES = ("all_reduce", "all_to_all")


def measure(
    bench: Bench,
    *,
    model: str,
    batch: int,
) -> None:
    """Add backward alone and backward overlapped by each of two collectives of all ranks, in turns.

    `all_reduce` carries fp32 gradients, at most 25 MiB; `all_to_all` one bit for each of them, by a transport.

    Args:
        bench: where to, who takes part, at least two, and when to stop, for each.
        model: as `model_zoo.build` takes it.
        batch: samples a rank.

    Raises:
        BinsgdmError: one rank, an unknown model, or a rank is gone.
    """
    ranks = bench.ranks
    if ranks.world_size < 2:
        raise BinsgdmError("interference: needs two ranks; launch them with torchrun --nproc-per-node 2")
    task = build(model, batch, ranks.device)
    gradient_bytes = min(4 * task.num_parameters, MAX_BUCKET_BYTES)
    calls = {
        "all_reduce": collectives.call(ranks, "all_reduce", "world", "float32", gradient_bytes),
        "all_to_all": collectives.call(ranks, "all_to_all", "world", "uint8", gradient_bytes // 4 // SIGNS_PER_BYTE),
    }
    trials = {"": _backward(task, ranks)}
    trials |= {name: _backward(task, ranks, function) for name, (function, _) in calls.items()}
    found = {name: [row[0] for row in rows] for name, rows in bench.interleave(trials).items()}
    for name, (_, message_bytes) in calls.items():
        labels: dict[str, str | int] = {
            "model": model,
            "batch": batch,
            "collective": name,
            "message_bytes": message_bytes,
        }
        bench.record.add("interference", "backward_alone", found[""], **labels)
        bench.record.add("interference", "backward_beside", found[name], **labels)


def _backward(
    task: Task, ranks: Ranks, collective: Callable[[], object] | None = None
) -> Callable[[], Sequence[float]]:
    """Return a trial: backward, alone or overlapped by a collective."""
    watch = Stopwatch(ranks.device)

    def trial() -> list[float]:
        task.module.zero_grad(set_to_none=True)
        loss = task.loss_of(task.module)
        with _overlapped(collective, ranks) if collective else nullcontext():
            start = watch.stamp()
            loss.backward()  # type: ignore[no-untyped-call]
            end = watch.stamp()
            return watch.since(start, [end])

    return trial


@contextmanager
def _overlapped(collective: Callable[[], object], ranks: Ranks) -> Iterator[None]:
    """Repeat a collective in a thread; it stops on all ranks at one time, when the last of them has left."""
    busy, running, failures = threading.Event(), threading.Event(), list[BaseException]()
    busy.set()

    def communicate() -> None:
        try:
            _repeat(collective, ranks, busy, running)
        except BaseException as error:  # handed to the thread that waits below
            failures.append(error)
            running.set()

    thread = threading.Thread(target=communicate, name="binsgdm-beside", daemon=True)
    thread.start()
    running.wait()
    try:
        yield
    finally:
        busy.clear()
        thread.join()
    if failures:
        raise failures[0]


def _repeat(collective: Callable[[], object], ranks: Ranks, busy: threading.Event, running: threading.Event) -> None:
    """Repeat until no rank is busy; all ranks ask before each, so that they agree on how many there are."""
    is_cuda = ranks.device.type == "cuda"
    with torch.cuda.stream(torch.cuda.Stream()) if is_cuda else nullcontext():  # type: ignore[no-untyped-call]
        while True:
            # Ranks finish backward at different times; if each stopped by itself, the others would wait in the next
            # collective.
            asked = torch.tensor([int(busy.is_set())], device=ranks.device)
            guarded(partial(dist.all_reduce, asked, op=dist.ReduceOp.MAX))
            if not int(asked):
                return
            running.set()
            collective()
            if is_cuda:
                torch.cuda.current_stream().synchronize()
