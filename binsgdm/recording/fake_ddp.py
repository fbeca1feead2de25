"""DistributedDataParallel for tensors without memory: its buckets, its hook and its waits, without its reducer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

FIRST_BUCKET_BYTES = 1 << 20
DEFAULT_CAP_MB = 25
Hook = Callable[[Any, Any], "torch.futures.Future[Any]"]


class FakeBucket:
    """What a hook asks of `dist.GradBucket`."""

    def __init__(self, index: int, parameters: list[nn.Parameter], *, is_last: bool) -> None:
        self._index, self._parameters, self._is_last = index, parameters, is_last
        self._buffer = torch.cat([_gradient(one).reshape(-1) for one in parameters])

    def index(self) -> int:
        """Return its number."""
        return self._index

    def buffer(self) -> Tensor:
        """Return its gradients in one tensor (N)."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Take another tensor in its place."""
        self._buffer = buffer

    def gradients(self) -> list[Tensor]:
        """Return views of its gradients."""
        parts = torch.split(self._buffer, [one.numel() for one in self._parameters])
        return [part.view(one.shape) for part, one in zip(parts, self._parameters, strict=True)]

    def parameters(self) -> list[nn.Parameter]:
        """Return its parameters."""
        return self._parameters

    def is_last(self) -> bool:
        """Tell whether no other bucket follows."""
        return self._is_last


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class FakeDdp(nn.Module):
    """A module whose gradients leave in DDP's buckets.

    Buckets are cut as DDP cuts them from the second step on: in the order in which gradients were ready in the first
    backward, by `torch.distributed._compute_bucket_assignment_by_size`.

    Args:
        module: to wrap.
        given: arguments of DDP, of which the group and the bucket's size matter.
    """

    def __init__(self, module: nn.Module, *_: Any, **given: Any) -> None:
        super().__init__()
        self.module = module
        self.process_group = given.get("process_group") or dist.group.WORLD
        cap_mb = given.get("bucket_cap_mb")
        cap = int((cap_mb or DEFAULT_CAP_MB) * 2**20)
        self._caps = [cap if cap_mb else FIRST_BUCKET_BYTES, cap]
        self.require_backward_grad_sync = True
        self._hook: Hook = _mean
        self._state: object = None
        self._trained = [one for one in module.parameters() if one.requires_grad]
        self._order: list[nn.Parameter] = []  # in which gradients were ready in this backward
        self._buckets: list[list[nn.Parameter]] = [self._trained]
        self._futures: list[tuple[FakeBucket, Any]] = []
        self._num_steps = 0
        for one in self._trained:
            one.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
        # As DDP does, ranks start from the parameters of rank 0.
        for one in module.state_dict().values():
            dist.broadcast(one, 0, group=self.process_group)

    def forward(self, *given: Any, **named: Any) -> Any:
        """Run the module."""
        return self.module(*given, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients accumulate."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let a hook reduce the buckets."""
        self._state, self._hook = state, hook

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        if not self.require_backward_grad_sync:
            return
        if not self._order:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._order.append(parameter)
        ready = {id(one) for one in self._order}
        # Buckets leave in order, each when all of its gradients are there.
        while len(self._futures) < len(self._buckets):
            number = len(self._futures)
            if not all(id(one) in ready for one in self._buckets[number]):
                return
            bucket = FakeBucket(number, self._buckets[number], is_last=number == len(self._buckets) - 1)
            self._futures.append((bucket, self._hook(self._state or self.process_group, bucket)))

    def _finish(self) -> None:
        """Wait for all buckets, and copy them back, as DDP's reducer does at the end of backward."""
        for bucket, future in self._futures:
            found = future.wait()
            bucket.set_buffer(found[0] if isinstance(found, list) else found)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                _gradient(parameter).copy_(gradient)
        if not self._num_steps:
            cut = dist._compute_bucket_assignment_by_size  # type: ignore[attr-defined]
            sizes = cut([one.detach() for one in self._order], self._caps)[0]
            self._buckets = [[self._order[index] for index in bucket] for bucket in sizes]
        self._num_steps += 1
        self._order, self._futures = [], []


def _mean(group: Any, bucket: FakeBucket) -> Any:
    """Average as DDP does without a hook: the division comes first."""
    buffer = bucket.buffer().div_(group.size())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future()
