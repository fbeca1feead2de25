"""Time backward alone and overlapped by a collective that repeats, which shows how much communication slows compute."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist

from binsgdm.bench import collectives
from binsgdm.bench.ranks import Ranks, guarded
from binsgdm.bench.record import Bench, Label
from binsgdm.bench.timing import Stopwatch, Trial
from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_sources import build

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
    """
    task = build(model, batch, bench.ranks.device)
    beside_collectives(bench, task.module, partial(task.loss_of, task.module), {"model": model, "batch": batch})


def beside_collectives(
    bench: Bench, module: torch.nn.Module, forward: Callable[[], torch.Tensor], labels: Mapping[str, Label]
) -> None:
    """Do what `measure` does for a module and its forward, which returns the loss."""
    ranks = bench.ranks
    if ranks.world_size < 2:
        raise BinsgdmError("interference: needs two ranks; launch them with torchrun --nproc-per-node 2")
    num_parameters = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    gradient_bytes = min(4 * num_parameters, MAX_BUCKET_BYTES)
    calls = {
        "all_reduce": collectives.call(ranks, "all_reduce", "world", "float32", gradient_bytes),
        "all_to_all": collectives.call(ranks, "all_to_all", "world", "uint8", gradient_bytes // 4 // SIGNS_PER_BYTE),
    }
    loads = {name: partial(_repeat, function, ranks) for name, (function, _) in calls.items()}
    found = backwards(bench, module, forward, loads)
    for name, (_, message_bytes) in calls.items():
        add_pair(bench, found, name, {**labels, "collective": name, "message_bytes": message_bytes})


def backwards(
    bench: Bench, module: torch.nn.Module, forward: Callable[[], torch.Tensor], loads: Mapping[str, "Load"]
) -> dict[str, list[float]]:
    """Return the times of backward alone, by "", and beside each load, by its name, in turns [s]."""
    trials = {"": _backward(module, forward, bench.ranks, None)}
    trials |= {name: _backward(module, forward, bench.ranks, load) for name, load in loads.items()}
    return {name: [row[0] for row in rows] for name, rows in bench.interleave(trials).items()}


def add_pair(bench: Bench, found: Mapping[str, list[float]], name: str, labels: Mapping[str, Label]) -> None:
    """Add backward alone and beside the load of this name."""
    bench.record.add("interference", "backward_alone", found[""], **labels)
    bench.record.add("interference", "backward_beside", found[name], **labels)


# Works in a thread of its own until the first event is cleared; sets the second when it has begun.
Load = Callable[[threading.Event, threading.Event], None]


def _backward(module: torch.nn.Module, forward: Callable[[], torch.Tensor], ranks: Ranks, load: Load | None) -> Trial:
    """Return a trial: backward, alone or beside a load."""
    watch = Stopwatch(ranks.device)

    def trial() -> list[float]:
        module.zero_grad(set_to_none=True)
        loss = forward()
        with _overlapped(load, ranks.device) if load else nullcontext():
            start = watch.stamp()
            loss.backward()  # type: ignore[no-untyped-call]
            end = watch.stamp()
            return watch.since(start, [end])

    return trial


@contextmanager
def _overlapped(load: Load, device: torch.device) -> Iterator[None]:
    """Let a load work in a thread, on a stream of its own."""
    busy, running, failures = threading.Event(), threading.Event(), list[BaseException]()
    busy.set()

    def work() -> None:
        try:
            with _own_stream(device):
                load(busy, running)
        except BaseException as error:  # handed to the thread that waits below
            failures.append(error)
            running.set()

    thread = threading.Thread(target=work, name="binsgdm-beside", daemon=True)
    thread.start()
    running.wait()
    try:
        yield
    finally:
        busy.clear()
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """Work on a new stream of a GPU; a new thread begins with the first GPU as its current one."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        yield


def _repeat(collective: Callable[[], object], ranks: Ranks, busy: threading.Event, running: threading.Event) -> None:
    """Repeat until no rank is busy; all ranks ask before each, so that they agree on how many there are."""
    while True:
        # Ranks finish backward at different times; if each stopped by itself, the others would wait in the next
        # collective.
        asked = torch.tensor([int(busy.is_set())], device=ranks.device)
        guarded(partial(dist.all_reduce, asked, op=dist.ReduceOp.MAX))
        if not int(asked):
            return
        running.set()
        collective()
        if ranks.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
