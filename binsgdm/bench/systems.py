"""Time what a rank computes for each compressing system: before its first message, between messages, after the last.

Of 1-bit Adam's compression stage every kernel is timed.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from binsgdm.bench import choices
from binsgdm.bench.choices import SystemChoice, without_topology
from binsgdm.bench.kernel_bytes import OF_ONE_BIT_ADAM, bytes_per_element
from binsgdm.bench.model import LR
from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Bench
from binsgdm.bench.timing import LAUNCH, Stopwatch, Trial, interleave, pause_s
from binsgdm.comm import Protocol, RankContext
from binsgdm.comm.messages import fake_received
from binsgdm.comm.thread import CommunicationThread
from binsgdm.compressors.base import Cut, GradientBucket, Shapes
from binsgdm.compressors.compressor import CompressorAverager
from binsgdm.compressors.registry import make
from binsgdm.compressors.topologies import BETWEEN_NODES, Pieces, ScatterReduce
from binsgdm.kernels import host_loops
from binsgdm.optimizers.one_bit_adam import OneBitAdam, finite_check_flags
from binsgdm.optimizers.one_bit_adam_cpu import CpuPasses, is_used_on
from binsgdm.optimizers.one_bit_adam_plain import (
    FlatSlice,
    MomentumResiduals,
    PlainPasses,
    apply_average,
    decode,
    encode_and_keep,
    local_momenta,
    padded_numel,
)

CPU = torch.device("cpu")
MAX_NUMEL, MAX_GPU_NUMEL = 2**24, 2**28
ASSUMED_SIZE = 4  # ranks (or nodes) whose payloads are decoded where one process measures alone
MANY_VECTORS = 4  # times as many vectors in a second merge, from which the time of an element of its result follows
MIN_NUM_SIZES = 3  # enough to fit a launch and a time per element
PARTS = ("encode", "merge", "decode")
LEAST_SHARE = 0.01
"""Of a pass: what a kernel in it takes at least, where the difference of two times leaves nothing of it."""


def measure(bench: Bench, *, systems: Sequence[SystemChoice], min_numel: int, max_numel: int | None = None) -> None:
    """Add the kernels NAME_encode, NAME_merge and NAME_decode of every system at every power of two of elements.

    No message travels: each rank computes as if all ranks had sent what it sends, and decodes for as many ranks (or
    nodes, in a hierarchical topology) as measure, or for `ASSUMED_SIZE`. All ranks measure at the same time.
    In a hierarchical topology the kernels are those of the exchange between nodes; what a node does before and after
    it (the mean, pieces cut and joined) is timed with BinSGDM's kernels, which do the same.

    The largest size is by default `MAX_NUMEL`, on a GPU `MAX_GPU_NUMEL`; what does not fit into a GPU's memory is left
    out with a note. Then the sizes of a system end early: after `MIN_NUM_SIZES` or more, at the first whose
    `min_repetitions` take longer than `max_seconds`.
    """
    device, is_cuda = bench.ranks.device, bench.ranks.device.type == "cuda"
    largest = max_numel or (MAX_GPU_NUMEL if is_cuda else MAX_NUMEL)
    numels = [2**power for power in range(1, 40) if min_numel <= 2**power <= largest]
    for of_system, chosen in bench.each(systems):
        system = chosen.on(bench.ranks.ranks_per_node)
        sizes = _group_sizes(system, bench.ranks)
        is_compiled = is_used_on(device) if system.name == choices.ONE_BIT_ADAM else host_loops.is_used_on(device)
        options = {key: value for key, value in system.steady.items() if value is not None}
        timing = {"timing": LAUNCH} if is_cuda else {}
        for done, numel in enumerate(numels, 1):
            try:
                prepared = {size: _kernels_and_trial(system, numel, size, device) for size in sizes}
                trials = {size: trial for size, (_, trial) in prepared.items()}
                rows = interleave(trials, bench.stop_rule, bench.ranks, pause_s=pause_s(device))
                parts = {size: names for size, (names, _) in prepared.items()}
                del trials, prepared  # with their tensors, before those of the next size are made
            except torch.cuda.OutOfMemoryError:
                bench.record.note(f"{system.name}: {numel:,} elements and more do not fit into the memory: left out")
                break
            for size in sizes:
                for column, (name, elements) in enumerate(parts[size].items(), 1):
                    times = [row[column] for row in rows[size]]
                    # A part without work has no time; of a second size only the merge is wanted, to tell its launch
                    # from its vectors.
                    if all(time > 0 for time in times) and (name.endswith("_merge") or size == sizes[0]):
                        bench.record.add(
                            "kernel", name, times, dtype="float32", kernels="cpu" if is_compiled else "torch",
                            **elements, **timing, world_size=size, options=options,
                        )  # fmt: skip
            of_system.progress(done / len(numels))
            bench.probe()
            taken_s = sum(median(row[0] for row in rows[size]) for size in sizes)
            slow = taken_s * bench.stop_rule.min_repetitions > bench.stop_rule.max_seconds
            if slow and max_numel is None and done >= MIN_NUM_SIZES and numel < largest:
                bench.record.note(f"{system.name}: more than {numel:,} elements take too long: left out")
                break


def _group_sizes(system: SystemChoice, ranks: Ranks) -> list[int]:
    """Return among how many the payloads go: all ranks, or the nodes where a node averages first.

    A merge is timed with two numbers of vectors where none is given by the ranks that measure.
    """
    known = ranks.num_nodes if system.topology in BETWEEN_NODES else ranks.world_size
    if known > 1:
        return [known]
    return [ASSUMED_SIZE, MANY_VECTORS * ASSUMED_SIZE] if system.is_scatter_reduce else [ASSUMED_SIZE]


# Kernels in the order in which a trial times them, each with its number of elements (and of vectors).
Parts = Mapping[str, Mapping[str, int]]


def _kernels_and_trial(system: SystemChoice, numel: int, size: int, device: torch.device) -> tuple[Parts, Trial]:
    """Return a trial: all computation, then encode, merge and decode (of 1-bit Adam its kernels).

    The end is the first among `size`: ranks, or nodes where a node averages first. As in DDP's hook, each exchange has
    a thread of its own, gradients are first copied out of DDP's bucket, and the result is copied back in the end.
    """
    if system.name == choices.ONE_BIT_ADAM:
        return one_bit_adam_parts(numel, size), one_bit_adam_trial(numel, size, device)
    # A matrix of about so many elements, whose columns can be cut into so many equal pieces.
    rows, num_pieces = 2 ** (int(math.log2(numel)) // 2), size if system.is_scatter_reduce else 1
    shape = (rows, max(1, numel // rows // num_pieces) * num_pieces)
    topology: Any = system.topology_among_equals
    end = make(system.name, rank=0, world_size=size, topology=topology, **without_topology(system.steady))
    gradient = torch.randn(shape, device=device)
    context = RankContext(rank=0, world_size=size, ranks_per_node=1, seed=1, step=1)
    steps = itertools.count(1)
    watch = Stopwatch(device)
    marks: dict[str, tuple[Any, Any]] = {}
    is_gathered = system.topology_among_equals == "gather"  # every rank, or node, decodes the payloads of all
    # How many elements each kernel works on: those of every payload, where several are decoded.
    whole = {"num_elements": math.prod(shape)}
    merge = decode = whole
    if isinstance(end, ScatterReduce):
        end.pieces = partial(_timed_pieces, watch, marks)
        piece = math.prod(shape) // size
        merge = {"num_elements": piece, "num_vectors": size}
        decode = {"num_elements": size * end.compressor.num_sent(((piece,),))}
    elif is_gathered:
        decoded = end.compressor.num_sent((shape,)) if isinstance(end, CompressorAverager) else None
        decode = {"num_elements": decoded or math.prod(shape), "num_vectors": size}

    def exchange() -> Protocol:
        values = torch.cat([gradient.reshape(-1)])
        bucket = GradientBucket(values=values, parameters=(0,), shapes=(shape,))
        mean = yield from end.mean(bucket, replace(context, step=next(steps)))
        return gradient.view(-1).copy_(mean)

    def trial() -> Sequence[float]:
        first, *between, last = in_thread(lambda: _compute_seconds(exchange(), context, watch), device)
        middle = sum(between)
        if is_gathered:  # what is done between a gather of lengths and that of payloads
            first, middle = first + middle, 0.0
        copied = {name: watch.since(start, [end])[0] for name, (start, end) in marks.items()}
        first, last = first - copied.get("split", 0.0), last - copied.get("join", 0.0)
        return first + middle + last, first, middle, last

    return {f"{system.name}_{part}": of for part, of in zip(PARTS, (whole, merge, decode), strict=True)}, trial


def _timed_pieces(watch: Stopwatch, marks: dict[str, tuple[Any, Any]], shapes: Shapes, count: int, cut: Cut) -> Pieces:
    """Return pieces that note begin and end of the last cut and of the last joining: copies, no part of a kernel.

    They are simulated as kernels of their own, which take what BinSGDM's copies of gradients take.
    """

    def timed(name: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(values: Any) -> Any:
            start = watch.stamp()
            pieces = work(values)
            marks[name] = start, watch.stamp()
            return pieces

        return call

    made: Any = Pieces(shapes, count, cut)
    made.split, made.join = timed("split", made.split), timed("join", made.join)
    return made  # type: ignore[no-any-return]


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
    seconds: list[float] = []

    def run(_: None) -> None:
        # A new thread begins with the first GPU as the current one.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            seconds.extend(work())

    thread = CommunicationThread[None]("binsgdm-measure", CPU, run)
    thread.submit(None)
    thread.finish()
    return seconds


def one_bit_adam_parts(numel: int, world_size: int) -> Parts:
    """Return 1-bit Adam's kernels in the order in which they are timed, with the elements that each works on."""
    whole, chunk = {"num_elements": numel}, {"num_elements": padded_numel(numel, world_size) // world_size}
    of_each = (whole, whole, chunk | {"num_vectors": world_size}, chunk, whole, whole)
    return dict(zip(OF_ONE_BIT_ADAM, of_each, strict=True))


def one_bit_adam_trial(numel: int, world_size: int, device: torch.device) -> Trial:
    """Return a trial: all of a step's computation, then its kernels; of one square parameter after a dense step.

    `numel`, of the parameter, is a power of two; chunks of `world_size` ranks are averaged.
    """
    rows = 2 ** (int(math.log2(numel)) // 2)
    parameter = torch.nn.Parameter(torch.randn(rows, numel // rows, device=device))
    parameter.grad = torch.randn_like(parameter)
    optimizer = OneBitAdam([parameter], lr=LR, dense_steps=1)
    optimizer.step()
    slices = optimizer.slices()
    context = RankContext(rank=0, world_size=world_size, ranks_per_node=1, seed=0, step=2)
    residuals = MomentumResiduals.zeros(padded_numel(numel, world_size), context, "flat", device)
    watch = Stopwatch(device)
    if is_used_on(device):
        return _trial_of_passes(slices, residuals, context, watch)

    @torch.no_grad()
    def step() -> Sequence[float]:
        marks = [watch.stamp()]
        passes = PlainPasses(slices, world_size)
        passes.read_gradients([parameter.grad], None, is_sent=False)
        finite_check_flags([True], passes.are_small, False, device)
        momenta, valid = local_momenta(slices, passes.gradient)
        marks.append(watch.stamp())
        received = encode_and_keep(momenta, residuals.worker, valid, world_size)
        marks.append(watch.stamp())
        mean = decode(received).mean(dim=0)
        marks.append(watch.stamp())
        valid_row = valid.view(world_size, -1)[0]
        row = encode_and_keep(mean.masked_fill_(~valid_row, 0.0), residuals.server, valid_row, 1)
        marks.append(watch.stamp())
        gathered = row.expand(world_size, -1).clone()
        marks.append(watch.stamp())
        delivered = decode(gathered).view(-1).masked_fill_(~valid, 0.0)
        marks.append(watch.stamp())
        apply_average(slices, delivered)
        marks.append(watch.stamp())
        seconds = watch.phases(marks)
        del seconds[4]  # copying the gathered rows stands for receiving them, which is no kernel
        return [sum(seconds), *seconds]

    return step


def _trial_of_passes(
    slices: Sequence[FlatSlice], residuals: MomentumResiduals, context: RankContext, watch: Stopwatch
) -> Trial:
    """Return a trial of a CPU's compiled passes, each of which does the work of two kernels, and shares its time out.

    The second server kernel is timed by itself, what is left of its pass is the first; others go by the bytes moved.
    """
    from binsgdm.kernels import cpu_adam  # which needs numba

    passes, gradients = CpuPasses(slices, context.world_size), [segment.parameter.grad for segment in slices]
    mean, residual = torch.randn_like(residuals.server), torch.zeros_like(residuals.server)
    bits, counts = torch.full((mean.numel() // 8,), 255, dtype=torch.uint8), np.array([mean.numel()])

    @torch.no_grad()
    def step() -> Sequence[float]:
        marks = [watch.stamp()]
        passes.read_gradients(gradients, None, is_sent=False)
        finite_check_flags([True], passes.are_small, False, mean.device)
        marks.append(watch.stamp())
        exchange = passes.compressed_step(slices, residuals, context, "flat")
        sent = next(exchange).sent
        marks.append(watch.stamp())
        row = exchange.send(sent)
        marks.append(watch.stamp())
        gathered = fake_received(row, context)
        marks.append(watch.stamp())
        with suppress(StopIteration):
            exchange.send(gathered)
        marks.append(watch.stamp())
        cpu_adam.encode_values(mean, residual, bits, counts)
        marks.append(watch.stamp())
        gather_s, encode_s, server_s, _, update_s, residual_s = watch.phases(marks)
        momentum_s, compress_s = _shared_out(encode_s, ("momentum", "compress"))
        mean_s = max(server_s - residual_s, LEAST_SHARE * server_s)
        seconds = [gather_s + momentum_s, compress_s, mean_s, server_s - mean_s]
        seconds += _shared_out(update_s, ("decompress", "adam_update"))
        return [sum(seconds), *seconds]

    return step


def _shared_out(pass_s: float, kernels: Sequence[str]) -> list[float]:
    """Return the seconds of each kernel of a pass over the same elements, by the bytes that it moves."""
    moved = [bytes_per_element(name) or 0.0 for name in kernels]
    return [pass_s * num_bytes / sum(moved) for num_bytes in moved]
