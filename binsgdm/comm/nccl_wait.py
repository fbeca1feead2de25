"""Wait for what NCCL carries, with an eye on ranks that may be gone.

A collective of NCCL returns when it is enqueued. If a rank is gone, its kernel spins on the GPU: no call fails, and the
host blocks where it reads a result, until PyTorch's watchdog ends the process. So before the host reads, it polls here
the GPU, the store, in which a rank that refused has left its sentence, and the clock.
"""

import time
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.comm.failure import SilentStoreError, StoreError, abort_reason, ask, named
from binsgdm.comm.groups import Groups, store_key
from binsgdm.kernels import streams

# A step waits about as long as it takes: the first polls are short, since the GPU idles until the host goes on.
SHORTEST_POLL_S, LONGEST_POLL_S = 20e-6, 5e-3
LOOK_S = 0.5  # between looks into the store, which all ranks share
SIGN_IN_S = 5.0  # of waiting, until a rank notes for the others that it waits
# NCCL has reported an error if it says that it is done and the GPU is not: between the two lie only kernels of ours.
REPORTED_S = 10.0


class Pending:
    """The collectives that one rank has enqueued and that may not be done."""

    def __init__(self) -> None:
        self._num_waits = 0  # the same on all ranks, whose steps wait at the same points
        self._works: dict[dist.ProcessGroup, dist.Work] = {}
        self._device = torch.device("cpu")

    def add(self, work: "dist.Work", group: dist.ProcessGroup, device: torch.device) -> None:
        """Let the current stream wait for a collective; the host goes on."""
        work.wait()
        self._works[group] = work  # the last of a group is enough: they are done one after the other
        self._device = device

    def clear(self) -> None:
        """Forget all: they were aborted."""
        self._works.clear()

    def wait(self, groups: Groups) -> None:
        """Block the host until all are done, and with them what was enqueued on this stream.

        Raises:
            RuntimeError: another rank refused, or did not come in time, or NCCL failed.
        """
        if not self._works:
            return
        on_device = streams.of(self._device)
        event = on_device.record(on_device.current())  # None on a CPU
        self._num_waits += 1
        watch = _Watch(groups, self._num_waits)
        while not self._are_done(event, watch):
            watch.look()
            time.sleep(min(max(watch.waited_s / 50, SHORTEST_POLL_S), LONGEST_POLL_S))
        for work in self._works.values():
            work.wait()  # raises what PyTorch's watchdog has found
        self._works.clear()

    def _are_done(self, event: Any, watch: "_Watch") -> bool:
        has_ended = all(work.is_completed() for work in self._works.values())
        if event is None or not has_ended:
            return has_ended
        # A failed collective counts as ended, too, but the GPU does not get beyond it.
        if not event.query():
            watch.note_reported()
            return False
        return True


class _Watch:
    """Looks into the store and at the clock while a rank waits."""

    def __init__(self, groups: Groups, number: int) -> None:
        self._groups, self._number = groups, number
        self._start = time.monotonic()
        self._timeout_s = groups.timeout.total_seconds()
        self._sign_in_s = min(SIGN_IN_S, self._timeout_s / 4)
        self._next_look_s = min(LOOK_S, self._timeout_s / 4)
        self._has_signed_in = False
        self._reported_s: float | None = None

    @property
    def waited_s(self) -> float:
        """For how long it has been waiting."""
        return time.monotonic() - self._start

    def note_reported(self) -> None:
        """Note that NCCL says it is done while the GPU is not."""
        if self._reported_s is None:
            self._reported_s = self.waited_s

    def look(self) -> None:
        """Look, if it is time.

        Raises:
            RuntimeError: there is no use in waiting any longer.
        """
        waited_s = self.waited_s
        if waited_s < self._next_look_s:
            return
        self._next_look_s = waited_s + LOOK_S
        if abort_reason(self._groups) is not None:
            raise RuntimeError("another rank has aborted")
        try:
            ask(lambda store: store.check(["binsgdm"]))
        except SilentStoreError:
            pass  # its process may be stopped for a while only: the clock decides
        except StoreError:
            raise RuntimeError("the store of torch.distributed is gone, and with it the process that had it") from None
        if self._reported_s is not None and waited_s - self._reported_s > REPORTED_S:
            raise RuntimeError("NCCL reported an error; see its log, or set NCCL_DEBUG=WARN")
        if waited_s >= self._sign_in_s and not self._has_signed_in:
            self._has_signed_in = True
            with suppress(StoreError):  # without the store nobody can be named
                ask(lambda store: store.set(self._key(dist.get_rank()), str(self._number)))
        if waited_s >= self._timeout_s:
            raise RuntimeError(f"no answer for {self._timeout_s:g} s" + self._missing_ranks())

    def _missing_ranks(self) -> str:
        """Return which ranks do not wait as often as this one, in words that begin with a comma; empty if unknown."""
        ranks = dist.get_process_group_ranks(self._groups.all_that_step)
        with suppress(StoreError):
            found = ask(self._numbers_of_waits)
            missing = [rank for rank in ranks if found.get(rank, 0) != self._number]
            if 0 < len(missing) < len(ranks):
                return f", {named(missing)} not among those that wait"
        return ""

    def _numbers_of_waits(self, store: Any) -> dict[int, int]:
        keys = {rank: self._key(rank) for rank in dist.get_process_group_ranks(self._groups.all_that_step)}
        return {rank: int(store.get(key)) for rank, key in keys.items() if store.check([key])}

    def _key(self, rank: int) -> str:
        return store_key("waits", self._groups.all_that_step.group_name, rank)
