"""Time whole steps of real training under a strategy, with their phases."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from binsgdm.bench import choices
from binsgdm.bench.choices import SystemChoice
from binsgdm.bench.model import LR
from binsgdm.bench.ranks import Ranks, guarded
from binsgdm.bench.record import Bench, Label
from binsgdm.bench.timing import WARM_UP, Stopwatch, phases, repeat_until_known
from binsgdm.bench.without_messages import answered_at_once, is_answered_at_once, keep_bucket
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
            model with 1-bit Adam after its dense stage; any other a system that compresses the gradients of that
            DistributedDataParallel in its communication hook.
        scheme: of BinSGDM; None for the others.
        rounding: of BinSGDM; not of the others.
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
        given = {"options": self.system.given} if self.system is not None else {}
        scheme = {name: getattr(self.scheme, name, "") for name in SCHEME_LABELS}
        rounding = "" if self.scheme is None else self.rounding
        return {"strategy": self.kind, **scheme, "rounding": rounding, **given, "overlap": int(self.overlap)}


# Words that may follow "binsgdm:", separated by commas.
WORDS: dict[str, dict[str, Any]] = {
    "flat": {"topology": "flat"},
    "bf16": {"intra_node_dtype": "bf16"},
    "one_bit": {"intra_node_dtype": "one_bit"},
    "gradients": {"average": "gradients"},
    "overlap": {},
    "random": {},
    "shaped": {},
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
    scheme = Scheme(**{key: value for word in words for key, value in WORDS[word].items()})
    rounding: Rounding = "shaped" if "shaped" in words else "random" if "random" in words else DEFAULT_ROUNDING
    return MeasuredStrategy(kind=kind, scheme=scheme, rounding=rounding, overlap="overlap" in words)


def measure(  # noqa: PLR0913 - one argument an option
    bench: Bench,
    *,
    models: Sequence[str],
    batch: int,
    strategies: Sequence[MeasuredStrategy],
    bucket_cap_mb: float = 25.0,
    without_messages: bool = False,
) -> None:
    """Add steps, forwards, backwards and optimizers of every model under every strategy.

    Strategies take turns. A barrier stands before a block of steps; inside a block the steps follow each other as in
    training.
    A step's time is that from the end of the step before it to its own end, each on the rank that ends last, so that
    the times of a block add up to its whole time; the phases are those of the rank that takes longest for each, and
    may add up to more. Of several ranks every one has series of its own: its steps, and what it computed in each.

    Args:
        bench: where to, who takes part, and when to stop; the time of the step decides.
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
            for how, found in rows.items():
                labels: dict[str, Any] = {"model": model, "batch": batch, **how.labels, "bucket_cap_mb": bucket_cap_mb}
                add_rows(bench, kind, found, labels)


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
    """Moments of a step on this rank, as `Stopwatch.stamp` marks them.

    Attributes:
        phases: when it began and each of its phases ended.
        waits: between which two moments it may have waited for other ranks; beside that it computed.
    """

    phases: Sequence[Any]
    waits: Sequence[tuple[Any, Any]]


class StepRow(NamedTuple):
    """What a step took.

    Attributes:
        slowest: its time and its phases, of the slowest rank [s].
        by_rank: of each rank its own time, and what it computed of that [s].
    """

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
                compress_gradients(module, how.kind, ranks_per_node=ranks.ranks_per_node, **how.system.given)
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
    """Return for each step of each strategy what it took.

    Strategies take turns, a block each, so that what slows the machine for a while slows all of them.
    """
    ranks = bench.ranks
    warm_s = {how: timed_block(step, WARM_UP, ranks)[-1].slowest[0] for how, step in steps.items()}
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
    slowest = iter(ranks.slowest([value for mark in marks for value in phases(watch, mark.phases)]))
    rows = [[end - before, *(next(slowest) for _ in PHASES)] for before, end in zip([0.0, *ends], ends, strict=False)]
    own: list[float] = []
    for before, end, mark in zip([0.0, *own_ends], own_ends, marks, strict=False):
        wait_s = sum(watch.since(begin, [over])[0] for begin, over in mark.waits)
        own += [end - before, end - before - wait_s]
    of_ranks = ranks.of_all(own)
    return [StepRow(row, [one[2 * at : 2 * at + 2] for one in of_ranks]) for at, row in enumerate(rows)]
