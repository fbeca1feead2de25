"""A training step of a model that a text names, described as plain data.

Forward and backward run once, as a rule on tensors without memory: gradients in ready order, FLOPs, bytes, memory.
"""

import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as run_again

from binsgdm.errors import BinsgdmError
from binsgdm.recording.fake_tensors import GroupedProducts, as_on_a_gpu, storage_of, zeros_for_values
from binsgdm.recording.model_sources import FoundModel, ModelOptions, find
from binsgdm.recording.model_zoo import SEED, Task, in_dtype
from binsgdm.recording.operator_work import OperatorWork, causal_share, work_of

Format = Literal["fp32", "tf32", "bf16", "fp16"]
DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""Formats of what is kept; "tf32" rounds only the factors of a product."""


class ReadyGradient(NamedTuple):
    """A gradient, in the order in which backward makes them ready; its FLOPs are those since the one before."""

    name: str
    shape: tuple[int, ...]
    flops: float


class ModelDescription(NamedTuple):
    """What one micro-batch takes.

    Attributes:
        gradients: in ready order.
        forward: FLOPs and bytes of forward.
        backward: FLOPs and bytes of backward.
        activation_bytes: kept from forward for backward, parameters and inputs apart.
        dtype: of the gradients.
        masked_flops: of scores that a causal mask leaves out, of forward and backward; they are not in the others
            where `causal` was asked for.
    """

    gradients: tuple[ReadyGradient, ...]
    forward: OperatorWork
    backward: OperatorWork
    activation_bytes: int
    dtype: torch.dtype
    masked_flops: float


class _WorkSum(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what runs below it; of causal attention, if `causal`, what is before the diagonal."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.num_bytes = self.masked_flops = 0.0
        self._causal = causal

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        del types
        result = func(*args, **(kwargs or {}))
        work = work_of(func, args, kwargs or {}, result)
        masked = work.flops and work.flops * (1 - causal_share(func, args, kwargs or {}))
        self.masked_flops += masked
        self.flops += work.flops - (masked if self._causal else 0.0)
        self.num_bytes += work.num_bytes
        return result


def describe(
    task: Task,
    *,
    forward_in: AbstractContextManager[Any] | None = None,
    checkpoint: bool = False,
    causal: bool = False,
) -> ModelDescription:
    """Run one forward and one backward of a model, whose tensors may be fake.

    Fills the `grad` of every parameter. A parameter that is used several times has one gradient, ready at the last.

    Args:
        task: the model with its batch.
        forward_in: context of forward, such as autocast.
        checkpoint: keep only the inputs of repeated blocks; changes the module.
        causal: count of causal attention what fused kernels compute, not the whole score matrix.
    """
    trained = [(name, parameter) for name, parameter in task.module.named_parameters() if parameter.requires_grad]
    if not trained:
        raise BinsgdmError("the model: no parameter requires a gradient: there is nothing to train; return another")
    work, ready = _WorkSum(causal=causal), dict[str, float]()
    # There anyway: what backward reads of these is no activation.
    known = {storage_of(tensor) for tensor in (*task.module.parameters(), *task.tensors)}
    kept: list[Tensor] = []  # alive, so that no other storage has the number of one of them

    def keep(tensor: Tensor) -> Tensor:
        if storage_of(tensor) not in known:
            known.add(storage_of(tensor))
            kept.append(tensor.detach())  # with its graph it would keep more
        return tensor

    def note(name: str) -> Callable[[Tensor], None]:
        return lambda _: ready.update({name: work.flops})

    handles = [parameter.register_post_accumulate_grad_hook(note(name)) for name, parameter in trained]  # type: ignore[no-untyped-call]
    if checkpoint:
        _checkpoint_blocks(task.module)
    try:
        with work, saved_tensors_hooks(keep, lambda tensor: tensor):
            with forward_in or nullcontext():
                loss = task.loss_of(task.module)
            forward = OperatorWork(work.flops, work.num_bytes)
            activation_bytes = sum(tensor.untyped_storage().nbytes() for tensor in kept)
            _check_loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    # DDP would wait for these for ever, and no order of gradients would be that of a training.
    if missing := [name for name, _ in trained if name not in ready]:
        raise BinsgdmError(
            f"the model: {len(missing)} of {len(trained)} parameters get no gradient, such as {missing[0]!r}: use all "
            "in forward, or set their requires_grad to False"
        )
    shapes, before = {name: tuple(parameter.shape) for name, parameter in trained}, [forward.flops, *ready.values()]
    return ModelDescription(
        gradients=tuple(
            ReadyGradient(name, shapes[name], flops - earlier)
            for (name, flops), earlier in zip(ready.items(), before, strict=False)
        ),
        forward=forward,
        backward=OperatorWork(work.flops - forward.flops, work.num_bytes - forward.num_bytes),
        activation_bytes=activation_bytes,
        dtype=trained[0][1].dtype,
        masked_flops=work.masked_flops,
    )


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise BinsgdmError(
            "the loss: must be one number that hangs on the parameters; return (module, inputs, loss), where loss "
            "makes it of the module's output"
        )


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that stand in a list or sequence with others of their class, in order."""
    members = list(module) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
    are_alike = len(members) >= 2 and len({type(member) for member in members}) == 1
    if are_alike and any(True for _ in members[0].children()):
        return members
    return [block for child in module.children() for block in repeated_blocks(child)]


