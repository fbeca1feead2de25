"""Run what `simnet advise --proof` wrote: messages, kernels and trainings, into results.json beside the script."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import click
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.nn import functional

from binsgdm.bench import choices, collectives, kernels, systems
from binsgdm.bench.ranks import Ranks, guarded, joined
from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import StopRule, Stopwatch
from binsgdm.bench.training import SCHEME_LABELS, StepMarks, add_rows, keep_bucket, timed_block
from binsgdm.errors import BinsgdmError
from binsgdm.files import write_file
from binsgdm.recording.model_sources import ModelOptions, as_task, find, imported_function
from binsgdm.recording.model_zoo import SEED, Task

__all__ = ["keep_bucket", "run"]

PROOF, RESULTS, LOSSES = "proof.json", "results.json", "losses.csv"
ALONE = "alone"
BLOCK, WARM_UP = 10, 5
MAX_S, KERNEL_S = 5.0, 0.4
"""Of the repetitions of one message, and of one kernel [s], once there are as few as have an interval."""
MOST_BLOCKS = 32
SAME_SIZE = 0.02
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Trained = tuple[nn.Module, torch.optim.Optimizer]


def run(script: str, trainings: Mapping[str, Callable[[nn.Module], Trained]], *, model: str, data: str) -> None:
    """Measure all that proof.json asks for, on every rank; results.json is written anew after each training.

    Args:
        script: its path; proof.json lies beside it.
        trainings: what makes of a bare model what is trained, and its optimizer, by name.
        model: `module:function` as of `simnet measure`; empty: matrices of the workload's shapes.
        data: `module:function` that yields the inputs of a step, then the next; empty: those of the model, again and
            again. With it losses.csv gets the mean loss of all ranks in every step.
    """
    folder = Path(script).resolve().parent
    try:
        plan = json.loads((folder / PROOF).read_bytes())
        with joined() as ranks:
            _measure(folder, plan, ranks, trainings, model, data)
    except (BinsgdmError, OSError) as error:
        click.echo(f"{Path(script).name}: {error}", err=True)
        raise SystemExit(2) from error


def _measure(  # noqa: PLR0913, PLR0917 - what `run` takes
    folder: Path, plan: dict[str, Any], ranks: Ranks, trainings: Mapping[str, Callable[[nn.Module], Trained]],
    model: str, data: str,
) -> None:  # fmt: skip
    cluster = plan["scenario"]["cluster"]
    wanted, here = (cluster["num_nodes"], cluster["ranks_per_node"]), (ranks.num_nodes, ranks.ranks_per_node)
    if wanted != here:
        raise BinsgdmError(
            f"{here[0]} nodes x {here[1]} ranks: the prediction is of {wanted[0]} x {wanted[1]}: start as many"
        )
    record = Record(ranks, nic_bytes_per_s=plan["nic_bytes_per_s"])
    record.note(f"proof {hashlib.sha256((folder / PROOF).read_bytes()).hexdigest()[:32]}")
    bench = Bench(record=record, ranks=ranks, stop_rule=StopRule(max_seconds=MAX_S))
    _add_messages(bench, plan["messages"])
    if (system := plan["kernels"]) is not None:
        sizes = {"min_numel": system["min_elements"], "max_numel": system["max_elements"]}
        quick = bench.within(KERNEL_S)
        if system["system"] == "binsgdm":
            # The reference comes first there, and is measured only where there is nothing else.
            *others, slowest = kernels.available(ranks.device)[::-1]
            kernels.measure(quick, kernels=tuple(others) or (slowest,), **sizes)
        else:
            systems.measure(quick, systems=[choices.choice(system["system"], PROOF)], **sizes)
    losses: list[str] = []
    for training in plan["runs"]:
        losses += _add_training(bench, training, plan, trainings[training["name"]], model, data)
        if ranks.rank == 0:
            record.write(folder / RESULTS)
            if data:
                write_file(folder / LOSSES, "\n".join(["run,step,loss", *losses, ""]))


def _add_messages(bench: Bench, messages: Sequence[Mapping[str, Any]]) -> None:
    """Add all-reduces of fp32, those of all nodes at one time."""
    ranks, groups = bench.ranks, bench.ranks.groups
    assert groups is not None

    def call(group: Any, num_bytes: int) -> Callable[[], object]:
        values = torch.zeros(num_bytes // 4, device=ranks.device)
        return lambda: guarded(lambda: dist.all_reduce(values, group=group))

    asked = [(message["group"], message["message_bytes"]) for message in messages]
    times = bench.times({(name, size): call(getattr(groups, name), size) for name, size in asked})
    for (name, size), values in times.items():
        group_size = collectives.group_size(ranks, name)
        bench.record.add(
            "collective", "all_reduce", values, group=name, group_size=group_size, dtype="float32", message_bytes=size,
            num_groups=ranks.world_size // group_size,
        )  # fmt: skip


def _add_training(  # noqa: PLR0913, PLR0917 - what `run` takes
    bench: Bench, asked: Mapping[str, Any], plan: Mapping[str, Any], make: Callable[[nn.Module], Trained], model: str,
    data: str,
) -> list[str]:  # fmt: skip
    """Add the steps of a training and a GPU's peak memory; return rows of losses."""
    ranks, name, batch = bench.ranks, asked["name"], asked["batch_per_rank"]
    task = _of_user(plan, model, batch, ranks.device) if model else _of_shapes(plan, batch, ranks.device)
    if ranks.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(ranks.device)
    num_tensors = len(list(task.module.parameters()))
    module, optimizer = _trained(name, make, task.module)
    batches = iter(imported_function(data, *data.split(":", 1))()) if data else None
    losses: list[Tensor] = []

    def next_task() -> Task:
        if batches is None:
            return task
        made = as_task((task.module, next(batches), task.loss))
        return replace(made, inputs=tuple(tensor.to(ranks.device) for tensor in made.inputs))

    watch = Stopwatch(ranks.device)

    def step() -> StepMarks:
        marks = [watch.stamp()]
        for left in range(asked["micro_batches"] - 1, -1, -1):
            keeps_gradients = getattr(module, "no_sync", nullcontext) if left else nullcontext
            with keeps_gradients():
                loss = next_task().loss_of(module)
                if not left:
                    marks.append(watch.stamp())
                loss.backward()  # type: ignore[no-untyped-call]
        marks.append(watch.stamp())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(watch.stamp())
        losses.append(loss.detach())
        return StepMarks(marks, ())

    period, steps = asked["period"], asked["steps"]
    block = max(BLOCK, period)
    with _shards_kept() if name == ALONE else nullcontext():
        timed_block(step, max(WARM_UP, period), ranks)
        losses.clear()  # those of the warm-up
        rows = [row for first in range(0, steps, block) for row in timed_block(step, min(block, steps - first), ranks)]
    labels: dict[str, Any] = {
        "model": model or "shapes", "batch": batch, "strategy": asked["strategy"]["kind"], "overlap": 1,
        "bucket_cap_mb": 25.0, "rounding": "", **dict.fromkeys(SCHEME_LABELS, ""), "run": name,
    }  # fmt: skip
    add_rows(bench, "own_work" if name == ALONE else "training", rows, labels)
    if ranks.device.type == "cuda":
        peak = [float(torch.cuda.max_memory_allocated(ranks.device))]
        named = {"optimizer": type(optimizer).__name__, "num_elements": plan["num_elements"]}
        bench.record.add("memory", "peak", peak, unit="B", **named, num_tensors=num_tensors, run=name)
    of_all = ranks.of_all([float(loss) for loss in losses]) if data else []
    return [f"{name},{number},{fmean(values)!r}" for number, values in enumerate(zip(*of_all, strict=True), start=1)]


