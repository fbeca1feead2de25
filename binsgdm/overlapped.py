"""A session whose exchanges overlap backward: one communication thread takes the buckets in one fixed order."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from binsgdm import streams
from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Member, Protocol, RankContext, refusal
from binsgdm.exchange.thread import CommunicationThread
from binsgdm.flat_buckets import FlatBucket
from binsgdm.kernels import Kernels
from binsgdm.optimizers.base import Flag, ParamState, check_gradients
from binsgdm.optimizers.scheme import Scheme
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.worker import Worker
from binsgdm.streams import Stream


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
        self._streams = streams.of(self.worker.device)
        self._stream = self._streams.make()

    def step_protocol(self, step: int, *, skip: Flag) -> Protocol:
        """Wait for the exchanges that backward started, start those that it did not, agree, and apply."""
        if self._broken:
            raise BinsgdmError(
                "BinSGDM: an exchange was interrupted, and ranks may differ; start all ranks again from their "
                "checkpoints"
            )
        check_gradients("BinSGDM", [param_state.parameter for param_state in self.param_states])
        unchanged = self._unchanged_since_backward()
        overlapped_step, self._overlapped_step = self._start_step(step), None
        try:
            signs = overlapped_step.finish()
        except BaseException:
            # Some buckets were exchanged and others were not; a retry would send what other ranks do not expect.
            self._broken = True
            raise
        self.worker.skip_step_if(skip)
        # The host does not wait for backward here: what was found on the device goes into the finite check there.
        self.worker.require(unchanged)
        has_moved = yield from self.check_and_apply(overlapped_step.buckets, signs)
        if not has_moved and not all(unchanged):
            raise BinsgdmError(
                "BinSGDM: a gradient has changed since backward, with overlap=True: what was exchanged is the old one, "
                "and no rank has moved; to clip or scale gradients, attach with overlap=False"
            )
        return has_moved

    def _unchanged_since_backward(self) -> list[torch.Tensor]:
        """Look at a few elements of one gradient of each bucket, which is where clipping would show.

        Returns:
            For each of them a bool scalar on its device: it is as it was.
        """
        seen, self._seen = self._seen, {}
        # They were made on the streams of backward, and are freed here.
        self._streams.keep(self._streams.current(), *seen.values())
        same = []
        for index, before in seen.items():
            gradient = self.param_states[index].parameter.grad
            if gradient is not None:
                now = _sample(gradient)
                # NaN differs from itself; a NaN that stays NaN is no change.
                same.append(((now == before) | (now.isnan() & before.isnan())).all())
        return same

    def _on_gradient(self, index: int) -> Callable[[torch.Tensor], None]:
        """Return the hook that counts a ready gradient."""

        def hook(parameter: torch.Tensor) -> None:
            # Under no_sync() gradients only accumulate; what leaves is the sum, in the last backward before the step.
            if self._is_last_backward():
                overlapped_step = self._start_step(self.param_states[index].group["step"] + 1)
                gradient = parameter.grad
                if gradient is not None and not gradient.is_sparse:
                    self.worker.take_gradient(index, gradient)
                    if index in self._watched:
                        self._seen[index] = _sample(gradient)
                overlapped_step.count_gradient(self._bucket_of[index], self._streams.current())

        return hook

    def _start_step(self, step: int) -> "_OverlappedStep":
        """Return this step's exchange, which begins with its first gradient."""
        if self._overlapped_step is None:
            try:
                buckets = self.worker.begin_step(step)
            except BinsgdmError as error:
                self.member.run_protocol(refusal(error))
                raise
            self._overlapped_step = _OverlappedStep(self.worker, buckets, self.member, self._stream)
        return self._overlapped_step


def _sample(gradient: torch.Tensor) -> torch.Tensor:
    """Return a copy of up to 16 elements."""
    return gradient.detach().reshape(-1)[:16].clone()


class _OverlappedStep:
    """The exchanges of all buckets of one step."""

    def __init__(self, worker: Worker, buckets: Sequence[FlatBucket], member: Member, stream: Stream) -> None:
        self.buckets = buckets
        self._worker, self._member = worker, member
        self._missing = {bucket.index: worker.num_expected_gradients(bucket) for bucket in buckets}
        self._next = 0
        self._signs: list[torch.Tensor] = []
        self._streams = streams.of(worker.device)
        self._sources: dict[int, set[Stream]] = {bucket.index: set() for bucket in buckets}
        self._thread = CommunicationThread[FlatBucket]("binsgdm-exchange", worker.device, self._exchange, stream=stream)

    def count_gradient(self, bucket: FlatBucket, source: Stream) -> None:
        """Count one gradient of a bucket, written on a stream; submit every bucket whose turn has come."""
        self._missing[bucket.index] -= 1
        if self._missing[bucket.index] < 0:
            raise BinsgdmError(
                "BinSGDM: a second backward before optimizer.step(); wrap all but the last in model.no_sync(), or "
                "attach with overlap=False"
            )
        # Backward writes a gradient on the stream of its forward, so those of a bucket may come from several.
        self._sources[bucket.index].add(source)
        # Only the next bucket in order may leave: ranks whose gradients become ready in another order still call the
        # same collectives.
        self._submit_while(lambda: self._missing[self.buckets[self._next].index] == 0)

    def finish(self) -> list[torch.Tensor]:
        """Submit the buckets that are left, wait for the thread, and return the signs of every bucket."""
        current = self._streams.current()
        # Parameters that this backward did not reach have no gradient, or one from before, which the current stream
        # may read; their buckets leave now, as the other ranks expect them.
        for bucket in self.buckets[self._next :]:
            self._sources[bucket.index].add(current)
        self._submit_while(lambda: True)
        self._thread.finish()
        self._worker.drop_gradients()
        # The signs may be freed without more: their memory is of the exchange's stream, which begins its next bucket
        # behind a gradient, and so behind the update that reads them.
        return self._signs

    def _submit_while(self, may_go: Callable[[], bool]) -> None:
        while self._next < len(self.buckets) and may_go():
            bucket = self.buckets[self._next]
            self._thread.submit(bucket, self._sources[bucket.index])
            self._next += 1

    def _exchange(self, bucket: FlatBucket) -> None:
        self._signs.append(self._member.run_protocol(self._worker.signs(bucket)))
        self._streams.keep(self._streams.current(), *self._worker.drop_replaced_gradients(bucket))
