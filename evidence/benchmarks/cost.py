"""Time and memory of a step of every optimizer and system.

    python -m evidence.benchmarks.cost [-o docs/evidence/binsgdm.md]

Each contestant is a process of its own, rank 0 of four, whose messages are answered at once as if all ranks had sent
the same: what is left is the work of one rank. A contestant takes turns with the two that it is compared with, so that
a busy machine slows all of them down alike, and each turn gives a ratio. The limit of a ratio is what a step's
least bytes take in a loop over memory.
"""

import argparse
import csv
import ctypes
import gc
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch._dynamo  # which every optimizer imports when it is made

from binsgdm.bench import choices
from binsgdm.comm import AllToAll, Member, Message, Protocol, RankContext
from binsgdm.comm.messages import fake_received, run_with
from binsgdm.compressors.base import GradientBucket, numel_of
from binsgdm.compressors.registry import make
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from evidence.studies import page
from simnet.report.table import Table

Step = Callable[[], object]
RANKS = 4  # 2 x 2 has a node mean and a merge; more ranks only lengthen the merge
BUCKET_BYTES = 25 * 2**20  # DDP's, and BinSGDM's


class Size(NamedTuple):
    """A model: an embedding and layers of a transformer."""

    width: int
    layers: int
    vocabulary: int

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of its tensors."""
        w = self.width
        layer = [(3 * w, w), (3 * w,), (w, w), (w,), (4 * w, w), (4 * w,), (w, 4 * w), (w,), *[(w,)] * 4]
        return [(self.vocabulary, w), *layer * self.layers]


SIZES = {"1 M": Size(128, 4, 2048), "25 M": Size(512, 6, 12_000), "100 M": Size(768, 12, 20_000)}


class Messages:
    """Answers of other ranks, in memory as real ones take it; the time that making them takes is no part of a step."""

    def __init__(self) -> None:
        self.taken_s = 0.0
        self._kept = torch.empty(0, dtype=torch.uint8)

    def run(self, ranks_per_node: int, protocol: Protocol) -> torch.Tensor:
        context = RankContext(rank=0, world_size=RANKS, ranks_per_node=ranks_per_node, seed=0, step=1)
        return run_with(protocol, lambda message: self._timed(message, context))

    def _timed(self, message: Message, context: RankContext) -> torch.Tensor:
        start = time.perf_counter()
        if isinstance(message, AllToAll):
            # Kept from one to the next, as `Transport` keeps it.
            num_bytes = message.sent.numel() * message.sent.element_size()
            if self._kept.numel() < num_bytes:
                self._kept = torch.empty(num_bytes, dtype=torch.uint8)
            received = self._kept[:num_bytes].view(message.sent.dtype).view(message.sent.shape)
            answer = received.copy_(message.sent)
        else:
            answer = fake_received(message, context)
        self.taken_s += time.perf_counter() - start
        return answer


class Model:
    """Parameters with gradients that are written anew before each step, as by backward."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        torch.manual_seed(0)
        self.messages = Messages()
        self.parameters = [torch.nn.Parameter(torch.randn(shape).mul_(0.02)) for shape in shapes]
        self._fresh = [torch.randn(shape).mul_(0.01) for shape in shapes]
        # As in DDP, whose gradients are views of its buckets: from the last parameter on.
        self.buckets: list[tuple[torch.Tensor, list[int]]] = []
        for numbers in _cut([4 * parameter.numel() for parameter in self.parameters]):
            of_bucket = [self.parameters[number] for number in numbers]
            sizes = [parameter.numel() for parameter in of_bucket]
            flat = torch.empty(sum(sizes))
            for parameter, view in zip(of_bucket, flat.split(sizes), strict=True):
                parameter.grad = view.view_as(parameter)
            self.buckets.append((flat, numbers))
        self.refresh()

    @property
    def numel(self) -> int:
        """Elements of all parameters."""
        return sum(parameter.numel() for parameter in self.parameters)

    def refresh(self) -> None:
        """Write the gradients."""
        torch._foreach_copy_([parameter.grad for parameter in self.parameters], self._fresh)


