"""A training step of a model that a text names, described as plain data."""

import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_description import (
    DTYPES,
    Format,
    ModelDescription,
    autocast,
    describe,
    fake_tensors,
    in_dtype,
    parameter_bytes,
    repeated_blocks,
)
from binsgdm.recording.model_sources import FoundModel, ModelOptions, find
from binsgdm.recording.model_zoo import SEED, Task

DEFAULT_BATCH = 8
STATE_ELEMENTS = {"adam": 2, "sgd_momentum": 1}
"""Elements of the optimizer's state for each element of a gradient."""
_NO_VALUES = ("DynamicOutputShapeException", "DataDependentOutputException", "UnsupportedOperatorException")


class FailedModelError(BinsgdmError):
    """The model's own code has raised; the cause has its traceback."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What of a training step can be chosen.

    Attributes:
        batch: samples; None takes `DEFAULT_BATCH`, or those that the user's function returns by itself.
        length: tokens of a sequence; None takes the model's own.
        side: pixels of a side of an image; None takes the model's own.
        number_format: of parameters, gradients and products.
        autocast: forward and backward compute in `number_format`, and parameters and gradients stay fp32.
        optimizer: whose state is counted.
        checkpoint: keep only the inputs of repeated blocks, and run each again in backward.
        real: compute with values, in the memory of this machine.
        attention: what counts of causal attention: what fused kernels compute, or the whole score matrix.
        compiled: count what is read and written, and kept for backward, once torch.compile has fused the operators.
    """

    batch: int | None = None
    length: int | None = None
    side: int | None = None
    number_format: Format = "fp32"
    autocast: bool = False
    optimizer: Literal["adam", "sgd_momentum"] = "adam"
    checkpoint: bool = False
    real: bool = False
    attention: Literal["causal", "full"] = "causal"
    compiled: bool = False

    @property
    def kept(self) -> torch.dtype:
        """The dtype of parameters and gradients."""
        return torch.float32 if self.autocast else DTYPES[self.number_format]


def describe_step(source: str, options: StepOptions) -> dict[str, Any]:
    """Return what a training step of a model takes, as numbers and text.

    Raises:
        BinsgdmError: the source names no model, or one that cannot be described so.
        FailedModelError: the model's own code raises.
    """
    _check_options(options)
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it logs what it raises
    with _tensors(real=options.real) as places:
        found = _found(source, options)
        task = _made(found.build, options, source)
        places.clear()  # of values that the model is made of, such as rates of dropout, none changes a shape
        description = _described(task, options, source)
        again = None if options.checkpoint or options.compiled else _checkpointed(found.build, options, source)
    if options.compiled:
        description = _compiled(description, found.build, options, source)
    batch = _own_batch(task, source) if found.has_own_batch else options.batch or DEFAULT_BATCH
    notes = [*_notes(places), *found.notes, *_left_out(task, description, options, batch)]
    made = _plain(found, task, description, options, batch)
    if again is not None:
        made["memory"]["checkpointed"] = {
            "activations_per_sample": again.description.activation_bytes / batch,
            "recomputed": (again.description.backward.flops - description.backward.flops) / description.forward.flops,
            "blocks": again.blocks,
        }
    return made | {"notes": notes}


def _tensors(*, real: bool) -> AbstractContextManager[list[str]]:
    """Return the context in which tensors are made, and where values that they lack were read."""
    return nullcontext([]) if real else fake_tensors()


def _check_options(options: StepOptions) -> None:
    for name in ("real", "checkpoint"):
        if options.compiled and getattr(options, name):
            raise BinsgdmError(
                f"--compile, --{name}: must not be given both, since torch.compile is traced without values, and "
                "chooses itself what it computes again; drop one"
            )
    if options.autocast and DTYPES[options.number_format] == torch.float32:
        raise BinsgdmError(f"--autocast: no effect with --dtype {options.number_format}; add --dtype bf16, or drop it")


def _found(source: str, options: StepOptions) -> FoundModel:
    """Find the model, and refuse options that change nothing of it."""
    asked = ModelOptions(options.batch or DEFAULT_BATCH, options.length, options.side)
    with _failures_explained(source, "finding the model"):
        found = find(source, asked)
    if found.has_own_batch and options.batch is not None:
        raise BinsgdmError(f"--batch: no effect: {source} takes no batch size; let it take one, or drop the option")
    for name in ("length", "side"):
        if getattr(options, name) is not None and name not in found.takes:
            raise BinsgdmError(f"--{name}: no effect on {source}; drop it")
    return found


def _own_batch(task: Task, source: str) -> int:
    """Return the samples of a batch that the user's function has chosen."""
    first = next(one for one in (*task.inputs, *task.keywords.values()) if isinstance(one, Tensor))
    if not first.dim():
        raise BinsgdmError(f"{source}: its first input is one number: let the function take the batch size")
    return first.shape[0]


def _made(build: Callable[[], Task], options: StepOptions, source: str) -> Task:
    torch.manual_seed(SEED)
    with _failures_explained(source, "making the model"):
        task = in_dtype(build(), options.kept)
        task.module.train()
    if not any(isinstance(one, Tensor) for one in (*task.inputs, *task.keywords.values())):
        raise BinsgdmError(f"{source}: inputs without a tensor: must be a tensor, a tuple of them, or a dict by name")
    return task


