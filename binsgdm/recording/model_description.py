"""Run forward and backward of a model on tensors without memory: its gradients in ready order, FLOPs, bytes, memory."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from binsgdm.errors import BinsgdmError
from binsgdm.recording.fake_tensors import GroupedProducts, zeros_for_values
from binsgdm.recording.model_zoo import Task
from binsgdm.recording.operator_work import OperatorWork, causal_share, work_of

Format = Literal["fp32", "tf32", "bf16", "fp16"]
DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""Formats of what is kept; "tf32" rounds only the factors of a product."""


def in_dtype(task: Task, dtype: torch.dtype) -> Task:
    """Return the task with parameters, buffers and inputs of floating point in a dtype; whole numbers stay.

    Parameters are replaced one by one, since `Module.to` cannot do it with fake ones; shared ones stay shared.
    """
    made: dict[int, Any] = {}

    def cast(given: Any) -> Any:
        if not isinstance(given, Tensor) or not given.is_floating_point() or given.dtype == dtype:
            return given
        if id(given) not in made:
            found = given.detach().to(dtype)
            made[id(given)] = nn.Parameter(found, given.requires_grad) if isinstance(given, nn.Parameter) else found
        return made[id(given)]

    for module in task.module.modules():
        for held in (module._parameters, module._buffers):
            for name, given in held.items():
                held[name] = cast(given)
    keywords = {name: cast(given) for name, given in task.keywords.items()}
    return Task(module=task.module, inputs=tuple(map(cast, task.inputs)), keywords=keywords, loss=task.loss)


def autocast(number_format: Format, *, is_on: bool) -> AbstractContextManager[Any]:
    """Return the context in which forward computes in a format of 16 bit with parameters of fp32, or one of nothing."""
    return torch.autocast("cpu", DTYPES[number_format]) if is_on else nullcontext()


MIN_BLOCKS = 2


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that stand in a list or sequence with others of their class, in order."""
    members = list(module) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
    are_alike = len(members) >= MIN_BLOCKS and len({type(one) for one in members}) == 1
    if are_alike and any(True for _ in members[0].children()):
        return members
    return [block for child in module.children() for block in repeated_blocks(child)]


def checkpoint_blocks(module: nn.Module) -> int:
    """Let each repeated block of a module keep its inputs alone and run again in backward; return how many."""
    blocks = repeated_blocks(module)
    if not blocks:
        raise BinsgdmError(
            "--checkpoint: the model has no list of modules of one class: call torch.utils.checkpoint in its forward"
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return len(blocks)


_ATTENTION = functional.scaled_dot_product_attention


class ReadyGradient(NamedTuple):
    """A gradient, in the order in which backward makes them ready.

    Attributes:
        name: of the parameter.
        shape: its dimensions.
        flops: of backward of all samples since the gradient before.
    """

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
    masked_flops: float = 0.0


class _WorkSum(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what runs below it; of causal attention, if `causal`, what is before the diagonal."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = self.num_bytes = self.masked_flops = 0.0
        self._causal = causal

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        del types
        found = func(*args, **(kwargs or {}))
        work = work_of(func, args, kwargs or {}, found)
        masked = work.flops and work.flops * (1 - causal_share(func, args, kwargs or {}))
        self.masked_flops += masked
        self.flops += work.flops - (masked if self._causal else 0.0)
        self.num_bytes += work.num_bytes
        return found

    def since(self, before: OperatorWork) -> OperatorWork:
        """Return what has been added since."""
        return OperatorWork(self.flops - before.flops, self.num_bytes - before.num_bytes)

    @property
    def now(self) -> OperatorWork:
        """What has been added so far."""
        return OperatorWork(self.flops, self.num_bytes)


class _Saved:
    """Storages that autograd keeps from forward for backward."""

    def __init__(self, task: Task) -> None:
        parameters = [*task.module.parameters(), *task.inputs, *task.keywords.values()]
        self._known = {storage_of(one) for one in parameters if isinstance(one, Tensor)}
        self._kept: list[Tensor] = []  # alive, so that no other storage has the number of one of them
        self.num_bytes = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor that is saved."""
        number = storage_of(tensor)
        if number not in self._known:
            self._known.add(number)
            self._kept.append(tensor.detach())
            self.num_bytes += tensor.untyped_storage().nbytes()
        return tensor


