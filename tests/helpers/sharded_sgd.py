"""ZeRO by hand: torch has no optimizer that scatters gradients and gathers parameters beside whole ones."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class ShardedSgd(torch.optim.Optimizer):
    """SGD on a shard of every bucket of DDP, scattered to it during backward; parameters are gathered after it.

    As in ZeRO-1 where a step has one backward that is not under `no_sync`, as in ZeRO-2 where every micro-batch has one
    and its gradients are dropped after it.
    """

    def __init__(self, module: DistributedDataParallel, lr: float, *, in_forward: bool = False) -> None:
        """Take the gradients of a module from DDP.

        Args:
            module: with its parameters in no other optimizer.
            lr: of the step.
            in_forward: whether parameters are gathered in the next forward, one bucket ahead.
        """
        super().__init__(module.parameters(), {"lr": lr})
        self._rank, self._world_size, self._in_forward = dist.get_rank(), dist.get_world_size(), in_forward
        self._gradients: dict[int, Tensor] = {}
        self._parameters: dict[int, list[nn.Parameter]] = {}
        self._updated: dict[int, Tensor] = {}
        self._gathers: dict[int, tuple[Any, Tensor]] = {}
        module.register_comm_hook(None, self._scatter)
        for layer in module.module.modules():
            if in_forward and list(layer.parameters(recurse=False)):
                layer.register_forward_pre_hook(self._before_forward)

    def _scatter(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        number, flat = bucket.index(), self._padded(bucket.buffer())
        shard = flat.new_empty(flat.numel() // self._world_size)
        self._parameters[number] = bucket.parameters()
        work = dist.reduce_scatter_single(shard, flat, async_op=True)

        def keep(_: object) -> Tensor:
            self._gradients[number] = self._gradients.get(number, 0) + shard / self._world_size
            return bucket.buffer()

        return _future(work).then(keep)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update this rank's shards, and gather those of all unless the next forward does."""
        assert closure is None
        for number, parameters in sorted(self._parameters.items()):
            flat = self._padded(torch.cat([one.flatten() for one in parameters]))
            own = flat.chunk(self._world_size)[self._rank].clone()
            self._updated[number] = own.sub_(self._gradients.pop(number), alpha=self.defaults["lr"])
        if not self._in_forward:
            for number in self._updated:
                self._gather(number)
            for number in list(self._updated):
                self._take(number)

    def forget(self) -> None:
        """Drop what the first backward has scattered: DDP cuts its buckets anew after it."""
        self._gradients.clear()
        self._parameters.clear()

    def finish(self) -> None:
        """Gather what no forward has asked for."""
        for number in list(self._updated):
            self._gather(number)
            self._take(number)

    def _before_forward(self, layer: nn.Module, _: object) -> None:
        own = next(layer.parameters(recurse=False))
        number = next((n for n, found in self._parameters.items() if any(one is own for one in found)), -1)
        if number in self._updated:
            self._gather(number)
            self._take(number)
            self._gather(number - 1)

    def _gather(self, number: int) -> None:
        if number in self._updated and number not in self._gathers:
            own = self._updated[number]
            whole = own.new_empty(own.numel() * self._world_size)
            self._gathers[number] = dist.all_gather_single(whole, own, async_op=True), whole

    @torch.no_grad()
    def _take(self, number: int) -> None:
        work, whole = self._gathers.pop(number)
        work.wait()
        del self._updated[number]
        begin = 0
        for one in self._parameters[number]:
            one.copy_(whole[begin : begin + one.numel()].view_as(one))
            begin += one.numel()

    def _padded(self, flat: Tensor) -> Tensor:
        return functional.pad(flat, (0, -flat.numel() % self._world_size))


def _future(work: Any) -> torch.futures.Future[Any]:
    """Return the future of a collective; gloo has none of a reduce-scatter, which is waited for."""
    try:
        return work.get_future()
    except RuntimeError:
        work.wait()
        ended: torch.futures.Future[Any] = torch.futures.Future()
        ended.set_result(None)
        return ended