def _described(task: Task, options: StepOptions, source: str) -> ModelDescription:
    in_format = autocast(options.number_format, is_on=options.autocast)
    with _failures_explained(source, "a step of the model"):
        return describe(task, forward_in=in_format, checkpoint=options.checkpoint, causal=options.attention == "causal")


class _RunAgain(NamedTuple):
    """A step whose repeated blocks run again in backward."""

    description: ModelDescription
    blocks: int


def _checkpointed(build: Callable[[], Task], options: StepOptions, source: str) -> _RunAgain | None:
    """Describe the step with activation checkpointing; None of a model without repeated blocks, or without products."""
    task = _made(build, options, source)
    blocks = len(repeated_blocks(task.module))
    if not blocks:
        return None
    try:
        found = _described(task, replace(options, checkpoint=True), source)
    except BinsgdmError:  # a model whose blocks take what torch's checkpoint does not
        return None
    return _RunAgain(found, blocks) if found.forward.flops else None


def _compiled(
    plain: ModelDescription, build: Callable[[], Task], options: StepOptions, source: str
) -> ModelDescription:
    """Return a description with what a compiled step moves and keeps."""
    from binsgdm.recording import compiled_work  # which loads torch's compiler: a second

    in_format = autocast(options.number_format, is_on=options.autocast)
    try:
        work = compiled_work.compiled_work(lambda: _made(build, options, source), in_format)
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:200]
        raise BinsgdmError(
            f"{source}: --compile: the step cannot be traced as one graph ({type(error).__name__}: {text}); count it "
            "without --compile: its time is then that of a step that is not compiled"
        ) from error
    return plain._replace(
        forward=plain.forward._replace(num_bytes=work.forward_bytes),
        backward=plain.backward._replace(num_bytes=work.backward_bytes),
        activation_bytes=work.activation_bytes,
    )


@contextmanager
def _failures_explained(source: str, what: str) -> Iterator[None]:
    """Turn what the model's own code raises into a sentence."""
    try:
        yield
    except BinsgdmError as error:
        if source in str(error):
            raise
        raise BinsgdmError(f"{source}: {error}") from error.__cause__
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:200]
        if type(error).__name__ in _NO_VALUES:
            raise FailedModelError(
                f"{source}: {what} needs values of tensors, and they have shapes alone ({text}); count it with --real, "
                "which takes the model's memory"
            ) from error
        raise FailedModelError(
            f"{source}: {what} failed with {type(error).__name__}: {text}; correct it, or give "
            "model and inputs by module:function"
        ) from error


def _plain(
    found: FoundModel, task: Task, description: ModelDescription, options: StepOptions, batch: int
) -> dict[str, Any]:
    num_elements = sum(math.prod(one.shape) for one in description.gradients)
    gradient_bytes = num_elements * description.dtype.itemsize
    products = [("forward", description.forward), ("backward", description.backward)]
    return {
        "title": found.title,
        "origin": found.origin,
        "versions": _versions(found.library),
        "sample": _sample(task),
        "batch": batch,
        "dtype": {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(description.dtype, "fp32"),
        "num_elements": num_elements,
        "tensors": [(one.name, list(one.shape), one.flops / batch) for one in description.gradients],
        "work": {
            **{f"{name}_flops": one.flops / batch for name, one in products},
            **{f"{name}_bytes": one.num_bytes / batch for name, one in products},
            "optimizer": options.optimizer,
            "precision": options.number_format,
        },
        "memory": {
            "parameters": parameter_bytes(task),
            "gradients": gradient_bytes,
            "optimizer": STATE_ELEMENTS[options.optimizer] * gradient_bytes,
            "activations_per_sample": description.activation_bytes / batch,
        },
    }


def _versions(library: str) -> str:
    """Return the versions of torch and of a library: "torch 2.13.0, timm 1.0.31"."""
    names = ["torch", *([library] if library else [])]
    return ", ".join(f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in names)


def _sample(task: Task) -> str:
    """Return the shape of the first input of one sample: "3x224x224"."""
    tensors = [one for one in (*task.inputs, *task.keywords.values()) if isinstance(one, Tensor) and one.dim() > 1]
    return "x".join(map(str, tensors[0].shape[1:])) if tensors else ""


def _left_out(task: Task, description: ModelDescription, options: StepOptions, batch: int) -> list[str]:
    """Say what does not count as in a plain training: causal attention, and parameters that are not trained."""
    notes = []
    if description.masked_flops:
        done = description.forward.flops + description.backward.flops
        causal, full = (
            (done, done + description.masked_flops)
            if options.attention == "causal"
            else (done - description.masked_flops, done)
        )
        notes.append(
            f"attention is causal: {causal / batch / 1e9:,.4g} GFLOP a sample as fused kernels skip what is masked, "
            f"{full / batch / 1e9:,.4g} with the whole score matrix; counted is --attention {options.attention}"
        )
    frozen = sum(one.numel() for one in task.module.parameters() if not one.requires_grad)
    if frozen:
        trained = sum(one.numel() for one in task.module.parameters() if one.requires_grad)
        notes.append(
            f"{frozen:,} of {frozen + trained:,} elements are frozen: they have no gradients, nothing is sent for them"
        )
    return notes


def _notes(places: list[str]) -> list[str]:
    """Say that values were read."""
    if not places:
        return []
    more = f" and {len(places) - 3} more places" if len(places) > 3 else ""
    return [
        f"values of tensors are read at {', '.join(places[:3])}{more}, and taken as zero: where the step depends on "
        "them, count it with --real"
    ]
