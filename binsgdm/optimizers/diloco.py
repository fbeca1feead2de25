"""DiLoCo: an outer optimizer goes along the way that workers went apart, which may travel compressed."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.comm import consistency
from binsgdm.comm.consistency import Alike
from binsgdm.comm.replicas import checksum_of, comparable
from binsgdm.comm.thread import CommunicationThread
from binsgdm.comm.transport import Sent
from binsgdm.compressors.base import GradientBucket, check_state
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import streams
from binsgdm.optimizers.fragments import Fragment
from binsgdm.optimizers.outer_settings import OuterSettings, Workers
from binsgdm.optimizers.outer_steps import OuterSteps
from binsgdm.optimizers.wrapping import LocalStepsOptimizer


class _Hidden:
    """An exchange beside inner steps, on a thread of its own."""

    def __init__(
        self, fragment: Fragment, run: Callable[[], torch.Tensor], abort: Callable[[str], None], stream: streams.Stream
    ) -> None:
        self.fragment = fragment
        self._mean: torch.Tensor | None = None
        self._thread: CommunicationThread[Callable[[], torch.Tensor]] = CommunicationThread(
            "binsgdm-outer", fragment.outer.device, self._take, lambda _, error: abort(str(error)), stream
        )
        self._thread.submit(run)
        self._is_done = False

    def _take(self, run: Callable[[], torch.Tensor]) -> None:
        self._mean = run()

    def mean(self) -> torch.Tensor:
        """Wait for the mean, and return it."""
        if not self._is_done:
            self._thread.finish()
            self._is_done = True
        if self._mean is None:
            raise AssertionError("finish raises what failed")
        return self._mean


class _Loaded:
    """The mean of an exchange that had begun when a state was saved."""

    def __init__(self, fragment: Fragment, mean: torch.Tensor) -> None:
        self.fragment, self._mean = fragment, mean

    def mean(self) -> torch.Tensor:
        """Return it."""
        return self._mean


class DiLoCo(LocalStepsOptimizer):
    """Any optimizer in each worker, and an outer SGD with momentum between workers after many inner steps.

    The pseudo-gradient of a worker is how far it went from the outer parameters. Its mean over workers takes the outer
    parameters one step on, and workers start anew from those. Outer parameters and momentum take 8 bytes a parameter,
    shared by the ranks of a worker; error feedback of a compressed exchange up to 8 more. What is no parameter, such as
    the statistics of batch norm, is each worker's own.

    Args:
        optimizer: the inner one, of torch, with parameters that are equal on all ranks; its state is each worker's own.
        inner_steps: steps of a worker between two exchanges of the same parameters.
        outer_lr: learning rate of the outer SGD.
        outer_momentum: its momentum, in [0, 1).
        nesterov: whether that is Nesterov's.
        exchange: "fp32" or "bf16" all-reduce the pseudo-gradients; "int8", "fp8" (of 8 bits) and "one_bit" (with error
            feedback) compress them, and so does any name in `binsgdm.SYSTEMS`.
        fragments: parts of the parameters, exchanged in turn at different steps of a period.
        overlap_steps: inner steps that hide an exchange, after which its result is applied.
        local_share: of a worker's own parameters in the mix with the outer ones then; by default 0.5.
        workers: "rank" lets each rank train alone. With "node" the ranks of a node are one worker: give parameters of a
            DDP module over the node's process group.
        ranks_per_worker: with "node", its ranks; default LOCAL_WORLD_SIZE from torchrun.
        seed: of the draws of an exchange, the same on all ranks.
        group: the ranks that exchange; default all.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in, from the thread that exchanges.
        options: of the system that compresses, such as bits=4.

    Raises:
        BinsgdmError: no optimizer of torch, a value out of range, or ranks that differ; on all ranks.

    Source: see `binsgdm.optimizers.outer_steps.OuterSteps`.

    Example:
        optimizer = binsgdm.DiLoCo(torch.optim.AdamW(model.parameters()), inner_steps=50, exchange="one_bit")
    """

    def __init__(  # noqa: PLR0913
        self,
        optimizer: torch.optim.Optimizer,
        inner_steps: int = 50,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        nesterov: bool = True,
        exchange: str = "fp32",
        fragments: int = 1,
        overlap_steps: int = 0,
        local_share: float | None = None,
        workers: Workers = "rank",
        ranks_per_worker: int | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        on_sent: Callable[[Sent], None] | None = None,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {
            "inner_steps": inner_steps, "outer_lr": outer_lr, "outer_momentum": outer_momentum, "nesterov": nesterov,
            "exchange": exchange, "fragments": fragments, "overlap_steps": overlap_steps, "local_share": local_share,
            "workers": workers, "seed": seed,
        }  # fmt: skip
        refused, settings = None, OuterSettings()
        try:
            settings = OuterSettings(**given, options=options)
            _check_worker(workers, ranks_per_worker)
            OuterSteps([torch.zeros(1)] * fragments, settings, rank=0, world_size=1, ranks_per_worker=1)
        except BinsgdmError as error:
            refused = error
        super().__init__(
            optimizer,
            {**given, **options},
            refused,
            group=group,
            ranks_per_worker=1 if workers == "rank" else ranks_per_worker,
            timeout=timeout,
            on_sent=on_sent,
        )
        self._stream: streams.Stream = None
        self._pending: _Hidden | _Loaded | None = None
        self.outer = OuterSteps(
            self.parameters,
            settings,
            rank=self._member.rank,
            world_size=self._member.world_size,
            ranks_per_worker=self._member.ranks_per_node,
        )
        self._overlaps = settings.overlap_steps > 0

    def _after_step(self) -> None:
        # With fragments an exchange never starts where another ends: overlap_steps is below the steps between them.
        if (fragment := self.outer.starting(self.num_steps)) is not None:
            self._check_ranks(2 * fragment.number)
            self._start(fragment)
        if (ending := self.outer.ending(self.num_steps)) is None:
            return
        pending, self._pending = self._pending, None
        mean = None if pending is None else pending.mean()
        if self._overlaps:
            self._check_ranks(-1 if pending is None else 2 * ending.number + 1)
        if pending is not None and mean is not None:
            self._transport.run(self.outer.finish(pending.fragment, mean))

    def _held_alike(self) -> list[Alike]:
        state = [one for fragment in self.outer.fragments for one in (fragment.outer, fragment.momentum)]
        found = comparable(self.outer.system.common_values())
        # The ranks of a worker share the outer state: those at the same place in it hold the same.
        return [
            Alike(
                name="parameters", value=int(checksum_of(self.parameters).item()), group="intra_node", is_checksum=True
            ),
            Alike(
                name="outer parameters and momentum",
                value=int(checksum_of(state).item()),
                group="inter_node",
                is_checksum=True,
            ),
            Alike(
                name="state of the exchange", value=consistency.number_of(found), group="inter_node", is_checksum=True
            ),
        ]

    def _start(self, fragment: Fragment) -> None:
        bucket, step = fragment.pseudo_gradient(), self.num_steps
        if not self._overlaps:
            self._pending = _Loaded(fragment, self._mean(fragment, bucket, step))
            return
        device = fragment.outer.device
        self._stream = self._stream or streams.of(device).make()
        self._pending = _Hidden(
            fragment, lambda: self._mean(fragment, bucket, step), self._transport.abort, self._stream
        )

    def _mean(self, fragment: Fragment, bucket: GradientBucket, step: int) -> torch.Tensor:
        mean = self._transport.run(self.outer.mean(fragment, bucket, step))
        # Over NCCL the host reads soon what was carried, and would wait for a rank that is gone for ever.
        self._transport.wait("the mean of pseudo-gradients")
        return mean

    def _outer_state(self) -> dict[str, Any]:
        pending = self._pending
        found = None if pending is None else {"fragment": pending.fragment.number, "mean": pending.mean().clone()}
        return self.outer.state_dict() | {"pending": found}

    def _load_outer_state(self, state: Mapping[str, Any]) -> None:
        check_state("DiLoCo: outer state", state, ("fragments", "system", "pending"))
        if self._pending is not None:
            self._pending.mean()  # in which other ranks take part
        pending = self._loaded(state["pending"])
        self.outer.load_state_dict({name: value for name, value in state.items() if name != "pending"})
        self._pending = pending

    def _loaded(self, pending: Any) -> _Loaded | None:
        if pending is None:
            return None
        check_state("DiLoCo: pending exchange of the state", pending, ("fragment", "mean"))
        by_number = {one.number: one for one in self.outer.fragments}
        if pending["fragment"] not in by_number:
            raise BinsgdmError(
                f"DiLoCo: a pending exchange of fragment {pending['fragment']!r}: must be below {len(by_number)}; load "
                "what state_dict() returned"
            )
        fragment = by_number[pending["fragment"]]
        return _Loaded(fragment, fragment.of_slice("mean of the state", pending["mean"]))

    def close(self) -> None:
        """Wait for an exchange that has begun, and do as `LocalStepsOptimizer.close`."""
        if self._pending is not None:
            self._pending.mean()
        super().close()


def _check_worker(workers: object, ranks_per_worker: int | None) -> None:
    if workers == "rank" and ranks_per_worker is not None:
        raise BinsgdmError(
            f"DiLoCo: ranks_per_worker: {ranks_per_worker!r}: has no effect with workers='rank'; give workers='node'"
        )
