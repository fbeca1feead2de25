"""What an operator of torch computes and moves: FLOPs of products, bytes of everything else."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import conv_flop_count, flop_registry

aten = torch.ops.aten
_MAKE_ONLY = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "resize_")
)
NAMESPACES = frozenset(("aten", "fsdp", "prims"))


class OperatorWork(NamedTuple):
    """The work of one operator.

    Attributes:
        flops: of matrix products, convolutions and attention (a multiply-add is two).
        num_bytes: read and written, of an operator that has no such products.
    """

    flops: float = 0.0
    num_bytes: float = 0.0


def causal_share(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """Return which part of the scores attention computes: those before the diagonal where it is causal, else all.

    Fused kernels skip what the mask of `is_causal` leaves out, block by block; a mask that is a tensor is computed in
    full. Query i sees min(i + 1, S) of S keys, as torch aligns the two.
    """
    names = [argument.name for argument in operator._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    if not arguments.get("is_causal") or not {"query", "key"} <= arguments.keys():
        return 1.0
    # The kernels below `scaled_dot_product_attention` have tokens before heads.
    axis = -2 if operator._schema.name.startswith("aten::_scaled_dot_product") else -3
    queries, keys = (int(arguments[name].shape[axis]) for name in ("query", "key"))
    square = min(queries, keys)
    return (square * (square + 1) / 2 + max(queries - keys, 0) * keys) / (queries * keys)


def work_of(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> OperatorWork:
    """Return the work of a call of an operator; attention counts in full, also where `causal_share` is less.

    Source: torch.utils.flop_counter, but for backward of convolutions and attention on a CPU (`FLOPS`).
    """
    # Operators of another library than torch may have none.
    packet = getattr(operator, "_overloadpacket", None)
    count = FLOPS.get(packet) or OTHERS_FLOPS.get(operator._schema.name)
    if count is not None:
        return OperatorWork(flops=float(count(*args, **kwargs)))
    if packet in flop_registry:
        return OperatorWork(flops=float(flop_registry[packet](*args, **kwargs, out_val=result)))
    if not _moves_bytes(operator):
        return OperatorWork()
    return OperatorWork(num_bytes=float(_bytes_of(args) + _bytes_of(tuple(kwargs.values())) + _bytes_of(result)))


def is_product(operator: Any) -> bool:
    """Return whether an operator is a product, a convolution or attention, of which FLOPs count and not bytes."""
    packet = getattr(operator, "_overloadpacket", None)
    return packet in FLOPS or packet in flop_registry or operator._schema.name in OTHERS_FLOPS


@cache
def _moves_bytes(operator: Any) -> bool:
    if getattr(operator, "is_view", True) or operator.namespace not in NAMESPACES:
        return False
    return operator._schema.name.partition("::")[2] not in _MAKE_ONLY


def _bytes_of(value: Any) -> int:
    """Return the bytes of a tensor, or of those in a list; operators know no other containers.

    torch's own walk through containers of any kind took a third of a recording.
    """
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes_of, value)) if isinstance(value, (tuple, list)) else 0


def _convolution_backward(
    grad_out: Any, inputs: Any, weight: Any, _bias: Any, _stride: Any, _padding: Any, _dilation: Any,
    transposed: bool, _output_padding: Any, _groups: int, asked: Sequence[bool],
) -> int:  # fmt: skip
    """Count backward of a convolution: each gradient that is asked for costs what forward did.

    torch 2.13's own formula counts the gradient of a grouped convolution's weight as if it had one group, 32 times too
    much in a ResNeXt; without groups the two agree. `asked`: for the gradients of input, weight and bias.
    """
    forward_flops: int = conv_flop_count(
        list(inputs.shape), list(weight.shape), list(grad_out.shape), transposed=transposed
    )
    return sum(asked[:2]) * forward_flops


def grouped_shape(first: Any, second: Any, offs: Any = None) -> tuple[int, ...]:
    """Return the shape of grouped products, as those of experts: a group takes some rows, or some of what is summed.

    Two matrices give one product for each group, of the part of the sums that is its own; in all other cases the
    groups share rows or columns out, or come as a batch.
    """
    if first.dim() == second.dim() == 2:
        return (offs.numel(), first.shape[0], second.shape[1])
    if first.dim() == second.dim():
        return (first.shape[0], first.shape[1], second.shape[2])
    return (first.shape[-2], second.shape[-1])


def _grouped_products(first: Any, second: Any, *_: Any, **__: Any) -> int:
    """Count grouped products: every row meets the matrix of one group, so that idle experts cost nothing."""
    groups = first.shape[0] if first.dim() == second.dim() == 3 else 1
    return int(2 * groups * first.shape[-2] * first.shape[-1] * second.shape[-1])


OTHERS_FLOPS: Mapping[str, Callable[..., int]] = {
    "transformers::grouped_mm_fallback": _grouped_products,
    # The gradients of the rows and of the weights each cost what forward did.
    "transformers::grouped_mm_fallback_backward": lambda *args, **_: 2 * _grouped_products(*args),
}
"""The same of operators of libraries, by name: they may not be there."""
FLOPS: Mapping[Any, Callable[..., int]] = {
    aten._grouped_mm: _grouped_products,
    aten._scaled_grouped_mm: _grouped_products,
    aten.convolution_backward: _convolution_backward,
    # On a CPU as on a GPU: the whole score matrix, also where half of it is masked.
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}
"""What torch's counter counts wrongly, or not."""
