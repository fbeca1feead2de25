"""Short trainings with exchanges beside backward, in which the GPU is late with what should be waited for.

A wait that is missing shows where what should be waited for comes late; memory that is given away too early shows
where its next owner fills it with NaN. So kernels that only pass time come before each layer's backward, before each
exchange or before the update.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm import groups as grouping
from binsgdm.comm.groups import Groups
from binsgdm.comm.transport import Transport
from binsgdm.compressors.registry import make
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.local_steps import DiLoCo
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Rounding, Scheme
from binsgdm.parallel.ddp_hook import GradientExchange, exchange_bucket
from binsgdm.parallel.overlapped import OverlappedSession

Late = Literal["nothing", "backward", "exchange", "update"]
STEPS, LAYERS = 3, 6
LOCAL_STEPS = 8  # in which two exchanges begin and end
LATE_CYCLES = 4_000_000  # 2 to 3 ms
OPTIONS: dict[str, dict[str, Any]] = {name: {"ratio": 0.05} for name in ("top_k", "ms_top_k", "random_k")}
BYTES_PER_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class LateTraining:
    """Short trainings in which something comes late.

    Attributes:
        groups: of this rank.
        device: of the parameters.
        side: rows and columns of each layer's weights.
        late: what.
    """

    groups: Groups
    device: torch.device
    side: int
    late: Late = "nothing"

    def with_binsgdm(
        self, scheme: Scheme, *, overlap: bool, rounding: Rounding = "random", kernels: str | None = None
    ) -> list[torch.Tensor]:
        """Return the parameters after a few steps of BinSGDM."""
        model = self._model()
        optimizer = BinSGDM(model.parameters(), lr=0.01, rounding=rounding, kernels=kernels)
        where = Transport(self.groups).member(), scheme, self.side**2
        session = OverlappedSession(*where, lambda: True) if overlap else Session(*where)
        optimizer.join(session)
        worker = session.worker
        # On the stream of the exchange and of the step, right before each of them.
        worker.signs = self._after_pause("exchange", worker.signs)  # type: ignore[method-assign]
        worker.apply = self._after_pause("update", worker.apply)  # type: ignore[method-assign]
        return self._train(model, optimizer)

    def with_system(self, name: str) -> list[torch.Tensor]:
        """Return the parameters after a few steps with a system in DDP's hook."""
        model, _, optimizer = self._hooked(name)
        return self._train(model, optimizer)

    def with_resumed_system(self, name: str) -> list[torch.Tensor]:
        """Return the parameters after steps before and after a state with what the system lost is loaded."""
        # With parameters that may be unused DDP never forms its buckets anew: a loaded state is then used as it is.
        model, exchange, optimizer = self._hooked(name, find_unused_parameters=True)
        self._train(model, optimizer)
        state = exchange.state_dict()
        del model, exchange, optimizer
        model, exchange, optimizer = self._hooked(name, find_unused_parameters=True)
        exchange.load_state_dict(state)
        del state
        return self._train(model, optimizer)

    def _hooked(self, name: str, **ddp: Any) -> tuple[nn.Module, GradientExchange, torch.optim.Optimizer]:
        layer_mb = self.side**2 * torch.float32.itemsize / BYTES_PER_MIB
        model = DistributedDataParallel(self._model(), bucket_cap_mb=layer_mb, **ddp)
        rank, world_size = self.groups.rank, self.groups.world_size
        system = make(name, rank=rank, world_size=world_size, **OPTIONS.get(name, {}))
        system.mean = self._after_pause("exchange", system.mean)  # type: ignore[method-assign]
        exchange = GradientExchange(model, system, self.groups, seed=0, on_sent=None)
        model.register_comm_hook(exchange, exchange_bucket)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: self._pause("update"))
        return model, exchange, optimizer

    def with_diloco(self, exchange: str, *, overlap: bool) -> list[torch.Tensor]:
        """Return parameters and outer state after steps of DiLoCo, whose exchanges two inner steps hide.

        Without `overlap` an exchange is over where it begins, and applied in the same step as with it.
        """
        model = self._model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        # Groups are made once: a communicator of NCCL takes a part of a second.
        with mock.patch.object(grouping, "make", return_value=self.groups):
            optimizer = DiLoCo(inner, inner_steps=3, overlap_steps=2, exchange=exchange)
        optimizer._overlaps = overlap
        outer: Any = optimizer.outer
        outer.system.mean = self._after_pause("exchange", outer.system.mean)
        outer.finish = self._after_pause("update", outer.finish)
        values = self._train(model, optimizer, LOCAL_STEPS)
        return values + [one for fragment in outer.fragments for one in (fragment.outer, fragment.momentum)]

    def _model(self) -> nn.Module:
        return Chain(self.side, self.device, partial(self._pause, "backward"))

    def _train(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.groups.rank)
        for _ in range(steps):
            model(torch.randn(self.side, self.side, generator=generator).to(self.device)).backward()
            optimizer.step()
            optimizer.zero_grad()
            self._spoil_free_memory()
        return [parameter.detach().clone() for parameter in model.parameters()]

    def _spoil_free_memory(self) -> None:
        """Take memory of the size of the gradients, which were freed just now, and give it back."""
        for _ in [torch.full((self.side, self.side), torch.nan, device=self.device) for _ in range(2 * LAYERS)]:
            pass

    def _after_pause(self, what: Late, call: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any) -> Any:
            self._pause(what)
            return call(*args)

        return paused

    def _pause(self, what: Late) -> None:
        if self.late == what and self.device.type == "cuda":
            torch.cuda._sleep(LATE_CYCLES)  # type: ignore[no-untyped-call]


class Chain(nn.Module):
    """Layers of one product an element, whose gradients are the same bits on any stream.

    Args:
        side: rows and columns of each layer's weights.
        device: of the weights.
        before_backward: called before a layer's backward.
    """

    def __init__(self, side: int, device: torch.device, before_backward: Callable[[], None]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(side, side, generator=generator).to(device) for _ in range(LAYERS)]
        self._weights = nn.ParameterList(weights)
        self._before_backward = before_backward

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of all results."""
        for weight in self._weights:
            values = _CallBefore.apply((values * weight).tanh(), self._before_backward)  # type: ignore[no-untyped-call]
        return values.sum()


class _CallBefore(torch.autograd.Function):
    """Gives values on; calls something before the backward of what they come from."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        ctx.call = call
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.call()
        return gradient, None
