"""When a program is done: a rank that stands for all, lanes that differ in numbers, ranks that wait for each other.

Three recurrences give the same times, and so does SimPy's clock (`exact`), which is their judge. Which one serves:

| asked                       | program                      | recurrence         | why                                |
|-----------------------------|------------------------------|--------------------|------------------------------------|
| what ran when (`timeline`)  | any                          | `OneRank`          | it alone keeps spans and busy time |
| one time (`_total_s`)       | one stream sends, one other  | `two_streams`      | sums and maxima of floats          |
|                             | any other                    | `OneRank`          | holds for any streams              |
| lanes at once (`_together`) | one stream sends, one other  | `two_streams`      | the same sums, over arrays         |
|                             | several send, one computes   | `_StreamsInArrays` | ends in the order of the program   |
|                             | any other                    | none, lane by lane | ends in another order in each lane |
| ranks that wait (`ranks`)   | as of lanes                  | as of lanes        | a rank is a lane                   |
|                             | any other                    | `OneRank` of each  | in the order of time               |

"One stream sends, one other" is every data-parallel step: compute, and its communication stream. Where several streams
send, the order of their ends is that of the program only while no two use the same links (`can_sweep`): what a
collective takes is then its price, whatever runs beside it. A GPU that slows links undoes that for lanes; ranks tell a
collective for how long they go on to compute.

Kernels share the GPU evenly, and communication slows them: with n of them each runs at 1/n of its speed. A queue would
let a bucket's encode wait behind the rest of backward, so that the result hung on how finely backward is cut
(docs/explanation/decisions.md, 3).
"""

import functools
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from simnet.cluster.schedule import Group
from simnet.collectives.pace import CollectivesUnderWay, OverlappedCost
from simnet.core.lanes import Number
from simnet.strategies.program import Communicate, Operation, OperationId

if TYPE_CHECKING:
    from simnet.core.bounded_types import FloatArray

NEVER = math.inf
SAME_TIME = 1e-12
"""Relative: what ends so near each other ends together, as on SimPy's clock."""


class PricedStep(NamedTuple):
    """An operation with its price left open.

    Attributes:
        sends: whether it is a collective that sends something.
        price: number of its price.
        after: operations that must have ended before.
        operation: what it is.
    """

    sends: bool
    price: int
    after: tuple[OperationId, ...]
    operation: Operation


Steps = tuple[tuple[PricedStep, ...], ...]
Price = Number | OverlappedCost
"""Seconds, or what tells them once it is known how long the GPU computes meanwhile."""


def share_links(group: Group, other: Group) -> bool:
    """Tell whether both send inside nodes, or both between them."""
    return (group.nodes > 1 < other.nodes) or (group.members_per_node > 1 < other.members_per_node)


