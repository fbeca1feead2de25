"""A session whose exchanges overlap backward: one communication thread takes the buckets in one fixed order."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from binsgdm.comm import Member, Protocol, RankContext
from binsgdm.comm.failure import REPAIR
from binsgdm.comm.flat_buckets import FlatBucket
from binsgdm.comm.thread import CommunicationThread
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import Kernels, streams
from binsgdm.kernels.streams import Stream
from binsgdm.optimizers.base import Flag, ParamState, check_gradient, frames_to_the_user
from binsgdm.optimizers.session import Session
from binsgdm.optimizers.settings import Scheme
from binsgdm.optimizers.worker import Worker

_SECOND_BACKWARD = (
    "BinSGDM: a second backward before optimizer.step(), which adds to what was sent; wrap all but the last in "
    "model.no_sync(), or attach with overlap=False; if another optimizer steps now, call binsgdm.detach(optimizer)"
)
_STEP_CALLED = "optimizer.step() called after backward"
_CHANGED = (
    "BinSGDM: a gradient has changed since backward, with overlap=True: what was exchanged is the old one, and no rank "
    "has moved; to clip, scale or mask gradients, attach with overlap=False"
)
_HOOKED_LATER = (
    "BinSGDM: parameter {}: a hook that was registered after attach runs on its gradient after the exchange has begun; "
    "register it before attach, or attach with overlap=False"
)


class OverlappedSession(Session):
    """All ranks; a bucket's exchange starts when its last gradient is ready and its predecessor's is done.

    Args:
        member, scheme, bucket_elements: as of `Session`.
        is_last_backward: whether no other backward follows before the step.
    """

    starts_in_backward = True

    def __init__(
        self, member: Member, scheme: Scheme, bucket_elements: int, is_last_backward: Callable[[], bool]
    ) -> None:
        super().__init__(member, scheme, bucket_elements)
        self._is_last_backward = is_last_backward
        self._hooks: dict[int, Any] = {}  # by parameter
        self._look: Any = None
        self._is_broken = self._has_left_out = False
        self._overlapped_step: _OverlappedStep | None = None

    def close(self) -> None:
        """Take no part in later backwards; what one has started is exchanged to its end, on all ranks."""
        if self._overlapped_step is not None:
            with suppress(BinsgdmError):  # of an exchange that has failed; nothing follows it here
                self._finish(self._overlapped_step)
        for handle in (*self._hooks.values(), self._look):
            if handle is not None:
                handle.remove()
        self._hooks, self._look = {}, None

    def reset(self, param_states: Sequence[ParamState], context: RankContext, kernels: Kernels) -> None:
        """Begin, or start over with other state."""
        self.close()
        super().reset(param_states, context, kernels)
        self._bucket_of = {s.index: bucket for bucket in self.worker.buckets for s in bucket.segments}
        self._hooks = {
            index: param_state.parameter.register_post_accumulate_grad_hook(self._on_gradient(index))  # type: ignore[no-untyped-call]
            for index, param_state in enumerate(param_states)
            if param_state.parameter.requires_grad and index in self._bucket_of
        }
        self._was_zeroed = True
        if len(self._hooks) == 1:
            alone = param_states[next(iter(self._hooks))].parameter

            def look_before(_: torch.Tensor) -> None:  # backward adds to it
                self._was_zeroed = _is_zero(alone.grad)

            self._look = alone.register_hook(look_before)
        # One parameter a bucket is enough: clipping and unscaling change all gradients of a model.
        self._watched = {bucket.segments[0].index for bucket in self.worker.buckets if bucket.segments}
        self._seen: dict[int, torch.Tensor] = {}
        self._streams = streams.of(self.worker.device)
        self._stream = self._streams.make()

    def step_protocol(self, step: int, *, skip: Flag, refused: BinsgdmError | None = None) -> Protocol:
        """Wait for the exchanges that backward started, start those that it did not, agree, and apply."""
        if self._is_broken:
            raise BinsgdmError(f"BinSGDM: an exchange was interrupted, and ranks may differ; {REPAIR}")
        overlapped_step = self._start_step(step)
        checks = (self._check_gradients, overlapped_step.check_unchanged, self._check_hooks)
        refused = refused or overlapped_step.refused or next(filter(None, map(self._refusal, checks)), None)
        unchanged = self._unchanged_since_backward()
        signs = self._finish(overlapped_step)
        self.worker.skip_step_if(skip)
        # The host does not wait for backward here: what was found on the device goes into the finite check there.
        self.worker.finite.extend(unchanged)
        terms = self._terms(step, {_STEP_CALLED: True}, refused)
        has_moved = yield from self.check_and_apply(overlapped_step.buckets, signs, terms)
        if not has_moved and not all(unchanged):
            raise BinsgdmError(_CHANGED)
        return has_moved

    def _check_hooks(self) -> None:
        """Refuse hooks that may have changed a gradient in backward, after this session's own has sent it."""
        if self.member.stands_for_all:  # a recording, which takes notes in hooks of its own
            return
        for index, handle in self._hooks.items():
            hooks = self.param_states[index].parameter._post_accumulate_grad_hooks
            if hooks and next(reversed(hooks)) != handle.id:
                raise BinsgdmError(_HOOKED_LATER.format(index))

    def _unchanged_since_backward(self) -> list[torch.Tensor]:
        """Look at a few elements of one gradient of each bucket, which is where clipping by `.data` would show.

        Versions, which `_OverlappedStep.check_unchanged` compares, do not count what is written to `gradient.data`.

        Returns:
            For each of them a bool scalar on its device: it is as it was.
        """
        seen, self._seen = self._seen, {}
        # They were made on the streams of backward, and are freed here.
        self._streams.keep(self._streams.current(), *seen.values())
        same = []
        for index, before in seen.items():
            gradient = self.param_states[index].parameter.grad
            if gradient is not None and gradient.layout == before.layout:  # or the step is refused anyway
                now = _sample(gradient)
                # NaN differs from itself; a NaN that stays NaN is no change.
                same.append(((now == before) | (now.isnan() & before.isnan())).all())
        return same

    def _on_gradient(self, index: int) -> Callable[[torch.Tensor], None]:
        """Return the hook that counts a ready gradient."""

        def hook(parameter: torch.Tensor) -> None:
            # Under no_sync() gradients only accumulate; what leaves is the sum, in the last backward before the step.
            if self._is_last_backward():
                step = self.param_states[index].group["step"] + 1
                overlapped_step = self._start_step(step)
                if index in overlapped_step.counted:
                    if not self._is_zeroed(index, overlapped_step):
                        # Raised in the step, on all ranks: an error in here would end DDP's backward for good.
                        overlapped_step.refused = BinsgdmError(_SECOND_BACKWARD)
                        return
                    self._leave_out(overlapped_step)
                    overlapped_step = self._start_step(step)
                self._take(index, parameter, overlapped_step)
                overlapped_step.count_gradient(index, self._bucket_of[index], self._streams.current())

        return hook

    def _take(self, index: int, parameter: torch.Tensor, overlapped_step: "_OverlappedStep") -> None:
        """Let the gradient of a parameter leave with its bucket, or the bucket without it where it cannot."""
        gradient = parameter.grad
        if gradient is None:
            return
        try:
            check_gradient("BinSGDM", parameter, gradient)
        except BinsgdmError as error:
            overlapped_step.refused = error
            self.worker.refuse()
            return
        overlapped_step.note_after_backward(index, parameter)
        self.worker.take_gradient(index, gradient)
        if index in self._watched:
            self._seen[index] = _sample(gradient)

    def _is_zeroed(self, index: int, overlapped_step: "_OverlappedStep") -> bool:
        """Tell whether this backward, of which this is the first gradient, has not added to that of a step before."""
        # The other parameters have what they had before this backward; of the only one a hook has looked before it.
        others = [self.param_states[other].parameter.grad for other in overlapped_step.counted if other != index]
        return all(map(_is_zero, others)) if others else self._was_zeroed

    def _leave_out(self, overlapped_step: "_OverlappedStep") -> None:
        """End the exchange of a backward that no step has followed, if that is so on all ranks."""

        def agree() -> Protocol:
            yield from self.agree(self._terms(overlapped_step.number, {_STEP_CALLED: False}), moves=False)
            return torch.tensor(False, device="cpu")

        self._finish(overlapped_step)
        self._seen = {}
        self.member.run_protocol(agree())
        if not self._has_left_out and overlapped_step.refused is None:
            self._has_left_out = True
            warnings.warn(
                f"BinSGDM: step {overlapped_step.number}: a backward that no optimizer.step() followed: the averages "
                "have taken in its gradients; run such a backward in model.no_sync(), or attach with overlap=False",
                stacklevel=frames_to_the_user(),
            )

    def _finish(self, overlapped_step: "_OverlappedStep") -> list[torch.Tensor]:
        """Return the signs of every bucket, once they are there."""
        self._overlapped_step = None
        try:
            return overlapped_step.finish()
        except BaseException:
            # Some buckets were exchanged and others were not; a retry would send what other ranks do not expect.
            self._is_broken = True
            raise

    def _start_step(self, step: int) -> "_OverlappedStep":
        """Return this step's exchange, which begins with its first gradient."""
        if self._overlapped_step is None:
            buckets = self.worker.begin_step(step)
            refused = self._refusal(self.worker.refresh)
            self._overlapped_step = _OverlappedStep(self.worker, buckets, self.member, self._stream, step)
            self._overlapped_step.refused = refused
        return self._overlapped_step


