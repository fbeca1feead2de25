"""One rank's end of a system at work in DDP: buckets go to a thread, means come back."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm import GroupName, RankContext
from binsgdm.comm.groups import Groups
from binsgdm.comm.replicas import check_same_settings, comparable
from binsgdm.comm.thread import CommunicationThread
from binsgdm.comm.transport import Sent, Transport
from binsgdm.compressors.base import REPAIR, Averager, GradientBucket, check_state, check_whole
from binsgdm.errors import BinsgdmError, printable, shown
from binsgdm.kernels import streams
from binsgdm.kernels.profiler_stages import staged
from binsgdm.parallel.local_gradients import LocalGradients, average_foreign
from binsgdm.parallel.regrouping import DdpBucket, Layout, Regrouped, Regrouping, checked_layout


class _PendingBucket(NamedTuple):
    """A bucket to exchange, or why this rank cannot; and who waits for the mean."""

    bucket: GradientBucket | Regrouped | BinsgdmError
    context: RankContext
    waiting: DdpBucket | Regrouped


class GradientExchange:
    """One rank's end of a system at work in DDP.

    Buckets are exchanged in DDP's order, which is the same on all ranks, by one thread, on process groups of its own.
    After a state was loaded they are those of the run that was saved, whatever DDP's are.

    Attributes:
        system: with its state.
        step: of the coming backward, from 1; draws and periods count by it.
    """

    def __init__(  # noqa: PLR0913
        self,
        model: DistributedDataParallel,
        system: Averager,
        groups: Groups,
        *,
        seed: int,
        on_sent: Callable[[Sent], None] | None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.system = system
        # As text: a checkpoint that is loaded with weights_only takes no other objects.
        self._settings = {
            name: value if isinstance(value, str) else shown(value) for name, value in (settings or {}).items()
        }
        self.step = 1
        self._numbers = {parameter: number for number, parameter in enumerate(model.parameters())}
        self._layout: Layout | None = None  # of the state that was loaded
        self._regrouping: Regrouping | None = None
        self._seen: list[tuple[int, ...]] = []
        self._num_backwards = 0
        self._plain = LocalGradients(model)  # of which none stays local
        self._is_detached = False
        self._seed = seed
        # It alone holds the groups: connections close, and the others notice, when it lets go of them.
        self._transport: Transport | None = Transport(groups, on_sent, "compress_gradients")
        self._member = self._transport.member()
        self._is_state_checked = False
        self._thread: CommunicationThread[_PendingBucket] | None = None
        self._stream: streams.Stream = None
        self._has_failed = False

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # A copied or unpickled DDP model has a reducer without a hook, and so no exchange.
        return type(None), ()

    def state_dict(self) -> dict[str, Any]:
        """Return step, layout of buckets, settings and state of the system; each rank saves its own, between two steps.

        The layout is None after the first backward alone: DDP forms its buckets anew after that.
        """
        layout = self._layout or (tuple(self._seen) if self._num_backwards > 1 else None)
        state = self.system.state_dict()
        return {"step": self.step, "layout": layout, "settings": dict(self._settings), "system": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on this rank; every rank must, before its first backward.

        The first backward compares what all ranks must have alike (the step, the layout, factors) and refuses on all
        ranks. From then on buckets are those of the saved run, so that it goes on bit for bit. A state of other options
        or another seed is taken with a warning.

        Raises:
            BinsgdmError: it is no such state, or that of another system; or backward has run already. Nothing is taken.
        """
        if self._is_state_checked:
            raise BinsgdmError(
                "compress_gradients: a state after the first backward: must be loaded before, on all ranks; wrap the "
                "module anew, compress and load again"
            )
        former: dict[str, Any] = {"layout": None, "settings": self._settings}  # saved neither
        given = former | dict(state) if isinstance(state, Mapping) else state
        check_state("compress_gradients", given, ("layout", "settings", "step", "system"))
        check_whole("compress_gradients: step of the state", given["step"], low=1, high=2**32 - 1)
        layout = None if given["layout"] is None else checked_layout(given["layout"], len(self._numbers))
        others = self._other_settings(given["settings"])
        self.system.load_state_dict(given["system"])
        self.step, self._layout = given["step"], layout
        if others:
            warnings.warn(
                f"compress_gradients: a state of {', '.join(others)}: the run goes on, but not bit for bit",
                stacklevel=2,
            )
        if layout is None and self.step > 1:
            warnings.warn(
                f"compress_gradients: a state of step {self.step} without a layout, saved after one backward or by a "
                "former version: the run goes on, but not bit for bit, as draws follow buckets",
                stacklevel=2,
            )

    def _other_settings(self, saved: object) -> list[str]:
        """Return what a state was saved with, where that is not what this exchange was given."""
        if not isinstance(saved, Mapping) or not all(isinstance(one, str) for one in (*saved, *saved.values())):
            raise BinsgdmError(f"compress_gradients: settings of the state: must be texts by name; {REPAIR}")
        own = self._settings
        if saved.get("system") != own.get("system"):
            raise BinsgdmError(
                f"compress_gradients: a state of system {shown(saved.get('system'))}: must be of "
                f"{own.get('system')!r}; compress with the system that was saved"
            )
        others = [name for name in {**own, **saved} if saved.get(name) != own.get(name)]
        return [printable(f"{name}={saved.get(name, 'unknown')}")[:60] for name in others[:5]]

    def detach(self) -> None:
        """Let DDP average the gradients from the next backward on, as without a system; every rank must call it.

        The state stays readable. DDP takes one hook in its life: for another system wrap the module anew.
        """
        self._is_detached = True
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close("compress_gradients: detach")

    def start(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":  # type: ignore[name-defined]
        """Hand a bucket to the thread; the future will hold the mean, in the bucket's dtype."""
        if self._is_detached:
            return average_foreign(self._plain, bucket)
        if self._has_failed or self._transport is None:
            self._finish()  # raises what has failed, if that was a bucket of this backward
            raise BinsgdmError(
                "compress_gradients: an exchange failed before, and ranks may differ; start all ranks again "
                "from their checkpoints"
            )
        buffer = bucket.buffer()
        future = streams.of(buffer.device).future()
        # In this order: whoever reads the copy waits for all that was enqueued before the submission.
        try:
            thread = self._thread or self._begin(buffer.device)
            for pending, sources in self._pending(bucket, future):
                thread.submit(pending, sources)
            # DDP numbers buckets from 0 in each backward; the last one ends the step.
            if bucket.is_last():
                self._end()
        except (
            RuntimeError,
            BinsgdmError,
        ) as error:
            # Too little memory for the copy, or buckets that do not fit: no item is there that could fail.
            self._has_failed = True
            self._abort(str(error).splitlines()[0])
            raise
        return future

    def _begin(self, device: torch.device) -> "CommunicationThread[_PendingBucket]":
        """Begin a backward."""
        # DDP has no hook for the end of backward; autograd runs this callback when backward is done, as DDP's own
        # reducer does.
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        except RuntimeError as error:
            raise BinsgdmError(_JOINED) from error
        self._stream = self._stream or streams.of(device).make()
        self._regrouping = None if self._layout is None else Regrouping(self._layout)
        self._seen = []
        self._thread = CommunicationThread("binsgdm-compress", device, self._exchange, self._on_failure, self._stream)
        return self._thread

    def _end(self) -> None:
        """End a backward, whose last bucket was submitted."""
        if self._regrouping is not None:
            self._regrouping.check_done()
        self.step += 1
        self._num_backwards += 1

    def _pending(
        self, bucket: Any, future: "torch.futures.Future[torch.Tensor]"
    ) -> Iterator[tuple[_PendingBucket, set[streams.Stream]]]:
        """Yield what can be exchanged now that a bucket of DDP is there, and the streams that wrote it."""
        gradients = self._gradients(bucket)
        numbers = tuple(self._numbers[parameter] for parameter in bucket.parameters())
        waiting = DdpBucket(numbers, bucket.buffer(), future)
        here = streams.of(bucket.buffer().device).current()
        self._seen.append(numbers)
        regrouping = self._regrouping
        if isinstance(gradients, BinsgdmError) or regrouping is None or regrouping.is_next(numbers):
            yield _PendingBucket(gradients, self._context(bucket.index()), waiting), {here}
            return
        for index, regrouped in regrouping.add(gradients, waiting, here):
            sources = {gradient.source for gradient in regrouped.gradients}
            yield _PendingBucket(regrouped, self._context(index), regrouped), sources

    def _context(self, index: int) -> RankContext:
        return replace(self._member.context(seed=self._seed, step=self.step), bucket=index)

    @staged("copy_gradients")
    def _gradients(self, bucket: Any) -> GradientBucket | BinsgdmError:
        """Return the gradients, or the error for which there are none; the thread raises it when it is their turn."""
        parameters, gradients = bucket.parameters(), bucket.gradients()
        for gradient in (bucket.buffer(), *gradients):
            if gradient.is_sparse or gradient.is_complex():
                kind = "sparse" if gradient.is_sparse else "complex"
                return BinsgdmError(
                    f"compress_gradients: a {kind} gradient of shape {tuple(gradient.shape)}: must be dense and real; "
                    "use a dense layer, such as Embedding(sparse=False)"
                )
        return GradientBucket(
            # A copy: DDP reuses the memory of its bucket, and the thread reads the values later.
            values=torch.cat([gradient.reshape(-1) for gradient in gradients]).to(torch.float32),
            parameters=tuple(self._numbers[parameter] for parameter in parameters),
            shapes=tuple(tuple(parameter.shape) for parameter in parameters),
        )

    def _exchange(self, pending: _PendingBucket) -> None:
        """Hand the mean to whoever waits for it."""
        pending.waiting.finish(self._mean(pending))

    def _on_failure(self, pending: _PendingBucket, error: BaseException) -> None:
        """Tell the others why there is no mean, and end DDP's wait for it; nobody reads the value: backward raises."""
        self._has_failed = True
        self._abort(str(error) or type(error).__name__)
        pending.waiting.give_up()

    @staged("average_bucket")
    def _mean(self, pending: _PendingBucket) -> torch.Tensor:
        if self._transport is None:
            raise AssertionError("a broken exchange has no transport")
        if not self._is_state_checked:
            self._check_same_state(pending.context.step)
        if isinstance(pending.bucket, BinsgdmError):
            raise pending.bucket
        bucket = pending.bucket
        bucket.keep()  # made on a stream of backward, and freed while this one reads them
        if isinstance(bucket, Regrouped):
            bucket = bucket.bucket()
        if not bucket.values.numel():
            return bucket.values
        return self._transport.run(self.system.mean(bucket, pending.context))

    def _check_same_state(self, step: int) -> None:
        """Check once, before the first exchange, that all ranks have alike what must be alike."""
        # Checked at the first exchange and not on loading: only then have all ranks loaded, and all are
        # at the same call.
        common = self.system.common_values()
        compared = comparable(common)
        group = self.system.common_group
        self._compare({"step": step, "layout": self._layout} | (compared if group == "world" else {}), "world")
        if group != "world":
            self._compare(compared, group)
        self._is_state_checked = True

    def _compare(self, settings: Mapping[str, Any], group: GroupName) -> None:
        transport = self._transport
        if transport is None:
            raise AssertionError("a broken exchange has no transport")
        transport.guarded(
            lambda: check_same_settings("compress_gradients: state", settings, group=transport.group(group)),
            f"the comparison of states in {group}",
        )

    def _abort(self, reason: str) -> None:
        """Tell the others, and drop all that holds connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort(reason)

    def _finish(self) -> None:
        """Wait for the buckets of this backward, and raise its error, which DDP itself would not show."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.finish()
            self._wait()

    def _wait(self) -> None:
        """Wait over NCCL for what was exchanged: where the user's own code reads a result, a lost rank blocks it."""
        if self._transport is None:
            return
        try:
            self._transport.wait("the exchange of gradients")
        except BinsgdmError as error:
            self._has_failed = True
            self._abort(str(error))
            raise


_JOINED = (
    "compress_gradients: a backward inside DDP.join() that sends zeros for a rank without batches: most systems take "
    "them for gradients; give all ranks as many batches"
)


def exchange_bucket(
    state: GradientExchange,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:  # not as text, which DDP refuses
    """Hand a bucket of DDP to an exchange: the hook that `register_comm_hook` takes."""
    return state.start(bucket)