class OneRank:
    """A rank while it goes from one end of an operation to the next.

    Attributes:
        now: the time; when it was done, at the end [s].
        busy_s: seconds of its GPU by part of the iteration.
        spans: stream, position, start and end of every operation that took time [s].
    """

    def __init__(  # noqa: PLR0913 - what a rank is given
        self,
        steps: Steps,
        prices: Sequence[Price],
        slowdown: float,
        *,
        factor: float = 1.0,
        start_s: float = 0.0,
        arrive: Callable[[OperationId, float], None] | None = None,
    ) -> None:
        """Take a program.

        Args:
            steps: of the program.
            prices: by number.
            slowdown: factor on compute while communication runs, >= 1.
            factor: on all compute.
            start_s: when it begins [s].
            arrive: called when it arrives at a collective, which then ends when `start_collective` says so; without it,
                a collective's price later.
        """
        self._steps, self._prices, self._slowdown, self._factor = steps, prices, slowdown, factor
        self._arrive = arrive
        number = len(steps)
        self._ended, self._began, self._is_idle = [0] * number, [0.0] * number, [True] * number
        # What is left of each stream's kernel, and when its collective ends.
        self._left, self._until = [NEVER] * number, [NEVER] * number
        # Made with the first collective that has to be followed: most programs have none.
        self._followed: CollectivesUnderWay | None = None
        self._kernels = self._sends = 0
        # Of the kernel with the least left: how much that is, in how many times as much it is done, and when.
        self._least, self._pace, self._kernel_s = NEVER, 0.0, NEVER
        self.now = start_s
        self.busy_s: dict[str, float] = {}
        self.spans: list[tuple[int, int, float, float]] = []

    def begin(self) -> None:
        """Start what waits for nothing."""
        self._start_all()  # not done in `__init__`: `arrive` may need the ranks that are made after this one

    def run(self) -> "OneRank":
        """Go through the whole program; return the rank."""
        self.begin()
        while (then := self.next_s()) < NEVER:
            self.go(then)
        return self

    def next_s(self) -> float:
        """Return when the next operation ends; never, where all is done or others must come first [s]."""
        return min(self._kernel_s, *self._until)

    def start_collective(self, which: OperationId, began_s: float, ends_s: float) -> None:
        """Take note when a collective began and will end at which the rank has arrived [s]."""
        self._began[which.stream], self._until[which.stream] = began_s, ends_s

    def lengthen(self, stream: int, by_s: float) -> None:
        """Let the collective that runs in a stream end later."""
        self._until[stream] += by_s

    def running(self, stream: int) -> tuple[Operation, float] | None:
        """Return the collective that runs in a stream, and when it ends [s]; None if none does."""
        until = self._until[stream]
        return (self._steps[stream][self._ended[stream]].operation, until) if until < NEVER else None

    def computing_s(self) -> float:
        """Return for how long the GPU goes on to compute if nothing else happens [s]."""
        going_on = (
            left + uninterrupted_s(self._steps[stream], self._prices, self._ended[stream] + 1) * self._factor
            for stream, left in enumerate(self._left)
            if left < NEVER
        )
        return max(going_on, default=0.0) * self._slowdown

    def go(self, then: float) -> None:
        """Go to the next end of an operation, or to a time before it, and start what may begin there."""
        is_kernel = self._kernel_s <= then  # at one instant kernels end before collectives
        if self._kernels:
            # What is left is counted down by the least of all kernels, not by the time that passed: the kernel that
            # ends has then exactly nothing left, whatever the quotient was rounded to.
            passed = self._least if is_kernel else (then - self.now) / self._pace
            limit = self._least + SAME_TIME * then if is_kernel else -1.0
            each_s = (then - self.now) / self._kernels  # a kernel that shares the GPU has a part of it, slowed or not
            self.now = then
            for stream, left in enumerate(self._left):
                if left == NEVER:
                    continue
                part = self._steps[stream][self._ended[stream]].operation.part  # type: ignore[union-attr]
                self.busy_s[part] = self.busy_s.get(part, 0.0) + each_s
                if left <= limit:
                    self._left[stream] = NEVER
                    self._kernels -= 1
                    self._end(stream)
                else:
                    self._left[stream] = left - passed
        self.now = then
        if not is_kernel:
            # A followed collective may only have come to its next phase; it says itself whether it has ended.
            followed = self._followed.streams if self._followed else ()
            ended = self._followed.go(then) if self._followed and followed else ()
            for stream, until in enumerate(self._until):
                if until <= then and stream not in followed:
                    self._end_collective(stream)
            for stream in ended:
                self._end_collective(stream)
        self._start_all()

    def _end_collective(self, stream: int) -> None:
        self._until[stream] = NEVER
        self._sends -= 1
        self._end(stream)

    def _end(self, stream: int) -> None:
        if self.now > self._began[stream]:
            self.spans.append((stream, self._ended[stream], self._began[stream], self.now))
        self._ended[stream] += 1
        self._is_idle[stream] = True

    def _start_all(self) -> None:
        """Start every operation that may begin; one without duration ends at once and may let others begin."""
        # Streams are gone through again until none moves: one that ends at once may let a stream before it begin.
        moved = True
        while moved:
            moved = False
            for stream, operations in enumerate(self._steps):
                while self._is_idle[stream] and self._ended[stream] < len(operations):
                    step = operations[self._ended[stream]]
                    if not self._may_begin(step):
                        break
                    if self._start(stream, step):
                        self._is_idle[stream] = False
                    else:
                        self._ended[stream] += 1
                        moved = True
        if self._kernels:
            self._least, self._pace = min(self._left), self._kernels * (self._slowdown if self._sends else 1.0)
            self._kernel_s = self.now + max(self._least, 0.0) * self._pace
        else:
            self._kernel_s = NEVER
        # After all have begun: whether the GPU computes from now on is known only then, and every rate follows from it.
        if self._followed and self._followed.streams:
            self._followed.set_computing(self.now, is_computing=self._kernels > 0)
            for stream, then in self._followed.next_s().items():
                self._until[stream] = then

    def _may_begin(self, step: PricedStep) -> bool:
        return not step.after or all(self._ended[stream] > position for stream, position in step.after)

    def _start(self, stream: int, step: PricedStep) -> bool:
        """Start an operation; tell whether it takes any time."""
        price: Any = self._prices[step.price]
        if not step.sends:
            if price <= 0:
                return False
            self._began[stream], self._left[stream] = self.now, price * self._factor
            self._kernels += 1
            return True
        self._began[stream] = self.now
        self._sends += 1
        if self._arrive is not None:
            self._arrive(OperationId(stream, self._ended[stream]), self.now)
            return True
        if isinstance(price, OverlappedCost):
            self._followed = self._followed or CollectivesUnderWay()
            self._followed.begin(stream, price, self.now)
        else:
            self._until[stream] = self.now + price
        return True


