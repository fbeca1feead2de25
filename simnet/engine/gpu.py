"""A GPU on SimPy's clock that several kernels share: each gets an equal part, and all are slowed by communication.

This is processor sharing: with n kernels each runs at 1/n of its speed. A queue would let a bucket's encode wait behind
the rest of backward, and the result would depend on how finely backward is cut (decision 3).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import simpy

from simnet.engine.links import call_after_all

# Relative: kernels whose ends differ by rounding alone end together.
_SAME_TIME = 1e-12
NEVER = float("inf")
Key = TypeVar("Key")


class SharedGpu(Generic[Key]):
    """Processor sharing of one GPU.

    Attributes:
        busy_s: seconds by part ("forward", "backward", "encode", ...); the sum is the time that the GPU was busy.
        wake_s: when the next kernel ends if nothing else happens before [s].
        wake_in_s: the same, counted from the last change [s].
    """

    def __init__(self, slowdown: float, comm_slowdown: float) -> None:
        """Take factors >= 1 on all kernels, and on those that run while communication does."""
        self._slowdown = slowdown
        self._comm_slowdown = comm_slowdown
        self._communicating = 0
        self._kernels: list[tuple[float, str, Key]] = []  # seconds left on an idle GPU, part, key
        self._updated_s = 0.0
        self.busy_s: defaultdict[str, float] = defaultdict(float)
        self.wake_in_s = self.wake_s = NEVER

    def set_slowdown(self, slowdown: float) -> None:
        """Set the factor on the kernels that start from now on."""
        self._slowdown = slowdown

    def start(self, now: float, part: str, seconds: float, key: Key) -> None:
        """Start a kernel that takes `seconds` alone on an idle GPU without a fault; `end_first` returns its key."""
        self._advance(now)
        self._kernels.append((seconds * self._slowdown, part, key))
        self._plan(now)

    def communication_starts(self, now: float) -> None:
        """Slow kernels down from now on."""
        self._advance(now)
        self._communicating += 1
        self._plan(now)

    def communication_ends(self, now: float) -> None:
        """Let kernels run at full speed again, if no other communication is under way."""
        self._advance(now)
        self._communicating -= 1
        self._plan(now)

    def end_first(self, now: float) -> list[Key]:
        """End the kernels that are due, and return their keys."""
        self._advance(now)
        limit = self._least_s() + _SAME_TIME * now
        over = [key for remaining_s, _, key in self._kernels if remaining_s <= limit]
        self._kernels = [kernel for kernel in self._kernels if kernel[0] > limit]
        self._plan(now)
        return over

    @property
    def is_computing(self) -> bool:
        """Tell whether a kernel runs."""
        return bool(self._kernels)

    @property
    def _rate(self) -> float:
        speed = 1 / self._comm_slowdown if self._communicating else 1.0
        return speed / len(self._kernels)

    def _advance(self, now: float) -> None:
        """Bring what remains of each kernel, and the seconds by part, up to now."""
        passed = now - self._updated_s
        self._updated_s = now
        if passed > 0 and len(self._kernels) == 1:  # nearly always, and to the same bits
            remaining_s, part, key = self._kernels[0]
            self._kernels = [(remaining_s - passed * self._rate, part, key)]
            self.busy_s[part] += passed
        elif passed > 0 and self._kernels:
            done, count = passed * self._rate, len(self._kernels)
            self._kernels = [(remaining_s - done, part, key) for remaining_s, part, key in self._kernels]
            # Each of n kernels held 1/n of the GPU, whatever part of the iteration it belongs to.
            for _, part, _ in self._kernels:
                self.busy_s[part] += passed / count

    def _plan(self, now: float) -> None:
        if self._kernels:
            self.wake_in_s = max(self._least_s() / self._rate, 0.0)
        else:
            self.wake_in_s = NEVER
        self.wake_s = now + self.wake_in_s

    def _least_s(self) -> float:
        """Return what remains of the kernel that ends first."""
        return self._kernels[0][0] if len(self._kernels) == 1 else min(kernel[0] for kernel in self._kernels)


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