def storage_of(tensor: Tensor) -> int:
    """Return the number of a tensor's storage, which its views share."""
    return int(tensor.untyped_storage()._cdata)


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
    trained = [(name, one) for name, one in task.module.named_parameters() if one.requires_grad]
    if not trained:
        raise BinsgdmError("the model: no parameter requires a gradient: there is nothing to train; return another")
    work, saved, ready = _WorkSum(causal=causal), _Saved(task), dict[str, tuple[tuple[int, ...], float]]()

    def note(name: str) -> Callable[[Tensor], None]:
        return lambda parameter: ready.update({name: (tuple(parameter.shape), work.flops)})

    handles = [one.register_post_accumulate_grad_hook(note(name)) for name, one in trained]  # type: ignore[no-untyped-call]
    if checkpoint:
        checkpoint_blocks(task.module)
    try:
        with work, saved_tensors_hooks(saved.keep, lambda tensor: tensor):
            with forward_in or nullcontext():
                loss = task.loss_of(task.module)
            forward, activation_bytes = work.now, saved.num_bytes
            _check_loss(loss)
            loss.backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    _check_all_are_ready([name for name, _ in trained], ready)
    return ModelDescription(
        gradients=_since_the_one_before(ready, forward.flops),
        forward=forward,
        backward=work.since(forward),
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


def _check_all_are_ready(names: list[str], ready: dict[str, Any]) -> None:
    missing = [name for name in names if name not in ready]
    if missing:
        raise BinsgdmError(
            f"the model: {len(missing)} of {len(names)} parameters get no gradient, such as {missing[0]!r}: use all in "
            "forward, or set their requires_grad to False"
        )


def _since_the_one_before(
    ready: dict[str, tuple[tuple[int, ...], float]], begin_flops: float
) -> tuple[ReadyGradient, ...]:
    found, before = [], begin_flops
    for name, (shape, flops) in ready.items():
        found.append(ReadyGradient(name, shape, flops - before))
        before = flops
    return tuple(found)


def without_memory(build: Callable[[], Task]) -> tuple[ModelDescription, int]:
    """Build a model on fake tensors and describe it.

    Returns:
        What it takes, and the bytes of all its parameters, those that are not trained included.
    """
    with fake_tensors():
        task = build()
        return describe(task), parameter_bytes(task)


def parameter_bytes(task: Task) -> int:
    """Return the bytes of all parameters of a model, those that are not trained included."""
    return sum(one.numel() * one.element_size() for one in task.module.parameters())


@contextmanager
def fake_tensors() -> Iterator[list[str]]:
    """Make tensors without memory inside, and compute on them as a GPU does.

    Yields:
        Where a value was read, as of `zeros_for_values`.
    """
    no_memory = FakeTensorMode(allow_non_fake_inputs=True)
    with as_on_a_gpu(), no_memory, GroupedProducts(), zeros_for_values() as places:
        yield places


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Fuse attention as a GPU does, and let tensors without memory be copied."""
    fused = patch.multiple(functional, scaled_dot_product_attention=_with_dropout_inside)
    with warnings.catch_warnings(), fused:
        # Who copies a module looks whether its tensors have a place in memory.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        yield


def _with_dropout_inside(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    *settings: Any,
    **named: Any,
) -> Tensor:
    """Return fused attention: a CPU has none with dropout, and a GPU's drops scores without writing them down."""
    return _ATTENTION(query, key, value, attn_mask, 0.0 * dropout_p, *settings, **named)
