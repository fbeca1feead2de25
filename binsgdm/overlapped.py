"""A session whose exchanges overlap backward: one communication thread takes the buckets in one fixed order."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Member, Protocol, RankContext
from binsgdm.exchange.thread import CommunicationThread
from binsgdm.flat_buckets import FlatBucket
from binsgdm.kernels import Kernels
from binsgdm.optimizers.base import ParamState, check_gradients
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.worker import Scheme, Worker


class OverlappedSession(Session):
    """All ranks; a bucket's exchange starts when its last gradient is ready and its predecessor's is done.

    Args:
        member: this rank, with messages carried.
        scheme: how the ranks agree on the signs.
        bucket_elements: parameters of one message.
        is_last_backward: whether no other backward follows before the step.
    """

    starts_in_backward = True

    def __init__(
        self, member: Member, scheme: Scheme, bucket_elements: int, is_last_backward: Callable[[], bool]
    ) -> None:
        super().__init__(member, scheme, bucket_elements)
        self._is_last_backward = is_last_backward
        self._handles: list[Any] = []
        self._broken = False

    def close(self) -> None:
        """Take no part in later backwards."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def reset(self, param_states: Sequence[ParamState], context: RankContext, kernels: Kernels) -> None:
        """Begin, or start over with other state."""
        self.close()
        super().reset(param_states, context, kernels)
        self._bucket_of = {s.index: bucket for bucket in self.worker.buckets for s in bucket.segments}
        self._handles = [
            param_state.parameter.register_post_accumulate_grad_hook(self._on_gradient(index))  # type: ignore[no-untyped-call]
            for index, param_state in enumerate(param_states)
            if param_state.parameter.requires_grad and index in self._bucket_of
        ]
        self._overlapped_step: _OverlappedStep | None = None
        # One parameter a bucket is enough: clipping and unscaling change all gradients of a model.
        self._watched = {bucket.segments[0].index for bucket in self.worker.buckets if bucket.segments}
        self._seen: dict[int, torch.Tensor] = {}

    def step_protocol(self, step: int, *, skip: bool) -> Protocol:
        """Wait for the exchanges that backward started, start those that it did not, agree, and apply."""
        if self._broken:
            raise BinsgdmError(
                "BinSGDM: an exchange was interrupted, and ranks may differ; start all ranks again from their "
                "checkpoints"
            )
        check_gradients("BinSGDM", [param_state.parameter for param_state in self.param_states])
        is_changed = self._is_changed_since_backward()
        overlapped_step, self._overlapped_step = self._start_step(step), None
        try:
            signs = overlapped_step.finish()
        except BaseException:
            # Some buckets were exchanged and others were not; a retry would send what other ranks do not expect.
            self._broken = True
            raise
        if skip or is_changed:
            self.worker.skip_step()
        has_moved = yield from self.check_and_apply(overlapped_step.buckets, signs)
        if is_changed:
            raise BinsgdmError(
                "BinSGDM: a gradient has changed since backward, with overlap=True: what was exchanged is the old one, "
                "and no rank has moved; to clip or scale gradients, attach with overlap=False"
            )
        return has_moved

    def _is_changed_since_backward(self) -> bool:
        """Look at a few elements of one gradient of each bucket, which is where clipping would show."""
        seen, self._seen = self._seen, {}
        same = []
        for index, before in seen.items():
            gradient = self.param_states[index].parameter.grad
            if gradient is not None:
                now = _sample(gradient)
                # NaN differs from itself; a NaN that stays NaN is no change.
                same.append(((now == before) | (now.isnan() & before.isnan())).all())
        return bool(same) and not bool(torch.stack(same).all())

    def _on_gradient(self, index: int) -> Callable[[torch.Tensor], None]:
        """Return the hook that counts a ready gradient."""

        def hook(parameter: torch.Tensor) -> None:
            # Under no_sync() gradients only accumulate; what leaves is the sum, in the last backward before the step.
            if self._is_last_backward():
                if index in self._watched and parameter.grad is not None and not parameter.grad.is_sparse:
                    self._seen[index] = _sample(parameter.grad)
                self._start_step(self.param_states[index].group["step"] + 1).count_gradient(self._bucket_of[index])

        return hook

    def _start_step(self, step: int) -> "_OverlappedStep":
        """Return this step's exchange, which begins with its first gradient."""
        if self._overlapped_step is None:
            self._overlapped_step = _OverlappedStep(self.worker, self.worker.begin_step(step), self.member)
        return self._overlapped_step


def _sample(gradient: torch.Tensor) -> torch.Tensor:
    """Return a copy of up to 16 elements."""
    return gradient.detach().reshape(-1)[:16].clone()


class _OverlappedStep:
    """The exchanges of all buckets of one step."""

    def __init__(self, worker: Worker, buckets: Sequence[FlatBucket], member: Member) -> None:
        self.buckets = buckets
        self._worker, self._member = worker, member
        self._missing = {bucket.index: worker.num_expected_gradients(bucket) for bucket in buckets}
        self._next = 0
        self._signs: list[torch.Tensor] = []
        self._thread = CommunicationThread[FlatBucket]("binsgdm-exchange", worker.device, self._exchange)

    def count_gradient(self, bucket: FlatBucket) -> None:
        """Count one gradient of a bucket; submit every bucket whose turn has come."""
        self._missing[bucket.index] -= 1
        if self._missing[bucket.index] < 0:
            raise BinsgdmError(
                "BinSGDM: a second backward before optimizer.step(); wrap all but the last in model.no_sync(), or "
                "attach with overlap=False"
            )
        # Only the next bucket in order may leave: ranks whose gradients become ready in another order still call the
        # same collectives.
        self._submit_while(lambda: self._missing[self.buckets[self._next].index] == 0)

    def finish(self) -> list[torch.Tensor]:
        """Submit the buckets that are left, wait for the thread, and return the signs of every bucket."""
        # Parameters that this backward did not reach have no gradient; their buckets leave now, as the other ranks
        # expect them.
        self._submit_while(lambda: True)
        self._thread.finish()
        return self._signs

    def _submit_while(self, may_go: Callable[[], bool]) -> None:
        while self._next < len(self.buckets) and may_go():
            self._thread.submit(self.buckets[self._next])
            self._next += 1

    def _exchange(self, bucket: FlatBucket) -> None:
        self._signs.append(self._member.run_protocol(self._worker.signs(bucket)))
