"""A GPU on SimPy's clock that several kernels share: each gets an equal part, and all are slowed by communication.

This is processor sharing: with n kernels each runs at 1/n of its speed. A queue would let a bucket's encode wait behind
the rest of backward, and the result would depend on how finely backward is cut (decision 3).
"""

from collections import defaultdict
from collections.abc import Callable

import simpy

from simnet.engine.links import call_after_all

# Relative: kernels whose ends differ by rounding alone end together.
_SAME_TIME = 1e-12


class Gpu:
    """Runs kernels and keeps how much of the time went to which part of the iteration.

    Attributes:
        busy_s: seconds by part ("forward", "backward", "encode", ...); the sum is the time that the GPU was busy.
    """

    def __init__(
        self,
        env: simpy.Environment,
        *,
        comm_slowdown: float,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        """Take the clock.

        Args:
            env: the clock.
            comm_slowdown: factor >= 1 on kernels that run while communication does.
            on_change: what to tell whether the GPU computes, whenever that changes.
        """
        self._env = env
        self._slowdown = 1.0
        self._comm_slowdown = comm_slowdown
        self._communicating = 0
        self._kernels: list[tuple[float, str, simpy.Event]] = []  # seconds left on an idle GPU, part, its end
        self._updated_s = 0.0
        self._plan_number = 0
        self._on_change = on_change
        self._told_computing = False
        self.busy_s: defaultdict[str, float] = defaultdict(float)

    def set_slowdown(self, slowdown: float) -> None:
        """Set the factor >= 1 on the kernels that start from now on."""
        self._slowdown = slowdown

    def run(self, part: str, seconds: float) -> simpy.Event:
        """Start a kernel that takes `seconds` alone on an idle GPU; return the event that the kernel has ended."""
        done = self._env.event()
        if seconds <= 0:
            return done.succeed()
        self._advance()
        self._kernels.append((seconds * self._slowdown, part, done))
        self._wake_at_next_end()
        self._tell_later()
        return done

    def communication_starts(self) -> None:
        """Slow kernels down from now on."""
        self._advance()
        self._communicating += 1
        self._wake_at_next_end()

    def communication_ends(self) -> None:
        """Let kernels run at full speed again, if no other communication is under way."""
        self._advance()
        self._communicating -= 1
        self._wake_at_next_end()

    @property
    def _rate(self) -> float:
        speed = 1 / self._comm_slowdown if self._communicating else 1.0
        return speed / len(self._kernels)

    def _advance(self) -> None:
        """Bring what remains of each kernel, and the seconds by part, up to now."""
        passed = self._env.now - self._updated_s
        self._updated_s = self._env.now
        if passed > 0 and len(self._kernels) == 1:  # nearly always, and to the same bits
            remaining_s, part, done = self._kernels[0]
            self._kernels = [(remaining_s - passed * self._rate, part, done)]
            self.busy_s[part] += passed
        elif passed > 0 and self._kernels:
            run_s, count = passed * self._rate, len(self._kernels)
            self._kernels = [(remaining_s - run_s, part, done) for remaining_s, part, done in self._kernels]
            # Each of n kernels held 1/n of the GPU, whatever part of the iteration it belongs to.
            for _, part, _ in self._kernels:
                self.busy_s[part] += passed / count

    def _least_s(self) -> float:
        """Return what remains of the kernel that ends first."""
        return self._kernels[0][0] if len(self._kernels) == 1 else min(kernel[0] for kernel in self._kernels)

    def _wake_at_next_end(self) -> None:
        """Wake when the next kernel ends."""
        # SimPy cannot cancel a timeout: a wake-up of an earlier plan, with a lower number, does nothing.
        self._plan_number += 1
        if self._kernels:
            wake_in_s, plan_number = max(self._least_s() / self._rate, 0.0), self._plan_number
            self._env.timeout(wake_in_s).callbacks.append(lambda _event: self._wake(plan_number))

    def _wake(self, plan_number: int) -> None:
        """End the kernels that are due."""
        if plan_number != self._plan_number:
            return
        self._advance()
        limit = self._least_s() + _SAME_TIME * self._env.now
        over = [done for remaining_s, _, done in self._kernels if remaining_s <= limit]
        self._kernels = [kernel for kernel in self._kernels if kernel[0] > limit]
        for done in over:
            done.succeed()
        self._wake_at_next_end()
        self._tell_later()

    def _tell_later(self) -> None:
        # Where one kernel ends another often begins at the same instant: the GPU has then not stopped.
        if self._on_change is not None and bool(self._kernels) != self._told_computing:
            call_after_all(self._env, lambda _event: self._tell())

    def _tell(self) -> None:
        if self._on_change is not None and bool(self._kernels) != self._told_computing:
            self._told_computing = bool(self._kernels)
            self._on_change(self._told_computing)
