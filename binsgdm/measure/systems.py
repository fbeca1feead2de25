"""Time what a rank computes for each compressing system: before its first message, between messages, after the last."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import median

import torch

from binsgdm.exchange import AllGather, AllReduceSum, Message, Protocol, RankContext, group_members
from binsgdm.exchange.thread import CommunicationThread
from binsgdm.measure import choices, one_bit_adam
from binsgdm.measure.bench import Bench
from binsgdm.measure.choices import SystemChoice
from binsgdm.measure.record import Record
from binsgdm.measure.stream_timing import LAUNCH
from binsgdm.measure.timing import Stopwatch, Trial, interleave, pause_s
from binsgdm.systems.base import GradientBucket
from binsgdm.systems.feedback import ErrorFeedback, WithoutFeedback
from binsgdm.systems.registry import SYSTEMS, make

CPU = torch.device("cpu")
MAX_NUMEL, MAX_GPU_NUMEL = 2**24, 2**28
ASSUMED_WORLD_SIZE = 4  # ranks whose payloads are decoded where one process measures alone
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

    Args:
        bench: where to, who takes part, and when to stop, for each size; what is gathered is decoded for as many ranks,
            or for `ASSUMED_WORLD_SIZE`.
        systems: with their options.
        min_numel: the smallest size.
        max_numel: the largest; default `MAX_NUMEL`, on a GPU `MAX_GPU_NUMEL`. What does not fit into a GPU's memory is
            left out with a note.
    """
    ranks, stop_rule = bench.ranks, bench.stop_rule
    size = ranks.world_size if ranks.world_size > 1 else ASSUMED_WORLD_SIZE
    largest = max_numel or (MAX_GPU_NUMEL if ranks.device.type == "cuda" else MAX_NUMEL)
    numels = [2**power for power in range(1, 40) if min_numel <= 2**power <= largest]
    for count, system in enumerate(systems):
        for done, numel in enumerate(numels, 1):
            try:
                parts, trial = _kernels_and_trial(system, numel, size, ranks.device)
                rows = interleave({"": trial}, stop_rule, ranks, pause_s=pause_s(ranks.device))[""]
                del trial  # with its tensors, before those of the next size are made
            except torch.cuda.OutOfMemoryError:
                bench.record.note(f"{system.name}: {numel:,} elements and more do not fit into the memory: left out")
                break
            _add(bench.record, ranks.device, system, size, parts, rows)
            bench.progress((count + done / len(numels)) / len(systems))
            bench.probe()
            slow = median(row[0] for row in rows) * stop_rule.min_repetitions > stop_rule.max_seconds
            if slow and max_numel is None and done >= MIN_NUM_SIZES and numel < largest:
                bench.record.note(f"{system.name}: more than {numel:,} elements take too long: left out")
                break


# Kernels in the order in which a trial times them, each with its number of elements (and of vectors).
Parts = Mapping[str, Mapping[str, int]]


def _kernels_and_trial(system: SystemChoice, numel: int, world_size: int, device: torch.device) -> tuple[Parts, Trial]:
    if system.name == choices.ONE_BIT_ADAM:
        return one_bit_adam.parts(numel, world_size), one_bit_adam.trial(numel, world_size, device)
    return _parts(system, numel, world_size), _trial(system, numel, world_size, device)


def _add(  # noqa: PLR0913, PLR0917
    record: Record,
    device: torch.device,
    system: SystemChoice,
    world_size: int,
    parts: Parts,
    rows: Sequence[Sequence[float]],
) -> None:
    options = {key: value for key, value in system.steady.items() if value is not None}
    for column, (name, elements) in enumerate(parts.items(), 1):
        times = [row[column] for row in rows]
        if all(times):
            labels: dict[str, str | int] = {"dtype": "float32", "kernels": "torch", **elements}
            labels |= {"timing": LAUNCH} if device.type == "cuda" else {}
            record.add("kernel", name, times, **labels, world_size=world_size, options=options)


def _parts(system: SystemChoice, numel: int, world_size: int) -> Parts:
    """Return how many elements each kernel works on: decoding what was gathered, those of every payload."""
    name, whole = system.name, {"num_elements": numel}
    if SYSTEMS[name].aggregation != "all_gather":
        return {f"{name}_{part}": whole for part in PARTS}
    end = make(name, rank=0, world_size=world_size, **system.given)
    decoded = end.compressor.num_sent(((numel,),)) if isinstance(end, WithoutFeedback | ErrorFeedback) else numel
    gathered = {"num_elements": decoded, "num_vectors": world_size}
    return {f"{name}_encode": whole, f"{name}_merge": whole, f"{name}_decode": gathered}


def _trial(system: SystemChoice, numel: int, world_size: int, device: torch.device) -> Trial:
    """Return a trial: all computation, then encode, merge and decode.

    As in DDP's hook, each exchange has a thread of its own, gradients are first copied out of DDP's bucket, and the
    result is copied back in the end.
    """
    shapes = ((rows := 2 ** (int(math.log2(numel)) // 2), numel // rows),)
    gradient = torch.randn(shapes[0], device=device)
    end = make(system.name, rank=0, world_size=world_size, **system.steady)
    context = RankContext(rank=0, world_size=world_size, ranks_per_node=1, seed=1, step=1)
    steps = itertools.count(1)
    watch = Stopwatch(device)
    is_gathered = SYSTEMS[system.name].aggregation == "all_gather"

    def exchange() -> Protocol:
        values = torch.cat([gradient.reshape(-1)])
        bucket = GradientBucket(values=values, parameters=(0,), shapes=shapes)
        mean = yield from end.mean(bucket, replace(context, step=next(steps)))
        return gradient.view(-1).copy_(mean)

    def trial() -> Sequence[float]:
        first, *between, last = in_thread(lambda: _compute_seconds(exchange(), context, watch), device)
        middle = sum(between)
        if is_gathered:  # what is done between a gather of lengths and that of payloads
            first, middle = first + middle, 0.0
        return first + middle + last, first, middle, last

    return trial


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


def fake_received(message: Message, context: RankContext) -> torch.Tensor:
    """Return what a rank receives if all ranks send what it sends."""
    size = len(group_members(message.group, context.rank, context.world_size, context.ranks_per_node))
    if isinstance(message, AllGather):
        return message.sent.expand(size, *message.sent.shape).clone()
    return message.sent * size if isinstance(message, AllReduceSum) else message.sent.clone()
