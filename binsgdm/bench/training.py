"""Time whole steps of real training under a strategy, with their phases, or without the time of its messages."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm.bench import choices
from binsgdm.bench.choices import SystemChoice
from binsgdm.bench.model import LR
from binsgdm.bench.ranks import Ranks, guarded
from binsgdm.bench.record import Bench, Label
from binsgdm.bench.timing import WARM_UP, Stopwatch, repeat_until_known
from binsgdm.comm import AllGather, AllReduceSum, AllToAll, Message
from binsgdm.comm.transport import Transport
from binsgdm.compressors.registry import SYSTEMS
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.settings import Rounding, Scheme
from binsgdm.parallel.ddp import attach, attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from binsgdm.recording.model_sources import build

BLOCK_S = 1.0
MAX_BLOCK = 10
PHASES = ("forward", "backward", "optimizer")
OF_RANKS = ("rank_step", "rank_compute")
SCHEME_LABELS = tuple(field.name for field in fields(Scheme))
DEFAULT_ROUNDING: Rounding = inspect.signature(BinSGDM).parameters["rounding"].default


@dataclass(frozen=True, kw_only=True)
class MeasuredStrategy:
    """A strategy as it is measured.

    Attributes:
        kind: "all_reduce" is DistributedDataParallel in fp32 with a fused AdamW, overlapped as it always is, whose
            gradients are views of its buckets; "binsgdm" the bare model with BinSGDM attached; "one_bit_adam" the bare
            model with 1-bit Adam after its dense stage; any other a system in that DistributedDataParallel's hook.
        scheme: of BinSGDM, as is the rounding; None for the others.
        overlap: whether messages travel during backward.
        system: with its options; None for the first two.
    """

    kind: str
    scheme: Scheme | None = None
    rounding: Rounding = DEFAULT_ROUNDING
    overlap: bool = True
    system: SystemChoice | None = None

    @property
    def labels(self) -> dict[str, Label]:
        """What a series of it is labelled with."""
        options = {"options": self.system.options} if self.system is not None else {}
        scheme = {name: getattr(self.scheme, name, "") for name in SCHEME_LABELS}
        rounding = "" if self.scheme is None else self.rounding
        return {"strategy": self.kind, **scheme, "rounding": rounding, **options, "overlap": int(self.overlap)}


# Words that may follow "binsgdm:", separated by commas: what each sets.
WORDS: dict[str, dict[str, Any]] = {
    "flat": {"topology": "flat"},
    "bf16": {"intra_node_dtype": "bf16"},
    "one_bit": {"intra_node_dtype": "one_bit"},
    "gradients": {"average": "gradients"},
    "overlap": {"overlap": True},
    "random": {"rounding": "random"},
    "shaped": {"rounding": "shaped"},
}


def strategy(text: str) -> MeasuredStrategy:
    """Read a strategy: "all_reduce", "binsgdm", "binsgdm:flat,overlap" with words of `WORDS`, or "qsgd:bits=4".

    Example:
        >>> strategy("binsgdm:bf16,overlap").scheme.intra_node_dtype
        'bf16'
    """
    kind, _, options = text.partition(":")
    if choices.is_known(kind) or SYSTEMS.refusal(kind):
        system = choices.choice(text, "--strategy")
        return MeasuredStrategy(kind=kind, system=system, overlap=kind != choices.ONE_BIT_ADAM)
    words = [word.strip() for word in options.split(",")] if options else []
    if kind not in {"all_reduce", "binsgdm"} or (kind == "all_reduce" and words):
        raise BinsgdmError(
            f"--strategy {text!r}: unknown: give all_reduce, binsgdm or binsgdm:WORD,WORD, or "
            "SYSTEM or SYSTEM:KEY=VALUE,KEY=VALUE with a system that compresses"
        )
    if kind == "all_reduce":
        return MeasuredStrategy(kind=kind)
    if unknown := [word for word in words if word not in WORDS]:
        raise BinsgdmError(f"--strategy {text!r}: {unknown[0]!r} is unknown: after binsgdm: give {', '.join(WORDS)}")
    excluding = {"bf16", "one_bit"} <= set(words) or {"random", "shaped"} <= set(words)
    if excluding or ("flat" in words and {"bf16", "one_bit", "gradients"} & set(words)):
        raise BinsgdmError(
            f"--strategy {text!r}: flat has no format inside a node, bf16 excludes one_bit, and random shaped; "
            "drop one word"
        )
    settings: dict[str, Any] = {"overlap": False} | {key: value for word in words for key, value in WORDS[word].items()}
    others = {key: settings.pop(key) for key in ("overlap", "rounding") if key in settings}
    return MeasuredStrategy(kind=kind, scheme=Scheme(**settings), **others)


def measure(  # noqa: PLR0913 - one argument an option
    bench: Bench, *, models: Sequence[str], batch: int, strategies: Sequence[MeasuredStrategy],
    bucket_cap_mb: float = 25.0, without_messages: bool = False,
) -> None:  # fmt: skip
    """Add steps, forwards, backwards and optimizers of every model under every strategy.

    Strategies take turns, a block of steps each, so that what slows the machine for a while slows all of them. A
    barrier stands before a block; inside it the steps follow each other as in training. A step's time is that from the
    end of the step before it to its own end, each on the rank that ends last, so that the times of a block add up to
    its whole time; the phases are those of the rank that takes longest for each, and may add up to more. Of several
    ranks every one has series of its own: its steps, and what it computed in each.

    Args:
        bench: the time of the step decides when to stop.
        models: as `model_sources.build` takes them.
        batch: samples a rank.
        strategies: what to train with, each with a model of its own from the same parameters on; no two alike.
        bucket_cap_mb: parameters of one message, MiB of fp32.
        without_messages: answer every message at once, and add the series under the kind "own_work".
    """
    kind = "own_work" if without_messages else "training"
    with answered_at_once() if without_messages else nullcontext():
        for part, model in bench.each(models):
            steps = {how: training_step(model, batch, how, bench.ranks, bucket_cap_mb) for how in strategies}
            rows = _in_turns(steps, part)
            for how, step_rows in rows.items():
                labels: dict[str, Any] = {"model": model, "batch": batch, **how.labels, "bucket_cap_mb": bucket_cap_mb}
                add_rows(bench, kind, step_rows, labels)


def add_rows(bench: Bench, kind: str, rows: Sequence["StepRow"], labels: Mapping[str, Label]) -> None:
    """Add steps with their phases, and of each of several ranks its own steps and its compute."""
    for column, name in enumerate(("step", *PHASES)):
        bench.record.add(kind, name, [row.slowest[column] for row in rows], **labels)
    if bench.ranks.world_size == 1:
        return
    for rank in range(bench.ranks.world_size):
        for column, name in enumerate(OF_RANKS):
            bench.record.add(kind, name, [row.by_rank[rank][column] for row in rows], **labels, rank=rank)


class StepMarks(NamedTuple):
    """Moments of a step on this rank: when it began and each phase ended; between which two it may have waited."""

    phases: Sequence[Any]
    waits: Sequence[tuple[Any, Any]]


class StepRow(NamedTuple):
    """What a step took: its time and its phases, of the slowest rank [s]; of each its own time, and its compute [s]."""

    slowest: Sequence[float]
    by_rank: Sequence[Sequence[float]]


# Trains once.
TrainingStep = Callable[[], StepMarks]


def training_step(model: str, batch: int, how: MeasuredStrategy, ranks: Ranks, bucket_cap_mb: float) -> TrainingStep:
    """Return what trains a model once under a strategy; arguments as `measure`."""
    task = build(model, batch, ranks.device)
    module: torch.nn.Module = task.module
    optimizer: torch.optim.Optimizer
    if how.scheme is not None:  # no DDP: its gradients are local; the models are the same, since their seed is
        optimizer = BinSGDM(module.parameters(), lr=LR, rounding=how.rounding)
        local: dict[str, Any] = {"ranks_per_node": ranks.ranks_per_node, "overlap": how.overlap}
        attach(optimizer, bucket_cap_mb=bucket_cap_mb, **local, **asdict(how.scheme))
    elif how.kind == choices.ONE_BIT_ADAM:  # the first step is the whole dense stage, and falls into the warm-up
        optimizer = OneBitAdam(module.parameters(), lr=LR, dense_steps=1)
        attach_one_bit_adam(optimizer, ranks_per_node=ranks.ranks_per_node)
    else:
        if ranks.groups is not None:  # one process alone needs no DDP
            module = DistributedDataParallel(module, bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
            if how.system is not None:
                compress_gradients(module, how.kind, ranks_per_node=ranks.ranks_per_node, **how.system.options)
            elif is_answered_at_once():
                module.register_comm_hook(None, keep_bucket)
        elif how.system is not None:
            raise BinsgdmError(f"--strategy {how.kind}: needs two ranks; launch them with torchrun --nproc-per-node 2")
        optimizer = torch.optim.AdamW(module.parameters(), lr=LR, fused=True)
    watch = Stopwatch(ranks.device)
    exchanges = isinstance(optimizer, BinSGDM | OneBitAdam)

    def step() -> StepMarks:
        computed: list[Any] = []
        marks = [watch.stamp()]
        loss = task.loss_of(module)
        marks.append(watch.stamp())
        _stamp_after_last_gradient(loss, watch, computed)
        loss.backward()  # type: ignore[no-untyped-call]
        marks.append(watch.stamp())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(watch.stamp())
        if is_answered_at_once():
            return StepMarks(marks, ())
        return StepMarks(marks, ((computed[0], marks[2]), *([(marks[2], marks[3])] if exchanges else [])))

    return step


def _stamp_after_last_gradient(loss: torch.Tensor, watch: Stopwatch, into: list[Any]) -> None:
    """Mark the moment when the coming backward has computed its last gradient, before DDP waits for its buckets."""

    def queue(_: torch.Tensor) -> None:
        # What is queued first runs first: DDP queues its own end of backward with the first bucket.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: into.append(watch.stamp()))

    loss.register_hook(queue)  # type: ignore[no-untyped-call]


def _in_turns(steps: Mapping[MeasuredStrategy, TrainingStep], bench: Bench) -> dict[MeasuredStrategy, list[StepRow]]:
    """Return for each step of each strategy what it took."""
    ranks = bench.ranks
    warm_s = {how: timed_block(step, WARM_UP, ranks)[-1].slowest[0] for how, step in steps.items()}
    # About a second each, so that what slows the machine for a while slows all strategies.
    counts = {how: max(1, min(MAX_BLOCK, int(BLOCK_S / step_s))) for how, step_s in warm_s.items()}
    rows: dict[MeasuredStrategy, list[StepRow]] = {how: [] for how in steps}

    def take(active: Sequence[MeasuredStrategy]) -> dict[MeasuredStrategy, tuple[list[float], float]]:
        for how in active:
            bench.probe()
            rows[how] += timed_block(steps[how], counts[how], ranks)
        times = {how: [row.slowest[0] for row in rows[how]] for how in active}
        return {how: (values, sum(values)) for how, values in times.items()}

    repeat_until_known(steps, take, bench.stop_rule, bench.progress)
    return rows


def timed_block(step: TrainingStep, count: int, ranks: Ranks) -> list[StepRow]:
    """Take `count` steps without a pause, after a barrier; return what each took."""
    watch = Stopwatch(ranks.device)
    ranks.barrier()
    start = watch.stamp()
    marks = guarded(lambda: [step() for _ in range(count)])
    own_ends = watch.since(start, [mark.phases[-1] for mark in marks])
    # A step ends when the last rank ends it: differences of these ends add up to the time of the block.
    ends = ranks.slowest(own_ends)
    slowest = iter(ranks.slowest([value for mark in marks for value in watch.phases(mark.phases)]))
    rows = [[end - before, *(next(slowest) for _ in PHASES)] for before, end in zip([0.0, *ends], ends, strict=False)]
    own_s: list[float] = []
    for before, end, mark in zip([0.0, *own_ends], own_ends, marks, strict=False):
        wait_s = sum(watch.since(begin, [over])[0] for begin, over in mark.waits)
        own_s += [end - before, end - before - wait_s]
    of_ranks = ranks.of_all(own_s)
    return [StepRow(row, [of_rank[2 * at : 2 * at + 2] for of_rank in of_ranks]) for at, row in enumerate(rows)]


_COMMUNICATE = Transport._communicate
CARDS_STRATEGIES = ("all_reduce", "binsgdm", "binsgdm:overlap", "one_bit_adam", "qsgd:bits=4")
CARDS_MODEL, QUICK_MODEL = ("transformer_25m", 64), ("mlp_200k", 2)  # model and samples a rank


def measure_cards(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add steps over all cards under several strategies; `seconds` for all."""
    model, batch = QUICK_MODEL if quick else CARDS_MODEL
    strategies = [strategy(text) for text in CARDS_STRATEGIES]
    measure(bench.within(seconds / len(strategies)), models=[model], batch=batch, strategies=strategies)