def _trained(name: str, make: Callable[[nn.Module], Trained], model: nn.Module) -> Trained:
    """Return what a training makes of a model, in the stage that was predicted."""
    try:
        module, optimizer = make(model)
    except (TypeError, ValueError) as error:  # such as a hook of DDP that needs NCCL
        raise BinsgdmError(f"{name}: {error}: this call does not work here; advise for what is here") from error
    for group in optimizer.param_groups:
        if "dense_steps" in group:  # 1-bit Adam's first stage falls into the warm-up
            group["dense_steps"] = 1
    return module, optimizer


def _of_user(plan: Mapping[str, Any], model: str, batch: int, device: torch.device) -> Task:
    """Return the user's model as it is, if its gradients are as large as was predicted for."""
    torch.manual_seed(SEED)
    with torch.device(device):
        task = find(model, ModelOptions(batch)).build()
    task.module.to(device)
    num_bytes = sum(parameter.nbytes for parameter in task.module.parameters() if parameter.requires_grad)
    wanted = plan["num_elements"] * DTYPES[plan["scenario"]["workload"]["dtype"]].itemsize
    if abs(num_bytes / wanted - 1) > SAME_SIZE:
        raise BinsgdmError(
            f"MODEL {model!r}: gradients of {num_bytes:,} bytes: predicted was for {wanted:,}: name the model of the "
            "workload, or advise for this one"
        )
    return task


