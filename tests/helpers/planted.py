"""Run the script of a proof, SCRIPT, with a part that is slower than its scenario says: the environment says which.

The model computes by pauses, as a host sees a GPU do: no other load of the machine changes how long they are.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from binsgdm.compressors.signs import TernGrad

LAYERS, WIDTH, FORWARD_S = 8, 512, 30e-3
COMPUTE, KERNELS, SLOW_RANK, SLOWER = "PLANTED_COMPUTE", "PLANTED_KERNELS", "PLANTED_RANK", 1.8


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradient, None


class _Layer(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.seconds = seconds

    def forward(self, values: Tensor) -> Tensor:
        return _Pause.apply(self.linear(values), self.seconds)  # type: ignore[no-any-return,no-untyped-call]


def make(batch: int) -> Any:
    factor = float(os.environ.get(COMPUTE, "1"))
    factor *= SLOWER if os.environ.get(SLOW_RANK) == os.environ["RANK"] else 1.0
    model = nn.Sequential(*(_Layer(factor * FORWARD_S / LAYERS) for _ in range(LAYERS))).bfloat16()
    return model, torch.ones(batch, WIDTH, dtype=torch.bfloat16), lambda output: output.float().mean()


def slower(work: Callable[..., Any], factor: float) -> Callable[..., Any]:
    @wraps(work)
    def call(*args: Any, **named: Any) -> Any:
        start = time.perf_counter()
        made = work(*args, **named)
        time.sleep((factor - 1) * (time.perf_counter() - start))
        return made

    return call


if __name__ == "__main__":
    for name in ("encode", "decode"):
        setattr(TernGrad, name, slower(getattr(TernGrad, name), float(os.environ.get(KERNELS, "1"))))
    sys.path.insert(0, str(Path(sys.argv[1]).parent))
    runpy.run_path(sys.argv[1], run_name="__main__")