@contextmanager
def answered_at_once() -> Iterator[None]:
    """Let transports of this process send nothing, and answer as if all ranks had sent the same.

    What is left is a step's own work. All ranks of a training must do so, or those that send would wait.

    What carries messages is replaced here and not in `Transport`, since nobody who trains may come upon such a switch.
    """
    scattered: WeakKeyDictionary[Transport, torch.Tensor] = WeakKeyDictionary()

    def answer(transport: Transport, message: Message) -> torch.Tensor:
        # Without a copy where one can do without: copying is work of the messages, which are measured by themselves.
        # Payloads, which are bytes, are copied: they are few, and each can only be decoded as the piece of a bucket
        # that it encodes, since pieces differ in length.
        sent = message.sent.contiguous()
        group = getattr(transport._groups, message.group)
        size = dist.get_world_size(group)
        is_payload = sent.dtype == torch.uint8 and size > 1
        if isinstance(message, AllToAll) and is_payload:
            scattered[transport] = sent
            return sent[dist.get_rank(group)].expand_as(sent).contiguous()  # all that comes is of this rank's piece
        if isinstance(message, AllGather):
            pieces = scattered.pop(transport, None)
            if pieces is not None and is_payload and pieces.shape == (size, *sent.shape):
                return pieces.clone()  # of every piece a payload, as owners send them
            return sent.unsqueeze(0).expand(size, *sent.shape).contiguous()  # of a group of one no copy, as there
        return sent * size if isinstance(message, AllReduceSum) and size > 1 else sent

    Transport._communicate = answer  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Transport._communicate = _COMMUNICATE  # type: ignore[method-assign]


def is_answered_at_once() -> bool:
    """Tell whether messages of this process are answered at once; DDP's own go by no transport, and need a hook."""
    return Transport._communicate is not _COMMUNICATE


def keep_bucket(
    _state: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:
    """Hand a bucket of DDP back as it is: a communication hook."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