def _is_zero(gradient: torch.Tensor | None) -> bool:
    return gradient is None or not gradient.any()


def _sample(gradient: torch.Tensor) -> torch.Tensor:
    """Return a copy of up to 16 elements."""
    return gradient.detach().reshape(-1)[:16].clone()


class _OverlappedStep:
    """The exchanges of all buckets of one step.

    Attributes:
        counted: parameters whose gradients backward has brought.
        refused: why this rank cannot take the step.
    """

    def __init__(
        self, worker: Worker, buckets: Sequence[FlatBucket], member: Member, stream: Stream, number: int
    ) -> None:
        self.buckets, self.number = buckets, number
        self.counted: set[int] = set()
        self.refused: BinsgdmError | None = None
        self._worker, self._member = worker, member
        self._missing = {bucket.index: worker.num_expected_gradients(bucket) for bucket in buckets}
        self._next = 0
        self._signs: list[torch.Tensor] = []
        self._streams = streams.of(worker.device)
        self._sources: dict[int, set[Stream]] = {bucket.index: set() for bucket in buckets}
        self._thread = CommunicationThread[FlatBucket]("binsgdm-exchange", worker.device, self._exchange, stream=stream)
        self._parameters: dict[int, torch.Tensor] = {}
        self._backward = -1
        self._after_backward: list[tuple[torch.Tensor | None, int]] = []

    def note_after_backward(self, index: int, parameter: torch.Tensor) -> None:
        """Let the gradient of a parameter be what it is at the end of this backward."""
        self._parameters[index] = parameter
        # A checkpointed block has a backward of its own inside the backward of the model.
        if (backward := torch._C._current_graph_task_id()) != self._backward:
            self._backward = backward
            queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
            # Twice: DDP queues its own end of backward, which writes gradients, between the first bucket and the last.
            queue(lambda: queue(self._note))

    def _note(self) -> None:
        self._after_backward = self._gradients()

    def _gradients(self) -> list[tuple[torch.Tensor | None, int]]:
        """Return the gradients that were sent, as objects, with how often each was written to."""
        gradients = [parameter.grad for parameter in self._parameters.values()]
        return [(gradient, -1 if gradient is None else gradient._version) for gradient in gradients]

    def check_unchanged(self) -> None:
        """Refuse gradients that were written to or replaced since backward."""
        gradients = self._gradients()
        if len(gradients) != len(self._after_backward):
            raise BinsgdmError(
                "BinSGDM: a backward that failed before optimizer.step(), after some gradients were sent"
            )
        pairs = zip(self._after_backward, gradients, strict=True)
        if any(before is not now or then != version for (before, then), (now, version) in pairs):
            raise BinsgdmError(_CHANGED)

    def count_gradient(self, index: int, bucket: FlatBucket, source: Stream) -> None:
        """Count one gradient of a bucket, written on a stream; submit every bucket whose turn has come."""
        self.counted.add(index)
        self._missing[bucket.index] -= 1
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
