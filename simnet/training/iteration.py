"""One iteration on the discrete-event clock: a compute stream and a communication stream on every rank.

Backward makes buckets ready; the communication stream takes them in order, one exchange after the other, as a single
communication thread or NCCL stream does. Kernels of an exchange share the GPU with backward.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import simpy

from simnet.collectives.execute import Executor
from simnet.hardware import Calibration
from simnet.network.gpu import Gpu
from simnet.network.topology import Topology
from simnet.result import Breakdown, Span
from simnet.training.plan import Plan
from simnet.training.stages import Collective, Stage
from simnet.workload.codec import kernel_s


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What an iteration took on its slowest rank [s], and what ran there."""

    iteration_s: float
    breakdown: Breakdown
    comm_s: float
    spans: tuple[Span, ...]


@dataclass(kw_only=True)
class _Rank:
    """One rank (or the representative of all) while it runs."""

    number: int
    gpu: Gpu
    spans: list[Span] = field(default_factory=list)
    end_s: float = 0.0


def run(
    plan: Plan,
    topology: Topology,
    calibration: Calibration,
    make_executor: Callable[[simpy.Environment, Topology], Executor],
) -> Timeline:
    """Simulate one iteration on the ranks that the executor asks for."""
    env = simpy.Environment()
    executor = make_executor(env, topology)
    numbers = range(executor.num_ranks)
    ranks = [
        _Rank(
            number=number,
            gpu=Gpu(
                env, slowdown=topology.compute_slowdown(number), comm_slowdown=float(calibration.backward_slowdown)
            ),
        )
        for number in numbers
    ]
    for rank in ranks:
        env.process(_Iteration(env, plan, executor, calibration, rank).run())
    env.run()
    return _timeline(max(ranks, key=lambda rank: rank.end_s))


class _Iteration:
    """The processes of one rank."""

    def __init__(
        self, env: simpy.Environment, plan: Plan, executor: Executor, calibration: Calibration, rank: _Rank
    ) -> None:
        self._env = env
        self._plan = plan
        self._executor = executor
        self._calibration = calibration
        self._rank = rank
        self._ready = [env.event() for _ in plan.buckets]
        self._backward_done = env.event()
        self._sequence = 0

    def run(self) -> Generator[simpy.Event]:
        """Forward and backward of every micro-batch, exchanges beside the last backward, then the optimizer."""
        communication = self._env.process(self._communicate())
        step = self._plan.step
        for _ in range(self._plan.grad_accumulation - 1):
            yield from self._compute("forward", step.forward_s)
            yield from self._compute("backward", step.backward_s)
        yield from self._compute("forward", step.forward_s)
        for bucket, ready in zip(self._plan.buckets, self._ready, strict=True):
            yield from self._compute("backward", step.backward_s * bucket.backward_part, bucket.index)
            ready.succeed()
        self._backward_done.succeed()
        yield communication
        yield from self._compute("optimizer", self._plan.optimizer_s)
        self._rank.end_s = self._env.now

    def _communicate(self) -> Generator[simpy.Event]:
        for bucket, exchange in zip(self._plan.buckets, self._plan.exchanges, strict=True):
            yield self._ready[bucket.index] if self._plan.overlap else self._backward_done
            for stage in exchange.stages:
                yield from self._stage(stage, bucket.index)
        for stage in self._plan.settlement:
            yield from self._stage(stage, None)

    def _stage(self, stage: Stage, bucket: int | None) -> Generator[simpy.Event]:
        if isinstance(stage, Collective):
            yield from self._collective(stage, bucket)
        else:
            seconds = kernel_s(self._calibration, stage.name, stage.num_elements)
            yield from self._compute(stage.part, seconds, bucket, stage.name)

    def _compute(self, part: str, seconds: float, bucket: int | None = None, name: str = "") -> Generator[simpy.Event]:
        start_s = self._env.now
        yield self._rank.gpu.run(part, seconds)
        self._keep("compute", name or part, start_s, bucket)

    def _collective(self, stage: Collective, bucket: int | None) -> Generator[simpy.Event]:
        sequence, self._sequence = self._sequence, self._sequence + 1
        if not stage.schedule.rounds:
            return
        self._rank.gpu.communication_starts()
        times = yield from self._executor.run(self._rank.number, sequence, stage.schedule, stage.message_bytes)
        self._rank.gpu.communication_ends()
        self._keep("communication", stage.schedule.name, times[0], bucket, stage.message_bytes)

    def _keep(self, stream: str, name: str, start_s: float, bucket: int | None, wire_bytes: float = 0.0) -> None:
        if self._env.now > start_s:
            self._rank.spans.append(
                Span(
                    stream=stream,  # type: ignore[arg-type]
                    name=name,
                    start_s=start_s,
                    end_s=self._env.now,
                    rank=self._rank.number,
                    bucket=bucket,
                    wire_bytes=wire_bytes,
                )
            )


def _timeline(rank: _Rank) -> Timeline:
    busy = rank.gpu.busy_s
    parts = {f"{part}_s": busy[part] for part in ("forward", "backward", "encode", "decode", "optimizer")}
    exposed_s = max(rank.end_s - sum(parts.values()), 0.0)
    comm_s = sum(span.end_s - span.start_s for span in rank.spans if span.stream == "communication")
    return Timeline(
        iteration_s=rank.end_s,
        breakdown=Breakdown(exposed_comm_s=exposed_s, **parts),
        comm_s=comm_s,
        spans=tuple(rank.spans),
    )
