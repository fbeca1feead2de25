"""Steps that each worker takes alone, with an exchange after some of them: what local SGD and DiLoCo share.

A period has `inner_steps` steps. Of these the streams of the program hold those in which something is exchanged; the
others are all alike, and simulated once.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from msgspec.structs import replace

from simnet.cluster.topology import Topology
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.strategies.all_reduce import Algorithm, check_algorithm
from simnet.strategies.base import Exchange, Mathematics, Strategy, choose_all_reduce, data_parallel
from simnet.strategies.program import Communicate, Compute, InnerSteps, Kernel, Operation, OperationId, Program
from simnet.workload import buckets as bucketing
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket, LinearCost
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.training_step import Step

COMPUTE, INNER, OUTER = 0, 1, 2
"""Streams: of the GPU, of the exchange inside a worker, and of that between workers where steps hide it."""


class OuterExchange(NamedTuple):
    """What workers do after some of their steps.

    Attributes:
        before: kernels that make what is exchanged.
        exchange: what is exchanged, which steps of the next period may hide.
        after: what follows when it has ended: kernels, and messages that block.
    """

    before: tuple[Kernel, ...]
    exchange: Exchange
    after: tuple[Operation, ...]


class LocalStepsStrategy(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train workers apart for some steps.

    Attributes:
        inner_steps: optimizer steps of a worker between two exchanges of the same parameters.
        workers: "rank" lets each rank train alone; with "node" the ranks of a node are one worker, which all-reduces
            gradients in the node at every step, as DDP does.
        algorithm: the all-reduce algorithm between workers, as of `all_reduce`.
    """

    compresses: ClassVar[bool] = False
    uses_ddp_buckets: ClassVar[bool] = False

    inner_steps: Count = 8
    workers: Literal["rank", "node"] = "rank"
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)
        if self.bucketing == "mg_wfbp":
            raise ValueError("bucketing: 'mg_wfbp': weighs exchanges of every step; use another, or leave it out")
        if self.workers == "rank" and (self.bucketing, self.bucket_cap, self.overlap) != ("ddp", None, True):
            raise ValueError(
                "workers: with 'rank' nothing is exchanged during backward; drop bucketing, bucket_cap and overlap, or "
                "set workers = 'node'"
            )

    @property
    def mathematics(self) -> Mathematics:
        """Steps that each worker takes alone; with one step between exchanges too, since parameters are averaged."""
        return "local_steps"

    def held_by_worker(self, model: ModelMemory, topology: Topology) -> RankMemory:
        """Return what a rank holds but for the exchange between workers: DDP's buckets where a worker has several."""
        held = gpu_memory.in_buckets(model)
        is_alone = self.workers == "rank" or topology.ranks_per_node == 1
        return replace(held, gradients=model.gradients, buckets=0.0) if is_alone else held

    def bucketing_variants(self, caps: Sequence[Size | None]) -> tuple[Strategy, ...]:  # noqa: ARG002
        """Return it alone: buckets inside a node hide behind backward as a rule."""
        return (self,)

    def period(
        self, step: Step, topology: Topology, outer: OuterExchange, *, steps: int, overlapped: int = 0
    ) -> Program:
        """Return a period of steps, in which there is one exchange.

        Args:
            step: what a worker computes.
            topology: of the network.
            outer: the exchange.
            steps: of the period.
            overlapped: steps that hide the exchange.
        """
        inner = self.inner_step(step, topology)
        # What no step hides runs on the stream of the inner exchange, idle by then: two streams are simulated several
        # times as fast as three.
        made = _Streams(OUTER if overlapped else INNER)
        made.add_steps(inner, 1)
        made.add(COMPUTE, outer.before)
        made.add(made.outer, outer.exchange.operations, made.last(COMPUTE))
        made.add_steps(inner, overlapped)
        made.add_blocking(outer.after)
        left = steps - overlapped - 1
        return Program(
            streams=tuple(map(tuple, made.streams)),
            num_buckets=inner.num_buckets,
            payload_bytes=outer.exchange.payload_bytes / steps,
            algorithm=outer.exchange.algorithm,
            num_steps=1 + overlapped,
            inner=InnerSteps(program=inner, number=left) if left else None,
        )

    def inner_step(self, step: Step, topology: Topology) -> Program:
        """Return a step of a worker.

        Raises:
            SimnetError: it does not fit the workload.
        """
        if self.workers == "rank" or topology.ranks_per_node == 1:
            return _compute_alone(step)
        # mg_wfbp is refused, so that no cost is asked for.
        buckets = bucketing.build(self, step, LinearCost(start_up_s=0.0, s_per_byte=0.0))
        exchanges = [_all_reduced_in_node(bucket, step, topology) for bucket in buckets]
        return data_parallel(self, step, buckets, exchanges)


