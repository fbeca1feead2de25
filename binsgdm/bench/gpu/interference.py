"""Time backward beside communication: NCCL's collectives where there are two cards, else copies that stand for them."""

import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from binsgdm.bench.gpu.models import autocast, refusal
from binsgdm.bench.interference import add_pair, backwards, beside_collectives
from binsgdm.bench.record import Bench, Label
from binsgdm.bench.timing import trial_of
from binsgdm.recording.model_sources import build
from binsgdm.recording.model_zoo import Task

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


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add backward alone and beside communication, in bf16 autocast where the card has bf16.

    With two ranks and more, `interference.measure`'s collectives; with one, copies, labelled with their `share` of the
    card's copy bandwidth.
    """
    tasks, device = QUICK_TASKS if quick else TASKS, bench.ranks.device
    num_trials = len(tasks) * (1 + len(SHARES))
    bench = bench.within(seconds / num_trials / 2)
    precision = "fp32" if refusal("bf16", device) else "bf16"
    is_alone = bench.ranks.world_size == 1
    if is_alone:
        bench.record.note(STANDS_FOR)
        load = CopyLoad(device, QUICK_BUFFER_BYTES if quick else BUFFER_BYTES)
    for part, (model, batch) in bench.each(tasks):
        task = build(model, batch, device)
        forward = partial(_forward, task, precision, device)
        labels: dict[str, Label] = {"model": model, "batch": batch, "precision": precision}
        if not is_alone:
            beside_collectives(part, task.module, forward, labels)
            continue
        found = backwards(part, task.module, forward, {str(share): partial(load.repeat, share) for share in SHARES})
        for share in SHARES:
            add_pair(part, found, str(share), {**labels, "collective": "copy", "share": share})


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
        count = 0
        while busy.is_set():
            for _ in range(AHEAD):
                place = slice(count % places * chunk, (count % places + 1) * chunk)
                self._target[place].copy_(self._source[place])
                self._pause((1 - share) * PERIOD_S)
                count += 1
            if self._device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            running.set()

    def _pause(self, seconds: float) -> None:
        """Pause the stream, on a GPU by a kernel of one thread: a host that sleeps wakes too late."""
        if self._device.type == "cuda":
            _sleep(int(seconds * self._cycles_per_s))
        else:
            time.sleep(seconds)

    def _seconds(self, call: Callable[[], object]) -> float:
        trial = trial_of(call, self._device)
        return median([trial()[0] for _ in range(2 + 5)][2:])


def _sleep(cycles: int) -> None:
    """Keep one thread of the current stream busy."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
