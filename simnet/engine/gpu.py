"""A GPU on the clock: kernels share it as `gpu_sharing` says, and each has an event that it has ended."""

from collections.abc import Callable, Mapping

import simpy

from simnet.engine.gpu_sharing import NEVER, SharedGpu
from simnet.engine.links import call_after_all


class Gpu:
    """Runs kernels and keeps how much of the time went to which part of the iteration."""

    def __init__(
        self,
        env: simpy.Environment,
        *,
        slowdown: float,
        comm_slowdown: float,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        """Take the factors of `SharedGpu`, and what to tell whether the GPU computes whenever that changes."""
        self._env = env
        self._shared: SharedGpu[simpy.Event] = SharedGpu(slowdown, comm_slowdown)
        self._plan_number = 0
        self._on_change = on_change
        self._told_computing = False

    @property
    def busy_s(self) -> Mapping[str, float]:
        """Seconds by part ("forward", "backward", "encode", ...); they add up to the time that the GPU was busy."""
        return self._shared.busy_s

    def set_slowdown(self, slowdown: float) -> None:
        """Set the factor on the kernels that start from now on."""
        self._shared.set_slowdown(slowdown)

    def run(self, part: str, seconds: float) -> simpy.Event:
        """Start a kernel that takes `seconds` alone on an idle GPU; return the event that the kernel has ended."""
        done = self._env.event()
        if seconds <= 0:
            return done.succeed()
        self._shared.start(self._env.now, part, seconds, done)
        self._wake_at_next_end()
        self._tell_later()
        return done

    def communication_starts(self) -> None:
        """Slow kernels down from now on."""
        self._shared.communication_starts(self._env.now)
        self._wake_at_next_end()

    def communication_ends(self) -> None:
        """Let kernels run at full speed again, if no other communication is under way."""
        self._shared.communication_ends(self._env.now)
        self._wake_at_next_end()

    def _wake_at_next_end(self) -> None:
        """Wake when the next kernel ends."""
        # SimPy cannot cancel a timeout: a wake-up of an earlier plan, with a lower number, does nothing.
        self._plan_number += 1
        if self._shared.wake_in_s < NEVER:
            plan_number = self._plan_number
            self._env.timeout(self._shared.wake_in_s).callbacks.append(lambda _event: self._wake(plan_number))

    def _wake(self, plan_number: int) -> None:
        if plan_number == self._plan_number:
            for done in self._shared.end_first(self._env.now):
                done.succeed()
            self._wake_at_next_end()
            self._tell_later()

    def _tell_later(self) -> None:
        # Where one kernel ends another often begins at the same instant: the GPU has then not stopped.
        if self._on_change is not None and self._shared.is_computing != self._told_computing:
            call_after_all(self._env, lambda _event: self._tell())

    def _tell(self) -> None:
        if self._on_change is not None and self._shared.is_computing != self._told_computing:
            self._told_computing = self._shared.is_computing
            self._on_change(self._told_computing)