def _checkpoint_blocks(module: nn.Module) -> None:
    """Let each repeated block of a module keep its inputs alone and run again in backward."""
    blocks = repeated_blocks(module)
    if not blocks:
        raise BinsgdmError(
            "--checkpoint: the model has no list of modules of one class: call torch.utils.checkpoint in its forward"
        )
    for block in blocks:
        block.forward = partial(run_again, block.forward, use_reentrant=False)


@contextmanager
def fake_tensors() -> Iterator[list[str]]:
    """Make tensors without memory inside, and compute on them as a GPU does.

    Yields:
        Where a value was read, as of `zeros_for_values`.
    """
    no_memory = FakeTensorMode(allow_non_fake_inputs=True)
    with as_on_a_gpu(), no_memory, GroupedProducts(), zeros_for_values() as places:  # type: ignore[no-untyped-call]
        yield places


def without_memory(build: Callable[[], Task]) -> tuple[ModelDescription, int]:
    """Build a model on fake tensors and describe it.

    Returns:
        What it takes, and the bytes of all its parameters, those that are not trained included.
    """
    with fake_tensors():
        task = build()
        return describe(task), _parameter_bytes(task)


def _parameter_bytes(task: Task) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in task.module.parameters())


# A step as plain data

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

    def __post_init__(self) -> None:
        for name in ("real", "checkpoint"):
            if self.compiled and getattr(self, name):
                raise BinsgdmError(
                    f"--compile, --{name}: must not be given both, since torch.compile is traced without values, and "
                    "chooses itself what it computes again; drop one"
                )
        if self.autocast and DTYPES[self.number_format] == torch.float32:
            raise BinsgdmError(f"--autocast: no effect with --dtype {self.number_format}; add --dtype bf16, or drop it")

    def forward_in(self) -> AbstractContextManager[Any]:
        """Return the context in which forward computes: with autocast in 16 bit beside parameters of fp32."""
        return torch.autocast("cpu", DTYPES[self.number_format]) if self.autocast else nullcontext()


def describe_step(source: str, options: StepOptions) -> dict[str, Any]:
    """Return what a training step of a model takes, as numbers and text.

    Raises:
        BinsgdmError: the source names no model, or one that cannot be described so.
        FailedModelError: the model's own code raises.
    """
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it logs what it raises
    with nullcontext(list[str]()) if options.real else fake_tensors() as places:
        model = _source_model(source, options)
        task = _made(model, options, source)
        places.clear()  # of values that the model is made of, such as rates of dropout, none changes a shape
        description = _described(task, options, source)
        again, blocks = (None, 0)
        if not options.checkpoint and not options.compiled:
            again, blocks = _checkpointed(model, options, source)
    if options.compiled:
        description = _compiled(description, model, options, source)
    batch = options.batch or DEFAULT_BATCH
    if model.has_own_batch:
        if not task.tensors[0].dim():
            raise BinsgdmError(f"{source}: its first input is one number: let the function take the batch size")
        batch = task.tensors[0].shape[0]
    made = _plain(model, task, description, options, batch)
    if again is not None:
        made["memory"]["checkpointed"] = {
            "activations_per_sample": again.activation_bytes / batch,
            "recomputed": (again.backward.flops - description.backward.flops) / description.forward.flops,
            "blocks": blocks,
        }
    return made | {"notes": [*_of_values(places), *model.notes, *_left_out(task, description, options, batch)]}


def _source_model(source: str, options: StepOptions) -> FoundModel:
    """Find the model, and refuse options that change nothing of it."""
    with _failures_explained(source, "finding the model"):
        model = find(source, ModelOptions(options.batch or DEFAULT_BATCH, options.length, options.side))
    if model.has_own_batch and options.batch is not None:
        raise BinsgdmError(f"--batch: no effect: {source} takes no batch size; let it take one, or drop the option")
    for name in ("length", "side"):
        if getattr(options, name) is not None and name not in model.takes:
            raise BinsgdmError(f"--{name}: no effect on {source}; drop it")
    return model


def _made(model: FoundModel, options: StepOptions, source: str) -> Task:
    torch.manual_seed(SEED)
    with _failures_explained(source, "making the model"):
        task = in_dtype(model.build(), torch.float32 if options.autocast else DTYPES[options.number_format])
        task.module.train()
    if not task.tensors:
        raise BinsgdmError(f"{source}: inputs without a tensor: must be a tensor, a tuple of them, or a dict by name")
    return task


