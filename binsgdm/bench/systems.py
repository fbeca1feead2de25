"""Time what a rank computes for each compressing system: before its first message, between messages, after the last."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from binsgdm.bench import choices, one_bit_adam
from binsgdm.bench.choices import SystemChoice, without_topology
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench, Label
from binsgdm.bench.stream_timing import LAUNCH
from binsgdm.bench.timing import Stopwatch, Trial, interleave, pause_s
from binsgdm.comm import Protocol, RankContext
from binsgdm.comm.messages import fake_received
from binsgdm.comm.thread import CommunicationThread
from binsgdm.compressors.base import Averager, Cut, GradientBucket, Shapes
from binsgdm.compressors.error_feedback import ErrorFeedback, WithoutFeedback
from binsgdm.compressors.pieces import Pieces
from binsgdm.compressors.registry import make
from binsgdm.compressors.scatter_reduce import ScatterReduce
from binsgdm.optimizers.one_bit_adam_cpu import is_used_on

CPU = torch.device("cpu")
MAX_NUMEL, MAX_GPU_NUMEL = 2**24, 2**28
ASSUMED_SIZE = 4  # ranks (or nodes) whose payloads are decoded where one process measures alone
MANY_VECTORS = 4  # times as many vectors in a second merge, from which the time of an element of its result follows
MIN_NUM_SIZES = 3  # enough to fit a launch and a time per element
PARTS = ("encode", "merge", "decode")


def measure(
    bench: Bench,
    *,
    systems: Sequence[SystemChoice],
    min_numel: int,
    max_numel: int | None = None,
) -> None:
    """Add the kernels NAME_encode, NAME_merge and NAME_decode of every system at every power of two of elements.

    No message travels: each rank computes as if all ranks had sent what it sends. All ranks measure at the same time.
    Without `max_numel`, the sizes of a system end early: after `MIN_NUM_SIZES` sizes or more, at the first size whose
    `min_repetitions` take longer than `max_seconds`.

    In a hierarchical topology the kernels are those of the exchange between nodes; what a node does before and after
    it (the mean, pieces cut and joined) is timed with BinSGDM's kernels, which do the same.

    Args:
        bench: where to, who takes part, and when to stop, for each size; what is exchanged is decoded for as many
            ranks (or nodes, in a hierarchical topology), or for `ASSUMED_SIZE`.
        systems: with their options.
        min_numel: the smallest size.
        max_numel: the largest; default `MAX_NUMEL`, on a GPU `MAX_GPU_NUMEL`. What does not fit into a GPU's memory is
            left out with a note.
    """
    ranks, stop_rule = bench.ranks, bench.stop_rule
    systems = [one.on(ranks.ranks_per_node) for one in systems]
    largest = max_numel or (MAX_GPU_NUMEL if ranks.device.type == "cuda" else MAX_NUMEL)
    numels = [2**power for power in range(1, 40) if min_numel <= 2**power <= largest]
    timing = {"timing": LAUNCH} if ranks.device.type == "cuda" else {}
    for count, system in enumerate(systems):
        sizes = _group_sizes(system, ranks)
        options = {key: value for key, value in system.steady.items() if value is not None}
        made_with = "cpu" if system.name == choices.ONE_BIT_ADAM and is_used_on(ranks.device) else "torch"
        common: dict[str, Label] = {"dtype": "float32", "kernels": made_with}
        for done, numel in enumerate(numels, 1):
            try:
                found = {size: _kernels_and_trial(system, numel, size, ranks.device) for size in sizes}
                trials = {size: trial for size, (_, trial) in found.items()}
                rows = interleave(trials, stop_rule, ranks, pause_s=pause_s(ranks.device))
                parts = {size: names for size, (names, _) in found.items()}
                del trials, found  # with their tensors, before those of the next size are made
            except torch.cuda.OutOfMemoryError:
                bench.record.note(f"{system.name}: {numel:,} elements and more do not fit into the memory: left out")
                break
            for size in sizes:
                for column, (name, elements) in enumerate(parts[size].items(), 1):
                    times = [row[column] for row in rows[size]]
                    if all(time > 0 for time in times) and (name.endswith("_merge") or size == sizes[0]):
                        labels = {**common, **elements, **timing, "world_size": size, "options": options}
                        bench.record.add("kernel", name, times, **labels)
            bench.progress((count + done / len(numels)) / len(systems))
            bench.probe()
            taken_s = sum(median(row[0] for row in rows[size]) for size in sizes)
            slow = taken_s * stop_rule.min_repetitions > stop_rule.max_seconds
            if slow and max_numel is None and done >= MIN_NUM_SIZES and numel < largest:
                bench.record.note(f"{system.name}: more than {numel:,} elements take too long: left out")
                break


def _group_sizes(system: SystemChoice, ranks: Ranks) -> list[int]:
    """Return among how many the payloads go: all ranks, or the nodes where a node averages first.

    A merge is timed with two numbers of vectors where none is given by the ranks that measure.
    """
    known = ranks.num_nodes if system.is_hierarchical else ranks.world_size
    if known > 1:
        return [known]
    return [ASSUMED_SIZE, MANY_VECTORS * ASSUMED_SIZE] if system.is_scatter_reduce else [ASSUMED_SIZE]


# Kernels in the order in which a trial times them, each with its number of elements (and of vectors).
Parts = Mapping[str, Mapping[str, int]]


def _kernels_and_trial(system: SystemChoice, numel: int, size: int, device: torch.device) -> tuple[Parts, Trial]:
    if system.name == choices.ONE_BIT_ADAM:
        return one_bit_adam.parts(numel, size), one_bit_adam.trial(numel, size, device)
    shape = _matrix(numel, size if system.is_scatter_reduce else 1)
    return _parts(system, shape, size), _trial(system, shape, size, device)


def _matrix(numel: int, num_pieces: int) -> tuple[int, int]:
    """Return a matrix of about so many elements, whose columns can be cut into so many equal pieces."""
    rows = 2 ** (int(math.log2(numel)) // 2)
    return rows, max(1, numel // rows // num_pieces) * num_pieces


def _end(system: SystemChoice, size: int, options: Mapping[str, Any]) -> Averager:
    """Return the first end among `size`: ranks, or nodes where a node averages first."""
    topology: Any = system.topology_among_equals
    return make(system.name, rank=0, world_size=size, topology=topology, **options)


def _parts(system: SystemChoice, shape: tuple[int, int], size: int) -> Parts:
    """Return how many elements each kernel works on: those of every payload, where several are decoded."""
    name, whole = system.name, {"num_elements": math.prod(shape)}
    merge = decode = whole
    end = _end(system, size, without_topology(system.given))
    if isinstance(end, ScatterReduce):
        piece = math.prod(shape) // size
        merge = {"num_elements": piece, "num_vectors": size}
        decode = {"num_elements": size * end.compressor.num_sent(((piece,),))}
    elif system.is_gathered:
        decoded = end.compressor.num_sent((shape,)) if isinstance(end, WithoutFeedback | ErrorFeedback) else None
        decode = {"num_elements": decoded or math.prod(shape), "num_vectors": size}
    return {f"{name}_encode": whole, f"{name}_merge": merge, f"{name}_decode": decode}


def _trial(system: SystemChoice, shape: tuple[int, int], size: int, device: torch.device) -> Trial:
    """Return a trial: all computation, then encode, merge and decode.

    As in DDP's hook, each exchange has a thread of its own, gradients are first copied out of DDP's bucket, and the
    result is copied back in the end.
    """
    gradient = torch.randn(shape, device=device)
    end = _end(system, size, without_topology(system.steady))
    context = RankContext(rank=0, world_size=size, ranks_per_node=1, seed=1, step=1)
    steps = itertools.count(1)
    watch = Stopwatch(device)
    marks: dict[str, tuple[Any, Any]] = {}
    if isinstance(end, ScatterReduce):
        end.pieces = partial(_TimedPieces, watch, marks)

    def exchange() -> Protocol:
        values = torch.cat([gradient.reshape(-1)])
        bucket = GradientBucket(values=values, parameters=(0,), shapes=(shape,))
        mean = yield from end.mean(bucket, replace(context, step=next(steps)))
        return gradient.view(-1).copy_(mean)

    def trial() -> Sequence[float]:
        first, *between, last = in_thread(lambda: _compute_seconds(exchange(), context, watch), device)
        middle = sum(between)
        if system.is_gathered:  # what is done between a gather of lengths and that of payloads
            first, middle = first + middle, 0.0
        copied = {name: watch.since(start, [end])[0] for name, (start, end) in marks.items()}
        first, last = first - copied.get("split", 0.0), last - copied.get("join", 0.0)
        return first + middle + last, first, middle, last

    return trial


class _TimedPieces(Pieces):
    """Pieces that note begin and end of the last cut and of the last joining: copies, which are no part of a kernel.

    They are simulated as kernels of their own, which take what BinSGDM's copies of gradients take.
    """

    def __init__(self, watch: Stopwatch, marks: dict[str, tuple[Any, Any]], shapes: Shapes, count: int, cut: Cut):
        super().__init__(shapes, count, cut)
        self._watch, self._marks = watch, marks

    def split(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the pieces."""
        start = self._watch.stamp()
        found = super().split(values)
        self._marks["split"] = start, self._watch.stamp()
        return found

    def join(self, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the whole."""
        start = self._watch.stamp()
        found = super().join(pieces)
        self._marks["join"] = start, self._watch.stamp()
        return found


@torch.no_grad()
def _compute_seconds(protocol: Protocol, context: RankContext, watch: Stopwatch) -> list[float]:
    """Return the seconds between messages; what is received is made outside of them."""
    answer: torch.Tensor | None = None
    parts: list[float] = []
    while True:
        start = watch.stamp()
        try:
            message = protocol.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            return [*parts, *watch.since(start, [watch.stamp()])]
        parts += watch.since(start, [watch.stamp()])
        answer = fake_received(message, context)


def in_thread(work: Callable[[], list[float]], device: torch.device = CPU) -> list[float]:
    """Return what `work` returns in a thread of its own, whose memory is another than that of the first thread."""
    found: list[float] = []

    def run(_: None) -> None:
        # A new thread begins with the first GPU as the current one.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            found.extend(work())

    thread = CommunicationThread[None]("binsgdm-measure", CPU, run)
    thread.submit(None)
    thread.finish()
    return found