def _cut(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of the tensors of each bucket, from the last tensor on."""
    numbers: list[int] = []
    for number in reversed(range(len(sizes))):
        if numbers and sum(sizes[n] for n in numbers) + sizes[number] > BUCKET_BYTES:
            yield numbers
            numbers = []
        numbers.append(number)
    yield numbers


def _adamw(model: Model) -> Step:
    return torch.optim.AdamW(model.parameters, fused=True).step


def _binsgdm(model: Model, ranks_per_node: int = 0, options: Mapping[str, Any] = {}, **scheme: Any) -> Step:
    optimizer = BinSGDM(model.parameters, **options)
    if ranks_per_node:
        run = partial(model.messages.run, ranks_per_node)
        member = Member(rank=0, world_size=RANKS, ranks_per_node=ranks_per_node, run=run)
        optimizer.join(Session(member, Scheme(**scheme), BUCKET_BYTES // 4))
    return optimizer.step


def _one_bit_adam(model: Model, *, is_dense: bool, is_alone: bool = False) -> Step:
    optimizer = OneBitAdam(model.parameters, dense_steps=10**6 if is_dense else 1)
    if not is_alone:
        optimizer.join(Member(rank=0, world_size=RANKS, run=partial(model.messages.run, 1)))
    if not is_dense:
        optimizer.step()
    return optimizer.step


def _ddp(model: Model) -> Step:
    """Return what a rank does in DDP's mean in fp32: it divides a bucket, and adds what a ring brings it."""
    received = [torch.zeros(flat.numel() // RANKS) for flat, _ in model.buckets]

    def step() -> None:
        for (flat, _), piece in zip(model.buckets, received, strict=True):
            flat.div_(RANKS)
            for first in range(piece.numel(), RANKS * piece.numel(), piece.numel()):
                flat[first : first + piece.numel()].add_(piece)

    return step


def _system(model: Model, name: str) -> Step:
    """Return a step of DDP's hook: every bucket is copied, averaged and copied back."""
    options = choices.choice(name, "cost").steady
    end = make(name, rank=0, world_size=RANKS, **options)
    step = 0

    def step_once() -> None:
        nonlocal step
        step += 1
        for place, (flat, parameters) in enumerate(model.buckets):
            context = RankContext(rank=0, world_size=RANKS, ranks_per_node=1, seed=0, step=step, bucket=place)
            shapes = tuple(tuple(model.parameters[number].shape) for number in parameters)
            bucket = GradientBucket(values=flat.clone(), parameters=tuple(parameters), shapes=shapes)
            with torch.no_grad():
                flat.copy_(model.messages.run(1, end.mean(bucket, context)))

    return step_once


def _stream(model: Model) -> Step:
    """Return what reads and writes as many bytes as AdamW, in place: what memory has to give."""
    values = torch.ones(model.numel * ADAMW_BYTES // 8)
    return values.neg_


ADAMW, DDP, STREAM = "AdamW, fused", "DDP, mean in fp32", "memory"
RANDOM = {"rounding": "random"}
OPTIMIZERS: dict[str, Callable[[Model], Step]] = {
    ADAMW: _adamw,
    "BinSGDM, alone": _binsgdm,
    "BinSGDM, random, alone": partial(_binsgdm, options=RANDOM),
    "BinSGDM, flat": partial(_binsgdm, ranks_per_node=1, topology="flat"),
    "BinSGDM, random, flat": partial(_binsgdm, ranks_per_node=1, topology="flat", options=RANDOM),
    "BinSGDM, 2 x 2": partial(_binsgdm, ranks_per_node=2),
    "BinSGDM, random, 2 x 2": partial(_binsgdm, ranks_per_node=2, options=RANDOM),
    "BinSGDM, 2 x 2, average gradients": partial(_binsgdm, ranks_per_node=2, average="gradients"),
    "1-bit Adam, dense stage, alone": partial(_one_bit_adam, is_dense=True, is_alone=True),
    "1-bit Adam, compression stage, alone": partial(_one_bit_adam, is_dense=False, is_alone=True),
    "1-bit Adam, dense stage": partial(_one_bit_adam, is_dense=True),
    "1-bit Adam, compression stage": partial(_one_bit_adam, is_dense=False),
}

ADAMW_BYTES = 28  # an element: read gradient, m, v and x; write m, v and x
_SHAPED, _RANDOM = 24.125, 20.125  # update and round: gradient, m, b, signs; shaped, a residual of 16 bits as well
_APPLY = 8.125  # read signs and x, write x
_MERGE = (1 + 1 / RANKS) / 8  # read a bit of every rank, write one of this rank's share
_MERGE_LEFT = 4 / RANKS  # read and write the share's residual of 16 bits
_IN, _OUT, _LEFT = 4.0, 4.0, 8.0  # read gradients, write the mean, read and write a residual
LEAST_BYTES: dict[str, float] = {
    ADAMW: ADAMW_BYTES,
    "BinSGDM, alone": _SHAPED + _APPLY,
    "BinSGDM, random, alone": _RANDOM + _APPLY,
    "BinSGDM, flat": _SHAPED + _MERGE + _MERGE_LEFT + _APPLY,
    "BinSGDM, random, flat": _RANDOM + _MERGE + _APPLY,
    # In a node: write u, of which two halves are averaged to one, which is rounded.
    "BinSGDM, 2 x 2": 24 + 6 + (8 + _MERGE_LEFT) / 2 + _APPLY,
    "BinSGDM, random, 2 x 2": 24 + 6 + 4 / 2 + _APPLY,
    "BinSGDM, 2 x 2, average gradients": 6 + (_SHAPED + _MERGE_LEFT) / 2 + _APPLY,
    # All gradients are looked at before anything moves.
    "1-bit Adam, dense stage, alone": _IN + ADAMW_BYTES,
    "1-bit Adam, dense stage": ADAMW_BYTES + 12,  # a copy that is averaged
    # Gradient, m and residual become signs; what was sent leaves the residual; m, v and x.
    # Where there are other ranks, the mean is encoded once more by its owner.
    "1-bit Adam, compression stage, alone": _IN + 16 + 8 + 16,
    "1-bit Adam, compression stage": _IN + 16 + 8 + 16 / RANKS + 16,
    # What a ring brings is added to three quarters, of which one is divided.
    DDP: 2 * _IN * 3 / 4 + _OUT + 2 * 4 / RANKS,
    # A scale first: a second look at gradients and residuals, unless they are few enough for the caches.
    "one_bit_sgd": _IN + 4 + _IN + _LEFT + _OUT + (RANKS + 1) / 8,
    "sign_sgd": _IN + _OUT + 2 / 8 + 2 / 8,
    "ef_sign_sgd": _IN + 4 + _IN + _LEFT + _OUT + (RANKS + 1) / 8,
    "terngrad": 2 * _IN + _OUT + (RANKS + 1) / 5,
    "qsgd": _IN + _OUT + (RANKS + 1) / 2,
    "qsgd_inf": _IN + _OUT + (RANKS + 1) / 2,
    "nuqsgd": _IN + _OUT + (RANKS + 1) / 2,
    "byte_grad": _IN + _OUT + 3 + 1 / RANKS,
    "marsit": _IN + 4 + _IN + _LEFT + _OUT + 4 / 8,
    # Corrected gradients are written, read for P and for Q, and become residuals.
    "power_sgd": _IN + 4 + 4 + 4 + _LEFT + _OUT,
    "grad_zip": _IN + 4 + 4 + _LEFT + _OUT,
    "atomo": _IN + _OUT,  # a decomposition computes more than it moves
    "top_k": _IN + _LEFT + _OUT,
    "ms_top_k": _IN + _LEFT + 31 * 4 + _OUT,  # 31 counts
    "random_k": _IN + _LEFT + _OUT,
}
"""Bytes an element that a step has to read and write at least by its definition, if every pass does all it can."""
SYSTEMS = [name for name in LEAST_BYTES if name not in OPTIMIZERS]
"""DDP, and the systems whose rows are committed: one that binsgdm gets later joins by its bytes and a run."""


def contestant(name: str) -> Callable[[Model], Step]:
    return {DDP: _ddp, STREAM: _stream, **OPTIMIZERS}.get(name) or partial(_system, name=name)


if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LARGEST_OF_SYSTEMS = "1 M"  # some take seconds a step at 25 M
TURN_S = 0.05  # at least, and at least one step
TURNS, LONG_TURNS, LONG_S = 7, 3, 1.0  # fewer of steps that take longer
DATA = "data/cost.csv"
REGION = "cost"
HOOK = "hook of "
"""Begins the names of rows that were measured once, on two ranks of gloo under DDP, and stay as they are."""


# One process a contestant.


def serve(requests: "Connection", name: str, size: str) -> None:
    """Send the bytes a parameter that a contestant takes at its peak; then, for each number of threads, of a turn."""
    made = contestant(name)
    torch.set_num_threads(1)
    small = Model(SIZES["1 M"].shapes()[1:13])
    step = made(small)
    for _ in range(2):  # compiles, and loads what is loaded once
        step()
    del small, step
    model = Model(SIZES[size].shapes())
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # free memory of this process would be taken without being seen
    before_kib = _kib("VmRSS")
    _forget_peak()
    step = made(model)
    if "compression" in name:
        _forget_peak()  # that of the dense step before
    for _ in range(2):
        model.refresh()
        step()
    requests.send((_kib("VmHWM") - before_kib) * 1024 / model.numel)
    while threads := requests.recv():
        torch.set_num_threads(threads)
        # The first step is not among the times, unless it is long.
        start, times = time.perf_counter(), list[float]()
        while not times or time.perf_counter() - start < TURN_S:
            model.refresh()
            begin, messages_s = time.perf_counter(), model.messages.taken_s
            step()
            times.append(time.perf_counter() - begin - (model.messages.taken_s - messages_s))
        requests.send(statistics.median(times[1:] or times))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


class Process:
    """A process that measures, forked from this one, which has loaded torch and uses no thread."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        forked = multiprocessing.get_context("fork")
        requests, other = forked.Pipe()
        self.send, self.received = requests.send, requests.recv
        self._process = forked.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()  # so that the end of the process ends what waits for it

    def turn(self, threads: int) -> float:
        """Return the seconds of a step."""
        self.send(threads)
        return float(self.received())

    def end(self) -> None:
        self.send(0)
        self._process.join()


# The tables.


class Cost(NamedTuple):
    """What was measured of a contestant.

    Attributes:
        peak_bytes: a parameter, beyond parameters and gradients.
        times_s: of a step, in each turn, by number of threads.
        adamw_s: of AdamW in the same turns.
        ddp_s: of DDP's mean in fp32 in the same turns.
        limits: least time of a step over AdamW's, by number of threads.
    """

    name: str
    peak_bytes: float
    times_s: Mapping[int, Sequence[float]]
    adamw_s: Mapping[int, Sequence[float]]
    ddp_s: Mapping[int, Sequence[float]]
    limits: Mapping[int, float]


class How(NamedTuple):
    """How to measure: with which numbers of threads, in how many turns."""

    threads: Sequence[int] = (1, 2)
    turns: int = TURNS


def measure(size: str, names: Sequence[str], how: How) -> Iterator[Cost]:
    """Yield what each contestant costs."""
    references = {name: Process(serve, name, size) for name in (ADAMW, DDP)}
    stream = Process(serve, STREAM, size)
    stream.received()
    least = {}  # what memory takes for AdamW's bytes, over AdamW's time
    for number in how.threads:
        turns = [stream.turn(number) / references[ADAMW].turn(number) for _ in range(how.turns + 1)]
        least[number] = statistics.median(turns[1:])
    stream.end()
    peaks = {name: process.received() for name, process in references.items()}
    for name in names:
        process = references.get(name) or Process(serve, name, size)
        peak_bytes = peaks.get(name) or process.received()
        samples: dict[str, dict[int, list[float]]] = {which: {n: [] for n in how.threads} for which in (ADAMW, DDP, "")}
        for number in how.threads:
            process.turn(number)  # another number of threads than before
            for _ in range(how.turns):
                step_s = process.turn(number)
                samples[""][number].append(step_s)
                for reference, other in references.items():
                    samples[reference][number].append(step_s if other is process else other.turn(number))
                if step_s > LONG_S and len(samples[""][number]) >= LONG_TURNS:
                    break
        yield Cost(
            name=name,
            peak_bytes=peak_bytes,
            times_s=samples[""],
            adamw_s=samples[ADAMW],
            ddp_s=samples[DDP],
            limits={number: LEAST_BYTES[name] / ADAMW_BYTES * part for number, part in least.items()},
        )
        if name not in references:
            process.end()
    for reference in references.values():
        reference.end()


def header(threads: Sequence[int]) -> list[str]:
    """Return the heads of the columns."""
    texts = ["1 thread" if number == 1 else f"{number} threads" for number in threads]
    ratios = [f"{what}, {text}" for what in ("of AdamW", "its limit", "of DDP's mean") for text in texts]
    others = "of DDP and AdamW", "bytes moved at least", "peak bytes a parameter"
    return ["model", "", "ms a step, 1 thread", *ratios, *others]


def row(size: str, cost: Cost) -> list[str]:
    of_adamw, of_ddp = ([_ratio(cost.times_s[n], of[n]) for n in cost.times_s] for of in (cost.adamw_s, cost.ddp_s))
    ratios = [*of_adamw, *(_short(cost.limits[n]) for n in cost.times_s), *of_ddp]
    first = next(iter(cost.times_s.values()))
    least, peak = f"{LEAST_BYTES[cost.name]:.1f}", f"{cost.peak_bytes:.1f}"
    return [size, cost.name, f"{statistics.median(first) * 1e3:.3g}", *ratios, "", least, peak]


def _ratio(times: Sequence[float], of: Sequence[float]) -> str:
    """Return the median ratio of all turns, and that of the first and third quarter."""
    ratios = [time_s / other for time_s, other in zip(times, of, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return f"{_short(middle)} ({_short(low)}-{_short(high)})"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def names_of(size: str) -> list[str]:
    """Return who is measured with a model."""
    return [*OPTIMIZERS, *(SYSTEMS if list(SIZES).index(size) <= list(SIZES).index(LARGEST_OF_SYSTEMS) else [])]


def about(sizes: Sequence[str], how: How) -> str:
    """Return where and how it was measured, and the models."""
    where = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
    shapes = {size: SIZES[size].shapes() for size in sizes}
    models = (f"{size}: {numel_of(of):,} parameters in {len(of)} tensors" for size, of in shapes.items())
    turns = f"{how.turns} turns, {LONG_TURNS} where a step takes more than {LONG_S:g} s"
    return f"{where}; wall clock, {turns}. {'; '.join(models)}."


def rows(sizes: Sequence[str], names: Sequence[str], how: How) -> Iterator[list[str]]:
    for size in sizes:
        for cost in measure(size, [name for name in names_of(size) if not names or name in names], how):
            yield row(size, cost)


def on_page(where: str, table: Table) -> str:
    """Return what stands between the marks of the page: how it was measured, and where all rows are."""
    return f"{where}\n[All {len(table.rows)} rows]({DATA})."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--only", nargs="+", default=[], choices=[*OPTIMIZERS, *SYSTEMS], metavar="NAME")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("-o", "--output", type=Path, help="a page; the tables go between its two marks")
    options = parser.parse_args()
    how = How(options.threads, options.turns)
    where, measured = about(options.sizes, how), []
    print(where)
    for cells in rows(options.sizes, options.only, how):
        print(*cells, sep=" | ", flush=True)
        measured.append(cells)
    if options.output:
        path = options.output.parent / DATA
        with path.open(encoding="utf-8", newline="") as file:
            hooks = [cells for cells in csv.reader(file) if cells[1].startswith(HOOK)]
        table = Table(header(options.threads), [*measured, *hooks])
        path.write_text(table.csv(), encoding="utf-8")
        page.write(options.output, {REGION: on_page(where, table)})


if __name__ == "__main__":
    main()
