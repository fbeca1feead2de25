"""A small model under DDP that two gloo ranks train in any of the ways."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import GradientExchange, compress_gradients
from tests.works.table import Way

CAP_MB = 0.002
"""Of a bucket: the model has several."""
STEPS = 3
DENSE_STEPS = 1
"""Of 1-bit Adam: both stages are seen."""
TIMEOUT = timedelta(seconds=100)
OPTIONS: dict[str, dict[str, Any]] = {"power_sgd": {"matrix_rank": 1}, "qsgd": {"bits": 4}}

FOLDER: list[Path] = []
"""Of all ranks, once they have started."""


def shared_folder(name: str) -> Path:
    """Return a folder that both ranks have."""
    found = FOLDER[0] / name
    found.mkdir(exist_ok=True)
    return found


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))


def batch(step: int, micro_batch: int = 0) -> torch.Tensor:
    """Return inputs of this rank's own."""
    seed = 1000 * dist.get_rank() + 10 * step + micro_batch
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))


def optimizer_of(way: Way, parameters: Iterable[Any], **settings: Any) -> torch.optim.Optimizer:
    if way.column == "adam":
        return OneBitAdam(parameters, **{"lr": 0.01, "dense_steps": DENSE_STEPS} | settings)
    if way.column == "hook":
        return torch.optim.SGD(parameters, **{"lr": 0.1, "momentum": 0.9} | settings)
    return binsgdm.BinSGDM(parameters, **{"lr": 0.01} | settings)


def join(way: Way, optimizer: Any, ddp: Any, **options: Any) -> GradientExchange | None:
    """Let an optimizer, or in the way of the hook a model, exchange with the other rank."""
    options = {"timeout": TIMEOUT} | options
    if way.column == "hook":
        return compress_gradients(ddp, way.system, **OPTIONS[way.system] | options)
    if way.column == "adam":
        attach_one_bit_adam(optimizer, ddp, **options)
    else:
        binsgdm.attach(optimizer, ddp, overlap=way.column == "overlap", bucket_cap_mb=CAP_MB, **options)
    return None


class Training:
    """A model under DDP with its optimizer, joined.

    Args:
        way: how.
        module: that DDP wraps.
        settings: of the optimizer.
        ddp_options: of DDP.
    """

    def __init__(
        self, way: Way, module: nn.Module | None = None, settings: dict[str, Any] | None = None, **ddp_options: Any
    ) -> None:
        self.way = way
        self.module = module or model()
        self.ddp = DistributedDataParallel(self.module, **{"bucket_cap_mb": CAP_MB} | ddp_options)
        self.forward: Callable[[torch.Tensor], torch.Tensor] = self.ddp
        self.optimizer: Any = optimizer_of(way, self.ddp.parameters(), **settings or {})
        self.exchange = join(way, self.optimizer, self.ddp)

    def loss(self, step: int, micro_batch: int = 0) -> torch.Tensor:
        return self.forward(batch(step, micro_batch)).square().mean()

    def backward(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.loss(step).backward()

    def step(self, step: int) -> None:
        self.backward(step)
        self.optimizer.step()

    def run(self, steps: Iterable[int] = range(STEPS)) -> "Training":
        for step in steps:
            self.step(step)
        return self

    def parameters(self) -> list[torch.Tensor]:
        """Return copies, which are the same on both ranks."""
        binsgdm.check_replicas(self.module)
        return [parameter.detach().clone() for parameter in self.module.parameters()]


def check_equal(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Compare to the bit."""
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert torch.equal(one, other), f"parameter {number}: off by {(one - other).abs().max():g}"


def train(ddp: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    """Take all steps of a model with several optimizers."""
    for step in range(STEPS):
        ddp.zero_grad()
        ddp(batch(step)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def check_moved(module: nn.Module) -> None:
    """Refuse a training that has done nothing, and replicas that differ."""
    binsgdm.check_replicas(module)
    for number, (now, before) in enumerate(zip(module.parameters(), model().parameters(), strict=True)):
        assert not torch.equal(now, before), f"parameter {number} has not moved"
        assert now.isfinite().all()


_plain: dict[Way, list[torch.Tensor]] = {}


def plain(way: Way) -> list[torch.Tensor]:
    """Return where a training ends that has nothing of what the rows are about."""
    if way not in _plain:
        training = Training(way).run()
        check_moved(training.module)
        _plain[way] = training.parameters()
    return _plain[way]
