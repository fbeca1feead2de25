"""Number formats of a model: its parameters and inputs cast, or its step under autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from binsgdm.recording.model_zoo import Task

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