def fragment(step: Step, count: int) -> Bucket:
    """Return one of so many equal parts of all parameters."""
    shapes = tuple(one.shape for one in step.tensors if one.shape is not None)
    is_whole = count == 1 and len(shapes) == len(step.tensors) > 0
    return Bucket(
        index=0,
        num_elements=step.num_elements / count,
        backward_fraction=1.0,
        shapes=shapes if is_whole else None,
    )


def check_fits(key: str, number: int, limit: int, rule: str) -> None:
    """Refuse a number above a limit.

    Raises:
        SimnetError: it is.
    """
    if number > limit:
        raise SimnetError(f"strategy.{key}: {number}: {rule}; give at most {limit}")


def _compute_alone(step: Step) -> Program:
    forward_s, backward_s = step.micro_batches * step.forward_s, step.micro_batches * step.backward_s
    compute = (
        Compute(part="forward", seconds=forward_s),
        Compute(part="backward", seconds=backward_s),
        Compute(part="optimizer", seconds=step.optimizer_s),
    )
    return Program(streams=(compute, ()), num_buckets=1, payload_bytes=step.gradient_bytes, algorithm="none")


def _all_reduced_in_node(bucket: Bucket, step: Step, topology: Topology) -> Exchange:
    message_bytes = bucket.num_elements * step.bytes_per_element
    collective, label = choose_all_reduce(None, topology, message_bytes, "intra_node")
    return Exchange((collective,), message_bytes, label)


class _Streams:
    """Streams while they are made: steps one after another, and an exchange beside them."""

    def __init__(self, outer: int) -> None:
        self.outer = outer
        self.streams: list[list[Operation]] = [[] for _ in range(outer + 1)]

    def add_steps(self, inner: Program, number: int) -> None:
        """Add steps; the next one begins when compute of the last one has ended."""
        for _ in range(number):
            ends = [len(stream) for stream in self.streams]
            for index, stream in enumerate(inner.streams):
                self.streams[index] += [_moved(one, ends) for one in stream]

    def add(self, stream: int, operations: Sequence[Operation], after: Sequence[OperationId] = ()) -> None:
        """Add operations that follow each other, the first after others, too."""
        for number, operation in enumerate(operations):
            waited = (*operation.after, *(after if not number else ()))
            self.streams[stream].append(replace(operation, after=waited))

    def add_blocking(self, operations: Sequence[Operation]) -> None:
        """Add operations after the exchange, of which compute waits for each."""
        self.add(COMPUTE, [Compute(part="optimizer", seconds=0.0)], self.last(self.outer))
        for operation in operations:
            stream, waited = (self.outer, COMPUTE) if isinstance(operation, Communicate) else (COMPUTE, self.outer)
            self.add(stream, [operation], self.last(waited))
        if operations and isinstance(operations[-1], Communicate):
            self.add(COMPUTE, [Compute(part="optimizer", seconds=0.0)], self.last(self.outer))

    def last(self, stream: int) -> tuple[OperationId, ...]:
        """Return the last operation of a stream, as what another waits for."""
        return (OperationId(stream, len(self.streams[stream]) - 1),) if self.streams[stream] else ()


def _moved(operation: Operation, by: Sequence[int]) -> Operation:
    """Return an operation that waits for what is so much further back in each stream."""
    return replace(
        operation, after=tuple(OperationId(one.stream, one.position + by[one.stream]) for one in operation.after)
    )