class _KeptShards:
    """The collectives of FSDP2 answered at once, as if all ranks had sent the same; all else is torch's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_gather_single(self, output: Tensor, input: Tensor, **_: Any) -> None:  # noqa: A002 - as FSDP2 names it
        """Put this rank's shard in the place of all."""
        output.view(-1, input.numel()).copy_(input.view(1, -1).expand(output.numel() // input.numel(), -1))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, **_: Any) -> None:  # noqa: A002 - as FSDP2 names it
        """Keep the first part."""
        output.copy_(input.view(-1)[: output.numel()].view_as(output))

    def all_reduce(self, *_: Any, **__: Any) -> None:
        """Keep the values as they are."""

    all_gather_into_tensor, reduce_scatter_tensor = all_gather_single, reduce_scatter_single  # torch up to 2.12


@contextmanager
def _shards_kept() -> Iterator[None]:
    """Let FSDP2 send nothing; DDP's hook is set where it is made."""
    with patch.object(_fsdp_collectives, "dist", _KeptShards()):
        yield


class _Matrices(nn.Module):
    """Parameters of some shapes: forward multiplies so many vectors by each, backward makes both gradients."""

    def __init__(self, shapes: Sequence[Sequence[int]], rows: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.full(shape, 1e-3) for shape in shapes])
        self.rows = rows

    def forward(self, total: Tensor) -> Tensor:
        """Add the mean of all products to a number."""
        for weight in self.weights:
            if weight.dim() > 1:
                matrix = weight.flatten(1)
                inputs = matrix.new_ones(self.rows, matrix.shape[1], requires_grad=True)
                total = total + functional.linear(inputs, matrix).mean()
            else:
                total = total + weight.mean()
        return total


class _Blocks(nn.Module):
    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, total: Tensor) -> Tensor:
        """Go through all blocks."""
        for block in self.blocks:
            total = block(total)
        return total


def _of_shapes(plan: Mapping[str, Any], batch: int, device: torch.device) -> Task:
    """Return a model of the workload's shapes; a block is what has one number in its name, or as many tensors."""
    tensors = plan["tensors"][::-1]  # they come in backward order
    each = -(-len(tensors) // MOST_BLOCKS)

    def block_of(pair: tuple[int, tuple[str, Sequence[int]]]) -> object:
        number, (name, _) = pair
        layer = re.match(r".*?\.\d+\.", name)
        return layer[0] if layer else number // each

    rows = max(1, round(plan["rows_per_sample"] * batch))
    torch.manual_seed(SEED)
    with torch.device(device):
        module = _Blocks([
            _Matrices([shape for _, (_, shape) in pairs], rows) for _, pairs in groupby(enumerate(tensors), block_of)
        ])  # fmt: skip
        dtype = DTYPES[plan["scenario"]["workload"]["dtype"]]
        return Task(module=module.to(dtype), inputs=(torch.zeros((), dtype=dtype),), loss=lambda total: total)