def _described(task: Task, options: StepOptions, source: str, **changes: bool) -> ModelDescription:
    settings: dict[str, bool] = {"checkpoint": options.checkpoint, "causal": options.attention == "causal"} | changes
    with _failures_explained(source, "a step of the model"):
        return describe(task, forward_in=options.forward_in(), **settings)


def _checkpointed(model: FoundModel, options: StepOptions, source: str) -> tuple[ModelDescription | None, int]:
    """Describe the step with its repeated blocks run again in backward, and count these.

    None is returned of a model without such blocks, or without products, or that torch's checkpoint does not take.
    """
    task = _made(model, options, source)
    # Of a model made anew, since checkpointing changes the module.
    blocks = len(repeated_blocks(task.module))
    if not blocks:
        return None, 0
    try:
        again = _described(task, options, source, checkpoint=True)
    except BinsgdmError:
        return None, 0
    return (again if again.forward.flops else None), blocks


def _compiled(plain: ModelDescription, model: FoundModel, options: StepOptions, source: str) -> ModelDescription:
    """Return a description with what a compiled step moves and keeps."""
    from binsgdm.recording import compiled_work  # which loads torch's compiler: a second

    try:
        work = compiled_work.compiled_work(lambda: _made(model, options, source), options.forward_in())
    except Exception as error:
        raise BinsgdmError(
            f"{source}: --compile: the step cannot be traced as one graph ({type(error).__name__}: "
            f"{_first_line(error)}); count it without --compile: its time is then that of a step that is not compiled"
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
        if source in str(error):  # it is named already
            raise
        raise BinsgdmError(f"{source}: {error}") from error.__cause__
    except Exception as error:
        if type(error).__name__ in _NO_VALUES:
            raise FailedModelError(
                f"{source}: {what} needs values of tensors, and they have shapes alone ({_first_line(error)}); count "
                "it with --real, which takes the model's memory"
            ) from error
        raise FailedModelError(
            f"{source}: {what} failed with {type(error).__name__}: {_first_line(error)}; correct it, or give model and "
            "inputs by module:function"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _plain(
    model: FoundModel, task: Task, description: ModelDescription, options: StepOptions, batch: int
) -> dict[str, Any]:
    num_elements = sum(math.prod(gradient.shape) for gradient in description.gradients)
    gradient_bytes = num_elements * description.dtype.itemsize
    products = [("forward", description.forward), ("backward", description.backward)]
    libraries = ["torch", *([model.library] if model.library else [])]
    # Without the build, such as +cpu, which changes no count.
    versions = [f"{name} {importlib.metadata.version(name).partition('+')[0]}" for name in libraries]
    first = next((tensor for tensor in task.tensors if tensor.dim() > 1), None)
    of_a_sample: tuple[int, ...] = () if first is None else tuple(first.shape[1:])
    is_text = first is not None and len(of_a_sample) == 1 and not first.is_floating_point()
    return {
        "title": model.title,
        "origin": model.origin,
        "versions": ", ".join(versions),
        "sample": "x".join(map(str, of_a_sample)),  # "3x224x224"
        "tokens_per_sample": of_a_sample[0] if is_text else None,
        "batch": batch,
        "dtype": {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(description.dtype, "fp32"),
        "num_elements": num_elements,
        "tensors": [
            (gradient.name, list(gradient.shape), gradient.flops / batch) for gradient in description.gradients
        ],
        "work": {
            **{f"{name}_flops": work.flops / batch for name, work in products},
            **{f"{name}_bytes": work.num_bytes / batch for name, work in products},
            "optimizer": options.optimizer,
            "precision": options.number_format,
        },
        "memory": {
            "parameters": _parameter_bytes(task),
            "gradients": gradient_bytes,
            "optimizer": STATE_ELEMENTS[options.optimizer] * gradient_bytes,
            "activations_per_sample": description.activation_bytes / batch,
        },
    }


def _left_out(task: Task, description: ModelDescription, options: StepOptions, batch: int) -> list[str]:
    """Say what does not count as in a plain training: causal attention, and parameters that are not trained."""
    notes = []
    if masked := description.masked_flops:
        done = description.forward.flops + description.backward.flops
        causal, full = (done, done + masked) if options.attention == "causal" else (done - masked, done)
        notes.append(
            f"attention is causal: {causal / batch / 1e9:,.4g} GFLOP a sample as fused kernels skip what is masked, "
            f"{full / batch / 1e9:,.4g} with the whole score matrix; counted is --attention {options.attention}"
        )
    frozen = sum(parameter.numel() for parameter in task.module.parameters() if not parameter.requires_grad)
    if frozen:
        whole = sum(parameter.numel() for parameter in task.module.parameters())
        notes.append(f"{frozen:,} of {whole:,} elements are frozen: they have no gradients, nothing is sent for them")
    return notes


def _of_values(places: list[str]) -> list[str]:
    """Say that values were read."""
    if not places:
        return []
    more = f" and {len(places) - 3} more places" if len(places) > 3 else ""
    return [
        f"values of tensors are read at {', '.join(places[:3])}{more}, and taken as zero: where the step depends on "
        "them, count it with --real"
    ]
