"""Time backward alone and beside what repeats meanwhile, which shows how much communication slows compute.

With two ranks and more that is a collective, with one card copies inside its memory.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from binsgdm.bench import collectives
from binsgdm.bench.model import autocast, refusal
from binsgdm.bench.ranks import Ranks, guarded
from binsgdm.bench.record import Bench, Label
from binsgdm.bench.timing import Stopwatch, Trial, trial_of
from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_sources import build
from binsgdm.recording.model_zoo import Task

MAX_BUCKET_BYTES = 25 * 2**20
SIGNS_PER_BYTE = 8
# Works in a thread of its own until the first event is cleared; sets the second when it has begun.
Load = Callable[[threading.Event, threading.Event], None]
Forward = Callable[[], torch.Tensor]


def measure(bench: Bench, *, model: str, batch: int) -> None:
    """Add backward alone and backward overlapped by each of two collectives of all ranks, in turns.

    `all_reduce` carries fp32 gradients, at most 25 MiB; `all_to_all` one bit for each of them, by a transport.
    """
    task = build(model, batch, bench.ranks.device)
    _beside_collectives(bench, task.module, partial(task.loss_of, task.module), {"model": model, "batch": batch})


def _beside_collectives(bench: Bench, module: torch.nn.Module, forward: Forward, labels: Mapping[str, Label]) -> None:
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
    of_loads = {
        name: {**labels, "collective": name, "message_bytes": message_bytes}
        for name, (_, message_bytes) in calls.items()
    }
    add_backwards(bench, module, forward, loads, of_loads)


def add_backwards(
    bench: Bench,
    module: torch.nn.Module,
    forward: Forward,
    loads: Mapping[str, Load],
    labels: Mapping[str, Mapping[str, Label]],
) -> None:
    """Add backward alone and beside each load, in turns, with the labels of that load."""
    trials = {name: _backward(module, forward, bench.ranks, load) for name, load in {"": None, **loads}.items()}
    times = {name: [row[0] for row in rows] for name, rows in bench.interleave(trials).items()}
    for name in loads:
        bench.record.add("interference", "backward_alone", times[""], **labels[name])
        bench.record.add("interference", "backward_beside", times[name], **labels[name])


def _backward(module: torch.nn.Module, forward: Forward, ranks: Ranks, load: Load | None) -> Trial:
    """Return a trial: backward, alone or beside a load."""
    watch = Stopwatch(ranks.device)

    def trial() -> list[float]:
        module.zero_grad(set_to_none=True)
        loss = forward()
        with _overlapped(load, ranks.device) if load else nullcontext():
            start = watch.stamp()
            loss.backward()  # type: ignore[no-untyped-call]
            return watch.since(start, [watch.stamp()])

    return trial


@contextmanager
def _overlapped(load: Load, device: torch.device) -> Iterator[None]:
    """Let a load work in a thread, on a stream of its own."""
    busy, running, failures = threading.Event(), threading.Event(), list[BaseException]()
    busy.set()

    def work() -> None:
        try:
            with ExitStack() as stack:
                if device.type == "cuda":  # a new thread begins with the first GPU as its current one
                    stack.enter_context(torch.cuda.device(device))
                    stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))  # type: ignore[no-untyped-call]
                load(busy, running)
        except BaseException as error:  # handed to the thread that waits below
            failures.append(error)
            running.set()

    # Nobody waits at the end for one that waits for a rank that is gone.
    thread = threading.Thread(target=work, name="binsgdm-overlapped", daemon=True)
    thread.start()
    running.wait()  # backward beside nothing yet would be the other trial
    try:
        yield
    finally:
        busy.clear()
        thread.join()
    if failures:
        raise failures[0]


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


TASKS = (("transformer_25m", 128), ("cnn_6m", 256))  # model and batch
QUICK_TASKS = (("mlp_200k", 8),)
SHARES = (0.05, 0.15, 0.4)
PERIOD_S = 200e-6  # a copy and the pause behind it
AHEAD = 8  # copies that are given to the GPU at a time
BUFFER_BYTES, QUICK_BUFFER_BYTES = 2**29, 2**22  # larger than any cache
SLEEP_CYCLES = 2_000_000
STANDS_FOR = (
    "one card has no NCCL: device-to-device copies on a stream of their own stand for its kernels. They "
    "take 5, 15 and 40 % of the card's own copy bandwidth: about what the buffers of a 400 Gbit/s NIC take of an "
    "H100's memory, and a third and all of its NVLink. Copies come in bursts on all multiprocessors; NCCL's kernels "
    "hold a few of them all the time."
)


def measure_cards(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add backward alone and beside communication, in bf16 autocast where the card has bf16.

    With two ranks and more, beside the collectives of `measure`; with one, beside copies, labelled with their `share`
    of the card's copy bandwidth.
    """
    tasks, device = QUICK_TASKS if quick else TASKS, bench.ranks.device
    bench = bench.within(seconds / len(tasks) / (1 + len(SHARES)) / 2)
    precision = "fp32" if refusal("bf16", device) else "bf16"
    is_alone = bench.ranks.world_size == 1
    if is_alone:
        bench.record.note(STANDS_FOR)
        copies = CopyLoad(device, QUICK_BUFFER_BYTES if quick else BUFFER_BYTES)
    for part, (model, batch) in bench.each(tasks):
        task = build(model, batch, device)
        labels: dict[str, Label] = {"model": model, "batch": batch, "precision": precision}
        forward = partial(_forward, task, precision, device)
        if is_alone:
            loads = {str(share): partial(copies.repeat, share) for share in SHARES}
            of_loads = {str(share): {**labels, "collective": "copy", "share": share} for share in SHARES}
            add_backwards(part, task.module, forward, loads, of_loads)
        else:
            _beside_collectives(part, task.module, forward, labels)


def _forward(task: Task, precision: str, device: torch.device) -> torch.Tensor:
    with autocast(precision, device):
        return task.loss_of(task.module)


class CopyLoad:
    """Copies inside a device's memory that take a share of what its copies reach alone."""

    def __init__(self, device: torch.device, buffer_bytes: int) -> None:
        self._device = device
        self._source, self._target = (torch.zeros(buffer_bytes, dtype=torch.uint8, device=device) for _ in range(2))
        self._copied_per_s = buffer_bytes / self._seconds(lambda: self._target.copy_(self._source))
        self._cycles_per_s = 0.0
        if device.type == "cuda":
            self._cycles_per_s = SLEEP_CYCLES / self._seconds(lambda: _sleep(SLEEP_CYCLES))

    def repeat(self, share: float, busy: threading.Event, running: threading.Event) -> None:
        """Copy on the current stream until the first event is cleared; set the second when copies run."""
        chunk = min(self._source.numel(), max(1, int(self._copied_per_s * share * PERIOD_S)))
        places = self._source.numel() // chunk
        pause_s = (1 - share) * PERIOD_S
        count = 0
        while busy.is_set():
            for _ in range(AHEAD):
                place = slice(count % places * chunk, (count % places + 1) * chunk)
                self._target[place].copy_(self._source[place])
                if self._device.type == "cuda":  # a kernel of one thread: a host that sleeps wakes too late
                    _sleep(int(pause_s * self._cycles_per_s))
                else:
                    time.sleep(pause_s)
                count += 1
            if self._device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            running.set()

    def _seconds(self, call: Callable[[], object]) -> float:
        trial = trial_of(call, self._device)
        return median([trial()[0] for _ in range(2 + 5)][2:])  # the first two warm up


def _sleep(cycles: int) -> None:
    """Keep one thread of the current stream busy."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
