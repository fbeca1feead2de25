"""One DDP communication hook for every system of the registry; exchanges overlap backward."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm import streams
from binsgdm.errors import BinsgdmError
from binsgdm.exchange import RankContext
from binsgdm.exchange import groups as grouping
from binsgdm.exchange.groups import Groups
from binsgdm.exchange.replicas import check_same_settings, checksums
from binsgdm.exchange.thread import CommunicationThread
from binsgdm.exchange.transport import Sent, Transport
from binsgdm.systems.base import Averager, GradientBucket, check_whole
from binsgdm.systems.registry import check_options, make


def compress_gradients(  # noqa: PLR0913
    model: DistributedDataParallel,
    system: str,
    *,
    seed: int = 0,
    ranks_per_node: int | None = None,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
    **options: Any,
) -> "GradientExchange":
    """Let a system average the gradients of a DDP model during backward; every rank must call it before the first.

    Gradients are whatever the system makes of them: with "sign_sgd" they are +1 and -1. They are computed in fp32 and
    given back in their own dtype. A gradient that is not finite makes those of its bucket (or of its tensor, or block)
    not finite on every rank alike, so that a GradScaler skips the step everywhere. Clip after backward, when gradients
    are the averages that are alike on all ranks.

    A rank that cannot exchange a bucket (a sparse gradient, a residual of another model) raises its sentence in
    backward and closes its connections, so that the others raise in backward, too, with the same sentence, and do not
    wait. After that all ranks have to be started again. (Over NCCL the end of backward waits on the host for what was
    exchanged: only so can a rank learn that another one is gone.)

    Args:
        model: has no communication hook yet.
        system: a name in `binsgdm.systems.registry.SYSTEMS`.
        seed: of the draws, the same on all ranks.
        ranks_per_node: default LOCAL_WORLD_SIZE from torchrun, else all ranks.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in, from the thread that exchanges.
        options: of the system, such as bits=4.

    Returns:
        The exchange, whose state belongs into the checkpoint of its rank.

    Raises:
        BinsgdmError: no DDP model, complex parameters, an unknown system or option, a value out of range, or ranks that
            differ in any of it; on all ranks, also where one alone was given something wrong.

    Example:
        model = DistributedDataParallel(module)
        exchange = compress_gradients(model, "power_sgd", matrix_rank=2)
    """
    world_size = dist.get_world_size()
    # A rank that was given something wrong still compares its settings with the others, so that all ranks raise and
    # none waits.
    made: tuple[Averager, int] | None = None
    refused: BinsgdmError | None = None
    try:
        _check_model(model)
        check_whole("compress_gradients: seed", seed, low=0, high=2**64 - 1)
        local = grouping.node_size(ranks_per_node, world_size, default=world_size)
        check_options(system, options)  # here, too: an option may have the name of an argument of make
        made = make(system, rank=dist.get_rank(), world_size=world_size, **options), local
    except BinsgdmError as error:
        refused = error
    settings = {"system": system, "seed": seed, "ranks_per_node": made and made[1], **options}
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()  # not yet refused
    device = next((parameter.device for parameter in parameters), None)
    check_same_settings("compress_gradients", settings, refused, device=device)
    if made is None:
        raise AssertionError("check_same_settings raises what this rank refused")
    one, local = made
    groups = grouping.make(local, timeout, device)
    exchange = GradientExchange(model, one, groups, seed=seed, on_sent=on_sent)
    model.register_comm_hook(exchange, exchange_bucket)
    setattr(model, _HOOKED, True)
    return exchange


_HOOKED = "_binsgdm_compresses"


def _check_model(model: object) -> None:
    if not isinstance(model, DistributedDataParallel):
        raise BinsgdmError(
            f"compress_gradients: a {type(model).__name__}: must be a DistributedDataParallel model; wrap the module"
        )
    if hasattr(model, _HOOKED):
        raise BinsgdmError("compress_gradients: a model with a system: must have none; wrap the module anew")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise BinsgdmError(
                f"compress_gradients: {name}: sparse gradients: must be dense; build it with sparse=False"
            )
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise BinsgdmError(f"compress_gradients: {name}: complex: must be real; leave it out of the model")


class _PendingBucket(NamedTuple):
    """A bucket to exchange, or why this rank cannot."""

    bucket: GradientBucket | BinsgdmError
    context: RankContext
    buffer: torch.Tensor
    future: "torch.futures.Future[torch.Tensor]"


class GradientExchange:
    """One rank's end of a system at work in DDP.

    Buckets are exchanged in DDP's order, which is the same on all ranks, by one thread, on process groups of its own.

    Attributes:
        system: with its state.
        step: of the coming backward, from 1; draws and periods count by it.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        system: Averager,
        groups: Groups,
        *,
        seed: int,
        on_sent: Callable[[Sent], None] | None,
    ) -> None:
        self.system = system
        self.step = 1
        self._numbers = {parameter: number for number, parameter in enumerate(model.parameters())}
        self._groups: Groups | None = groups
        self._seed = seed
        self._transport: Transport | None = Transport(groups, on_sent)
        self._is_state_checked = False
        self._thread: CommunicationThread[_PendingBucket] | None = None
        self._stream: streams.Stream = None
        self._has_failed = False

    def state_dict(self) -> dict[str, Any]:
        """Return step and state of the system; every rank saves its own."""
        return {"step": self.step, "system": self.system.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on this rank; every rank must, before its first backward.

        The first backward compares what all ranks must have alike (the step, factors) and refuses on all ranks.

        Raises:
            BinsgdmError: it is no such state, or that of another system; or backward has run already.
        """
        if self._is_state_checked:
            raise BinsgdmError(
                "compress_gradients: a state after the first backward: must be loaded before, on all ranks; wrap the "
                "module anew, compress and load again"
            )
        if set(state) != {"step", "system"}:
            raise BinsgdmError(
                f"compress_gradients: a state of {sorted(map(str, state))}: must be ['step', 'system']; load what "
                "state_dict() returned"
            )
        check_whole("compress_gradients: step of the state", state["step"], low=1)
        self.system.load_state_dict(state["system"])
        self.step = state["step"]

    def start(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":  # type: ignore[name-defined]
        """Hand a bucket to the thread; the future will hold the mean, in the bucket's dtype."""
        groups = self._groups
        if self._has_failed or groups is None:
            self._finish()  # raises what has failed, if that was a bucket of this backward
            raise BinsgdmError(
                "compress_gradients: an exchange failed before, and ranks may differ; start all ranks again "
                "from their checkpoints"
            )
        buffer = bucket.buffer()
        on_device = streams.of(buffer.device)
        future = on_device.future()
        if self._thread is None:
            # DDP has no hook for the end of backward; autograd runs this callback when backward is done, as DDP's own
            # reducer does.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._stream = self._stream or on_device.make()
            self._thread = CommunicationThread(
                "binsgdm-compress", buffer.device, self._exchange, self._on_failure, self._stream
            )
        # In this order: whoever reads the copy waits for all that was enqueued before the submission.
        try:
            pending = self._pending(bucket, groups, future)
        except RuntimeError as error:  # too little memory for the copy: no item is there that could fail
            self._has_failed = True
            self._abort(str(error).splitlines()[0])
            raise
        self._thread.submit(pending)
        # DDP numbers buckets from 0 in each backward; the last one ends the step.
        if bucket.is_last():
            self.step += 1
        return future

    def _pending(self, bucket: Any, groups: Groups, future: "torch.futures.Future[torch.Tensor]") -> _PendingBucket:
        context = RankContext(
            rank=groups.rank,
            world_size=groups.world_size,
            ranks_per_node=groups.ranks_per_node,
            seed=self._seed,
            step=self.step,
            bucket=bucket.index(),
        )
        return _PendingBucket(self._gradients(bucket), context, bucket.buffer(), future)

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
        """Put the mean into the future."""
        pending.future.set_result(self._mean(pending).to(pending.buffer.dtype))

    def _on_failure(self, pending: _PendingBucket, error: BaseException) -> None:
        """Tell the others why there is no mean, and end DDP's wait for it; nobody reads the value: backward raises."""
        self._has_failed = True
        self._abort(str(error) or type(error).__name__)
        pending.future.set_result(pending.buffer)

    def _mean(self, pending: _PendingBucket) -> torch.Tensor:
        if self._transport is None:
            raise AssertionError("a broken exchange has no transport")
        if not self._is_state_checked:
            self._check_same_state(pending.context.step)
        if isinstance(pending.bucket, BinsgdmError):
            raise pending.bucket
        values = pending.bucket.values
        on_device = streams.of(values.device)
        on_device.keep(on_device.current(), values)  # made on a stream of backward, and freed while this one reads them
        return self._transport.run(self.system.mean(pending.bucket, pending.context)) if values.numel() else values

    def _check_same_state(self, step: int) -> None:
        """Check once, before the first exchange, that all ranks have alike what must be alike."""
        if self._groups is None or self._transport is None:
            raise AssertionError("a broken exchange has no groups")
        # Checked at the first exchange and not on loading: only then have all ranks loaded, and all are
        # at the same call.
        common = {name: value for name, value in self.system.state_dict().items() if name in self.system.common_state}
        compared = {name: checksums(value) if name == "factors" else value for name, value in common.items()}
        settings, world = {"step": step, **compared}, self._groups.world
        self._transport.guarded(
            partial(check_same_settings, "compress_gradients: state", settings, group=world),
            "the comparison of states in world",
        )
        self._is_state_checked = True

    def _abort(self, reason: str) -> None:
        """Tell the others, and drop all that holds connections."""
        transport, self._groups, self._transport = self._transport, None, None
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


def exchange_bucket(
    state: GradientExchange,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:  # not as text, which DDP refuses
    """Hand a bucket of DDP to an exchange: the hook that `register_comm_hook` takes."""
    return state.start(bucket)
