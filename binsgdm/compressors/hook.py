"""One DDP communication hook for every system of the registry, beside backward."""

import os
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm import groups as grouping
from binsgdm.compressors.base import GradientBucket, System
from binsgdm.compressors.registry import make
from binsgdm.errors import BinsgdmError
from binsgdm.exchange import Place
from binsgdm.groups import Groups
from binsgdm.replicas import agree
from binsgdm.transport import Sent, Transport


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
    """Let a system average the gradients of a DDP model beside backward; every rank must call it before the first one.

    Gradients are whatever the system makes of them: with "sign_sgd" they are +1 and -1. A gradient that is not finite
    makes those of its bucket (or of its tensor, or block) not finite on every rank alike, so that a GradScaler skips
    the step everywhere; signs without a scale ("sign_sgd", "marsit" with `scale`) cannot show it.

    Args:
        model: has no communication hook yet. Sparse gradients are refused by DDP itself.
        system: a name in `binsgdm.compressors.registry.SYSTEMS`.
        seed: of the draws, the same on all ranks.
        ranks_per_node: default LOCAL_WORLD_SIZE from torchrun, else all ranks.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in, from the thread that exchanges.
        options: of the system, such as bits=4.

    Returns:
        The exchange, whose state belongs into the checkpoint of its rank.

    Raises:
        BinsgdmError: an unknown system or option, a value out of range, or ranks that differ in any of it.

    Example:
        model = DistributedDataParallel(module)
        exchange = compress_gradients(model, "power_sgd", matrix_rank=2)
    """
    world_size = dist.get_world_size()
    local = ranks_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    one = make(system, rank=dist.get_rank(), world_size=world_size, **options)
    agree("compress_gradients", {"system": system, "seed": seed, "ranks_per_node": local, **options})
    groups = grouping.make(local, timeout)
    exchange = GradientExchange(model, one, groups, seed=seed, on_sent=on_sent)
    model.register_comm_hook(exchange, _exchange_bucket)
    return exchange


class _Job(NamedTuple):
    bucket: GradientBucket
    place: Place
    buffer: torch.Tensor
    future: "torch.futures.Future[torch.Tensor]"
    is_ready: Any


class GradientExchange:
    """One rank's end of a system at work in DDP.

    Buckets are exchanged in DDP's order, which is the same on all ranks, by one thread, on process groups of its own:
    exchanges of two phases that are called from completion callbacks deadlock on gloo.

    Attributes:
        system: with its state.
        step: of the coming backward, from 1; draws and periods count by it.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        system: System,
        groups: Groups,
        *,
        seed: int,
        on_sent: Callable[[Sent], None] | None,
    ) -> None:
        self.system = system
        self.step = 1
        self._numbers = {parameter: number for number, parameter in enumerate(model.parameters())}
        self._groups = groups
        self._seed = seed
        self._transport = Transport(groups, on_sent)
        self._jobs: queue.SimpleQueue[_Job | None] | None = None
        self._is_broken = False
        self._stream: Any = None

    def state_dict(self) -> dict[str, Any]:
        """Return step and state of the system; every rank saves its own."""
        return {"step": self.step, "system": self.system.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on this rank.

        Raises:
            BinsgdmError: it is no such state, or that of another system.
        """
        if set(state) != {"step", "system"}:
            raise BinsgdmError(
                f"compress_gradients: a state of {sorted(map(str, state))}: must be ['step', 'system']; load what "
                "state_dict() returned"
            )
        self.system.load_state_dict(state["system"])
        self.step = int(state["step"])

    def start(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":  # type: ignore[name-defined]
        """Hand a bucket to the thread; the future will hold the mean, in the bucket's dtype."""
        if self._is_broken:
            raise BinsgdmError(
                "compress_gradients: an exchange failed before, and ranks may be out of step: start all ranks again "
                "from their checkpoints"
            )
        buffer = bucket.buffer()
        on_gpu = buffer.device.type == "cuda"
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if on_gpu else [])
        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            name = "binsgdm-compress"
            threading.Thread(target=self._work, args=(self._jobs, buffer.device), name=name, daemon=True).start()
        self._jobs.put(self._job(bucket, buffer, future))
        if bucket.is_last():
            self._jobs.put(None)
            self._jobs = None
            self.step += 1
        return future

    def _job(self, bucket: Any, buffer: torch.Tensor, future: "torch.futures.Future[torch.Tensor]") -> _Job:
        parameters = bucket.parameters()
        values = torch.cat([gradient.reshape(-1) for gradient in bucket.gradients()]).to(torch.float32)
        is_ready = torch.cuda.current_stream().record_event() if buffer.device.type == "cuda" else None
        gradients = GradientBucket(
            values=values,
            parameters=tuple(self._numbers[parameter] for parameter in parameters),
            shapes=tuple(tuple(parameter.shape) for parameter in parameters),
        )
        groups = self._groups
        place = Place(
            rank=groups.rank,
            world_size=groups.world_size,
            ranks_per_node=groups.ranks_per_node,
            seed=self._seed,
            step=self.step,
            bucket=bucket.index(),
        )
        return _Job(gradients, place, buffer, future, is_ready)

    def _work(self, jobs: "queue.SimpleQueue[_Job | None]", device: torch.device) -> None:
        """Exchange the buckets of one backward."""
        with torch.no_grad(), self._own_stream(device):
            while (job := jobs.get()) is not None:
                self._exchange(job)

    def _own_stream(self, device: torch.device) -> Any:
        if device.type != "cuda":
            return nullcontext()
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._stream)

    def _exchange(self, job: _Job) -> None:
        """Put the mean into the future, or why there is none."""
        if self._is_broken:
            job.future.set_exception(BinsgdmError("compress_gradients: an earlier bucket's exchange failed"))  # type: ignore[arg-type]
            return
        try:
            if job.is_ready is not None:
                torch.cuda.current_stream().wait_event(job.is_ready)
            mean = job.bucket.values
            if mean.numel():
                mean = self._transport.run(self.system.mean(job.bucket, job.place))
            job.future.set_result(mean.to(job.buffer.dtype))
        except BaseException as error:  # handed to backward, which waits for the future
            self._is_broken = True
            job.future.set_exception(error)  # type: ignore[arg-type]


def _exchange_bucket(
    state: GradientExchange,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> "torch.futures.Future[torch.Tensor]":
    return state.start(bucket)