class Turn(NamedTuple):
    """One operation of the stream that communicates.

    Attributes:
        place: of the operation in its stream.
        step: the operation.
        ready: operations of the other stream that must be done before it begins.
        limit: those that can be done before it has ended, since what follows waits for it.
    """

    place: int
    step: PricedStep
    ready: int
    limit: int


class TwoStreams(NamedTuple):
    """A program of which one stream has all collectives, and at most one other computes.

    Attributes:
        stream: the one that communicates; None where nothing does, nor computes in a second stream.
        compute: operations of the other.
        turns: operations of the one that communicates.
    """

    stream: int | None
    compute: tuple[PricedStep, ...]
    turns: tuple[Turn, ...]


def as_two_streams(steps: Steps) -> TwoStreams | None:
    """Return a program as one of this kind; None if it is none."""
    used = [stream for stream, operations in enumerate(steps) if operations]
    sending = [stream for stream in used if any(step.sends for step in steps[stream])]
    if len(used) > 2 or len(sending) > 1:
        return None
    comm = next(iter([*sending, *used[1:]]), None)
    comp = next((stream for stream in used if stream != comm), None)
    compute = () if comp is None else steps[comp]
    # Up to which operation of the other stream each one waits for.
    awaited = [max((sent.position for sent in step.after if sent.stream == comm), default=-1) for step in compute]
    turns, held = [], 0  # the first operation of compute that waits for this turn or a later one
    for place, step in enumerate(() if comm is None else steps[comm]):
        while held < len(compute) and awaited[held] < place:
            held += 1
        ready = max((kernel.position + 1 for kernel in step.after if kernel.stream == comp), default=0)
        assert ready <= held, "a rank waits for ever"
        turns.append(Turn(place, step, ready, held))
    return TwoStreams(comm, compute, tuple(turns))


class MeetingRanks(NamedTuple):
    """Ranks that wait for each other, each a lane of arrays.

    Attributes:
        factor: on all compute of each rank.
        collective_ends_s: gives when a collective, by stream and position, ends on each rank, from when ranks arrive
            and for how long their GPUs then go on to compute [s].
        computed: takes note of a kernel and its seconds.
        slowed: takes note of what the compute stream had done before and after a collective that slowed it, in seconds
            of an idle GPU.
    """

    factor: "FloatArray"
    collective_ends_s: "Callable[[int, int, FloatArray, FloatArray], FloatArray]"
    computed: Callable[[Operation, Any], None]
    slowed: Callable[[Any, Any], None]


