"""Run any program on the discrete-event clock: every stream of every rank is a process.

Streams of one rank share its GPU; collectives of all ranks share the links. `simnet.folded_runner` runs the same
programs in a plain loop, to the same bits, where one rank stands for all and no two collectives share a link.
"""

from collections.abc import Callable, Generator
from functools import partial

import simpy

from simnet.collectives.execute import Executor
from simnet.network.gpu import Gpu
from simnet.network.topology import Topology
from simnet.program import Communicate, Compute, OperationId
from simnet.result import Span
from simnet.timeline import Streams, TimedOperation, Timeline, make_span, make_timeline

MakeExecutor = Callable[[simpy.Environment, Topology], Executor]


def run(streams: Streams, topology: Topology, comm_slowdown: float, make_executor: MakeExecutor) -> Timeline:
    """Simulate one iteration on the ranks that the executor asks for.

    Args:
        streams: of a program, every kernel timed.
        topology: the ranks and their links.
        comm_slowdown: factor on compute while communication runs, >= 1.
        make_executor: of collectives.
    """
    env = simpy.Environment()
    executor = make_executor(env, topology)
    ranks = [_SimulatedRank(env, number, streams, executor, comm_slowdown) for number in range(executor.num_ranks)]
    for rank in ranks:
        for number, stream in enumerate(streams):
            env.process(rank.run(number, stream))
    env.run()
    # Synchronous training goes on when the last rank is done: the iteration is that of the slowest rank.
    slowest = max(ranks, key=lambda rank: rank.end_s)
    return make_timeline(slowest.end_s, slowest.gpu.busy_s, slowest.spans)


class _SimulatedRank:
    """One rank, or the one that stands for all, while it runs."""

    def __init__(
        self, env: simpy.Environment, number: int, streams: Streams, executor: Executor, comm_slowdown: float
    ) -> None:
        self._env = env
        self._number = number
        self._executor = executor
        waited_for = {waited for stream in streams for operation in stream for waited in operation.after}
        self._ended = {operation_id: env.event() for operation_id in waited_for}
        self.gpu = Gpu(
            env,
            slowdown=executor.topology.compute_factor(number),
            comm_slowdown=comm_slowdown,
            on_change=partial(executor.compute_changes, number) if executor.topology.compute_slows_links else None,
        )
        self.spans: list[Span] = []
        self.end_s = 0.0

    def run(self, stream: int, operations: tuple[TimedOperation, ...]) -> Generator[simpy.Event]:
        """Go through the operations of one stream."""
        for index, operation in enumerate(operations):
            for waited in operation.after:
                yield self._ended[waited]
            operation_id = OperationId(stream, index)
            if isinstance(operation, Communicate):
                yield from self._communicate(operation, operation_id)
            else:
                yield from self._compute(operation, operation_id)
            if operation_id in self._ended:
                self._ended[operation_id].succeed()
        self.end_s = max(self.end_s, self._env.now)

    def _compute(self, operation: Compute, operation_id: OperationId) -> Generator[simpy.Event]:
        start_s = self._env.now
        yield self.gpu.run(operation.part, operation.seconds)
        self._keep(operation, operation_id, start_s)

    def _communicate(self, operation: Communicate, operation_id: OperationId) -> Generator[simpy.Event]:
        """Take part in a collective; its id, the same on every rank, names it to the executor."""
        if not operation.schedule.rounds:
            return
        self.gpu.communication_starts()
        start_s, _ = yield from self._executor.run(
            self._number, operation_id, operation.schedule, operation.message_bytes
        )
        self.gpu.communication_ends()
        self._keep(operation, operation_id, start_s)

    def _keep(self, operation: TimedOperation, operation_id: OperationId, start_s: float) -> None:
        if self._env.now > start_s:
            self.spans.append(make_span(operation, operation_id, start_s, self._env.now, self._number))
