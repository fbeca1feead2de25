"""A GPU that several kernels share: each gets an equal part, and all are slowed while communication runs."""

from collections import defaultdict

import simpy

_SAME_TIME = 1e-12


class _Kernel:
    __slots__ = ("done", "part", "remaining_s")

    def __init__(self, done: simpy.Event, part: str, remaining_s: float) -> None:
        self.done = done
        self.part = part
        self.remaining_s = remaining_s


class Gpu:
    """Runs kernels by processor sharing and keeps how much of the time went to which part of the iteration.

    Attributes:
        busy_s: seconds by part ("forward", "backward", "encode", ...); they add up to the time that the GPU was busy.
    """

    def __init__(self, env: simpy.Environment, *, slowdown: float, comm_slowdown: float) -> None:
        self._env = env
        self._slowdown = slowdown
        self._comm_slowdown = comm_slowdown
        self._kernels: list[_Kernel] = []
        self._communicating = 0
        self._updated_s = env.now
        self._turn = 0
        self.busy_s: defaultdict[str, float] = defaultdict(float)

    def run(self, part: str, seconds: float) -> simpy.Event:
        """Start a kernel that takes `seconds` alone on an idle GPU; return the event that it is done."""
        done = self._env.event()
        if seconds <= 0:
            return done.succeed()
        self._advance()
        self._kernels.append(_Kernel(done, part, seconds * self._slowdown))
        self._plan()
        return done

    def communication_starts(self) -> None:
        """Slow kernels down from now on."""
        self._advance()
        self._communicating += 1
        self._plan()

    def communication_ends(self) -> None:
        """Let kernels run at full speed again, if no other communication is under way."""
        self._advance()
        self._communicating -= 1
        self._plan()

    @property
    def _rate(self) -> float:
        speed = 1 / self._comm_slowdown if self._communicating else 1.0
        return speed / len(self._kernels)

    def _advance(self) -> None:
        """Bring what remains of each kernel, and the seconds by part, up to now."""
        passed = self._env.now - self._updated_s
        self._updated_s = self._env.now
        if passed > 0 and self._kernels:
            for kernel in self._kernels:
                kernel.remaining_s -= passed * self._rate
                self.busy_s[kernel.part] += passed / len(self._kernels)

    def _plan(self) -> None:
        """Wake when the next kernel ends; a plan made since makes this one void."""
        self._turn += 1
        if self._kernels:
            turn = self._turn
            next_s = min(kernel.remaining_s for kernel in self._kernels) / self._rate
            self._env.timeout(max(next_s, 0.0)).callbacks.append(lambda _event: self._wake(turn))

    def _wake(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._advance()
        least = min(kernel.remaining_s for kernel in self._kernels)
        over = [kernel for kernel in self._kernels if kernel.remaining_s <= least + _SAME_TIME * self._env.now]
        self._kernels = [kernel for kernel in self._kernels if kernel not in over]
        for kernel in over:
            kernel.done.succeed()
        self._plan()