def two_streams(  # noqa: PLR0913
    program: TwoStreams,
    prices: Sequence[Price],
    slowdown: Number,
    *,
    start_s: Any = 0.0,
    ranks: MeetingRanks | None = None,
    in_arrays: bool = False,
) -> Any:
    """Return when a program is done [s].

    What the compute stream has done at the end of each turn follows from what it had done at its start: where both
    compute each has half of the GPU, and a collective slows compute, also while a rank waits for others.

    Args:
        program: to run.
        prices: by number; floats, or arrays over lanes.
        slowdown: factor on compute while communication runs, >= 1; a float, or an array over lanes.
        start_s: when it begins: a float, or an array over ranks [s].
        ranks: those that wait for each other; without them every lane is alone.
        in_arrays: whether any number is an array.
    """
    least, largest = _of_arrays() if in_arrays or ranks else (min, max)
    factor: Any = 1.0 if ranks is None else ranks.factor
    ends: list[Any] = list(accumulate((prices[step.price] for step in program.compute), initial=0.0))
    # `now` is a time, `ends` and `done` are seconds of an idle GPU: what slows compute changes the first alone, so that
    # `ends` is summed once for all lanes.
    now: Any = start_s
    done: Any = 0.0
    pace = slowdown * factor
    reached = 0  # operations of the compute stream that are done in every lane
    for place, step, ready, limit in program.turns:
        if ready > reached:  # only then may any lane have to wait; the comparison of integers spares most maxima
            now = now + largest(ends[ready] - done, 0.0) * factor
            done, reached = largest(ends[ready], done), ready
        price: Any = prices[step.price]
        left = ends[limit] - done  # of what compute can do before this turn has ended
        if step.sends:
            if ranks is None:
                then = now + (price.seconds(left * pace) if isinstance(price, OverlappedCost) else price)
            else:
                then = ranks.collective_ends_s(program.stream or 0, place, now, left * pace)
            if limit > reached:
                before, done = done, least(done + (then - now) / pace, ends[limit])
                if ranks is not None:
                    ranks.slowed(before, done)
            now = then
            continue
        # A kernel beside compute: each has half of the GPU until the shorter one is done.
        shared = least(price, left) if limit > reached else 0.0
        now, done = now + (price + shared) * factor, done + shared
        if ranks is not None:
            ranks.computed(step.operation, price * factor)
    if ranks is not None:
        for step in program.compute:
            ranks.computed(step.operation, prices[step.price] * factor)
    return now + (ends[-1] - done) * factor  # compute that nothing was sent beside


def _of_arrays() -> tuple[Any, Any]:
    import numpy as np

    return np.minimum, np.maximum


def _computes(stream: Sequence[PricedStep]) -> bool:
    return any(not isinstance(step.operation, Communicate) for step in stream)


def one_computes(steps: Steps) -> bool:
    """Tell whether at most one stream of a program computes."""
    return sum(map(_computes, steps)) <= 1


def sweep(
    steps: Steps, prices: Sequence[Price], slowdown: Number, *, start_s: Any = 0.0, ranks: MeetingRanks | None = None
) -> Any:
    """Return when a program is done of which `one_computes` [s]; arguments as of `two_streams`, all in arrays."""
    return _StreamsInArrays(steps, prices, slowdown, start_s, ranks).run()


class _StreamsInArrays:
    """Streams while their operations are gone through, each as soon as what it waits for is known.

    All collectives that compute so far allows are known before its next kernel begins, and so is what slows it.
    """

    def __init__(
        self, steps: Steps, prices: Sequence[Price], slowdown: Number, start_s: Any, ranks: MeetingRanks | None
    ) -> None:
        self._steps, self._prices, self._slowdown, self._ranks = steps, prices, slowdown, ranks
        self._factor: Any = 1.0 if ranks is None else ranks.factor
        self._computing = next((number for number, stream in enumerate(steps) if _computes(stream)), 0)
        self._at, self._free = [0] * len(steps), [start_s] * len(steps)
        self._ends: dict[tuple[int, int], Any] = {}
        self._slowing: list[tuple[Any, Any]] = []  # when collectives that may slow the next kernel begin and end

    def run(self) -> Any:
        """Return when all is done."""
        _, largest = _of_arrays()
        # The stream that computes comes last, and one kernel at a time: it must know all that may slow its next kernel.
        order = [*(number for number in range(len(self._steps)) if number != self._computing), self._computing]
        moved = True
        while moved:
            moved = False
            for stream in order:
                while self._is_known(stream):
                    self._go(stream)
                    moved = True
                    if stream == self._computing:
                        break
        return functools.reduce(largest, self._free)

    def _is_known(self, stream: int) -> bool:
        """Tell whether it is known when the next operation of a stream begins."""
        at = self._at
        if at[stream] == len(self._steps[stream]):
            return False
        return all(at[awaited.stream] > awaited.position for awaited in self._steps[stream][at[stream]].after)

    def _go(self, stream: int) -> None:
        position = self._at[stream]
        step = self._steps[stream][position]
        _, largest = _of_arrays()
        now = functools.reduce(largest, (self._ends[awaited] for awaited in step.after), self._free[stream])
        if step.sends:
            end = self._sent(stream, position, now)
        elif isinstance(step.operation, Communicate):
            end = now  # it sends nothing
        else:
            end = self._computed(step, now)
        self._free[stream] = self._ends[stream, position] = end
        self._at[stream] += 1

    def _sent(self, stream: int, position: int, now: Any) -> Any:
        price: Any = self._prices[self._steps[stream][position].price]
        ranks = self._ranks
        end = now + price if ranks is None else ranks.collective_ends_s(stream, position, now, self._going_on_s(now))
        self._slowing.append((now, end))
        return end

    def _going_on_s(self, now: Any) -> Any:
        """Return for how long the GPU of each rank goes on to compute if nothing else happens [s]."""
        _, largest = _of_arrays()
        left = largest(self._free[self._computing] - now, 0.0)
        after = uninterrupted_s(self._steps[self._computing], self._prices, self._at[self._computing])
        return left + (left > 0) * after * self._slowdown * self._factor

    def _computed(self, step: PricedStep, now: Any) -> Any:
        # What has ended in every lane slows nothing any more; without this a step of n collectives takes n ** 2 work.
        self._slowing = [interval for interval in self._slowing if (interval[1] > now).any()]
        price: Any = self._prices[step.price]
        end = _slowed_end_s(now, price * self._factor, self._slowing, self._slowdown)
        if self._ranks is not None:
            self._ranks.computed(step.operation, end - now)
        return end


def uninterrupted_s(stream: Sequence[PricedStep], prices: Sequence[Price], position: int) -> Any:
    """Return the seconds of the kernels from a position on that follow without waiting for anything."""
    total: Any = 0.0
    for step in stream[position:]:
        if step.sends or step.after:
            break
        seconds: Any = prices[step.price]
        total = total + seconds
    return total


def _slowed_end_s(now: Any, left: Any, intervals: Sequence[tuple[Any, Any]], slowdown: Any) -> Any:
    """Return when kernels end that take `slowdown` times as long within these intervals."""
    import numpy as np

    if not intervals or (isinstance(slowdown, float) and slowdown == 1):
        return now + left
    shape = np.broadcast_shapes(*(np.shape(number) for number in (now, left, slowdown, *intervals[0])))
    begins, ends = (np.stack([np.broadcast_to(interval[side], shape) for interval in intervals]) for side in (0, 1))
    near = (begins < now + left * np.max(slowdown)).any(axis=tuple(range(1, begins.ndim)))
    begins, ends = begins[near], ends[near]  # others begin after the kernel has ended in every lane
    now, left = np.broadcast_to(now, shape), np.broadcast_to(left, shape)
    # Between two neighbouring points the pace of a lane is one number, so that each lane goes from point to point.
    for point in (*np.sort(np.concatenate([begins, ends]), axis=0), math.inf):
        if not np.any(left):
            break
        is_slowed = ((begins <= now) & (now < ends)).any(axis=0)
        pace = np.where(is_slowed, slowdown, 1.0)
        room = np.maximum(point - now, 0.0) / pace
        is_over = left <= room
        now, left = np.where(is_over, now + left * pace, np.maximum(now, point)), np.where(is_over, 0.0, left - room)
    return now
