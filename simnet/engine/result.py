"""The nouns of a result: what an iteration took, on which stream, and how sure that is; and their one form as JSON.

The journal of a sweep, results.json, `simulate --format json`, tables and figures all hold these structs. Being frozen
plain data they form no cycles, so Python's garbage collector need not look at them (`gc=False`).
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from simnet.cluster.faults.node_failure import Availability
from simnet.engine.scenario import BatchSettings, Scenario, encode, with_settings
from simnet.strategies import AnyStrategy
from simnet.strategies.program import OperationId
from simnet.workload.gpu_memory import GpuMemory

FORMAT = 5
"""Format of results.json; raise it when a field of these structs changes its name or meaning."""
ROUNDING = 1e-9
VARIES = 1e-6
"""Relative: iterations that differ by less differ by rounding."""
# The widest range of numbers that axes can be drawn for.
SMALLEST, LARGEST = 1e-30, 1e30
Positive = Annotated[float, Meta(ge=SMALLEST, le=LARGEST)]


class LateRank(Struct, frozen=True, kw_only=True, gc=False):
    """A rank for which others wait.

    Attributes:
        rank: its number.
        share: part of its collectives, 0 to 1, at which it came last by its own doing.
        held_s: by how much longer than the typical rank of its group it took since its last collective, summed over the
            collectives of a mean iteration to which it came last; how late a collective left it is not its own.
    """

    rank: int
    share: float
    held_s: float


class RankWaits(Struct, frozen=True, kw_only=True, gc=False):
    """How long ranks wait for each other at collectives, in a mean iteration.

    Attributes:
        mean_s: mean over the ranks.
        least_s: of the rank that waits least, for which others wait most.
        most_s: of the rank that waits most.
        late: ranks for which others wait longest, at most eight, the latest first.
    """

    mean_s: float
    least_s: float
    most_s: float
    late: tuple[LateRank, ...] = ()


class StepTimes(Struct, frozen=True, kw_only=True, gc=False):
    """Times of an iteration, or differences of such times, which may be negative.

    Attributes:
        mean_s: mean.
        p50_s: median.
        p95_s: 95th percentile.
    """

    mean_s: float
    p50_s: float
    p95_s: float

    def minus(self, other: "StepTimes") -> "StepTimes":
        """Return how much longer these are than others."""
        return StepTimes(
            mean_s=self.mean_s - other.mean_s, p50_s=self.p50_s - other.p50_s, p95_s=self.p95_s - other.p95_s
        )


class LostToFault(Struct, frozen=True, kw_only=True, gc=False):
    """What an iteration takes longer than without one fault, all others as they are.

    Attributes:
        key: of the fault, such as "cluster.faults.0".
        lost: with it less without it.
    """

    key: str
    lost: StepTimes


class LostTime(Struct, frozen=True, kw_only=True, gc=False):
    """What faults cost an iteration, each by itself and all together.

    Attributes:
        faults: each by itself, in the order of the cluster file.
        together: what all of them cost.
        interaction: `together` less the sum over `faults`: above 0 where faults hide each other, so that removing one
            alone gains less; below 0 where each makes the others worse.
    """

    faults: tuple[LostToFault, ...]
    together: StepTimes
    interaction: StepTimes


class Breakdown(Struct, frozen=True, kw_only=True, gc=False):
    """Where the seconds of one iteration went, on the slowest rank; the six add up to the iteration.

    Attributes:
        forward_s: forward.
        backward_s: backward.
        encode_s: kernels that compress.
        decode_s: kernels that decompress.
        exposed_comm_s: communication that compute did not hide.
        optimizer_s: the optimizer.
    """

    forward_s: float
    backward_s: float
    encode_s: float
    decode_s: float
    exposed_comm_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        """Sum of the parts [s]."""
        return float(sum(getattr(self, name) for name in self.__struct_fields__))


class Span(Struct, frozen=True, kw_only=True, gc=False):
    """One thing that ran, for a trace; times are counted from the start of the iteration.

    Attributes:
        stream: where it ran.
        name: name of the kernel, or of the collective, such as "all_reduce".
        start_s: when it began.
        end_s: when it ended.
        rank: the rank it ran on.
        bucket: number of its bucket.
        algorithm: algorithm of a collective.
        message_bytes: bytes of the whole message of a collective, not those that a rank sends for it.
        operation: which operation of the strategy's program it is.
    """

    stream: Literal["compute", "communication"]
    name: str
    start_s: float
    end_s: float
    rank: int = 0
    bucket: int | None = None
    algorithm: str = ""
    message_bytes: float = 0.0
    operation: OperationId | None = None


class StrategyResult(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What one strategy takes on one scenario.

    Attributes:
        strategy: name of the strategy.
        fidelity: the executor.
        algorithm: how gradients travel; of "auto", what it chose.
        iterations_s: all simulated iterations, `run.iterations` of them: from when the last rank is done with the one
            before to when the last is done.
        samples_per_s: of all ranks together.
        breakdown: of an iteration.
        comm_s: time that the communication stream was busy.
        overlap: fraction of `comm_s` that compute hid; 0 if there was none.
        nic_bytes_per_node: that leave a node in an iteration.
        compression_ratio: bytes of the gradients / bytes on the wire where it compresses.
        num_buckets: of an iteration.
        longest_pause_s: longest time in which the GPU of the slowest rank waits for messages, where steps differ;
            `iteration_s`, `breakdown`, `comm_s` and `nic_bytes_per_node` are then means over a period.
        dense_iteration_s: an iteration of the dense stage.
        dense_fraction: part of a long training's steps that the dense stage takes, 0 to 1.
        total_s: `run.steps` steps.
        memory: what a GPU holds when that is most; not of a recorded step.
        waits: how long ranks wait for each other, where they are not alike.
        availability: which part of a day trains, where nodes fail.
        approximation: about by which part the mean iteration may be off the exact executor's.
        lost_time: what each fault costs, with `simnet simulate --lost-time`.
        spans: what ran when, in a trace alone.
    """

    strategy: str
    fidelity: str
    algorithm: str
    iterations_s: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    samples_per_s: Positive
    breakdown: Breakdown
    comm_s: float
    overlap: float
    nic_bytes_per_node: float
    compression_ratio: float
    num_buckets: int
    longest_pause_s: float | None = None
    dense_iteration_s: float | None = None
    dense_fraction: float = 0.0
    total_s: Positive | None = None
    memory: GpuMemory | None = None
    waits: RankWaits | None = None
    availability: Availability | None = None
    approximation: float = 0.0
    lost_time: LostTime | None = None
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        """Check that the parts of the iteration can be stacked."""
        for name in self.breakdown.__struct_fields__:
            part_s = getattr(self.breakdown, name)
            if not -ROUNDING * self.iteration_s <= part_s <= 1e30:
                raise ValueError(f"breakdown: {name} {part_s!r}: must be a time of 0 or more")

    @property
    def memory_bytes(self) -> float | None:
        """What a GPU holds when that is most, as far as it is known [B]."""
        return None if self.memory is None else self.memory.total_bytes

    @property
    def iteration_s(self) -> float:
        """Mean time of an iteration [s]."""
        first = self.iterations_s[0]
        # The sum of equal numbers is not always their multiple.
        is_one = all(iteration_s == first for iteration_s in self.iterations_s)
        return first if is_one else sum(self.iterations_s) / len(self.iterations_s)

    @property
    def step_s(self) -> float:
        """Mean step of a long training, its dense stage counted by its share of the steps [s]."""
        if self.dense_iteration_s is None:
            return self.iteration_s
        return self.iteration_s + self.dense_fraction * (self.dense_iteration_s - self.iteration_s)

    @property
    def num_iterations(self) -> int:
        """Iterations that were simulated."""
        return len(self.iterations_s)

    @property
    def p50_s(self) -> float:
        """Median time of an iteration [s]."""
        return self.percentile_s(50)

    @property
    def p95_s(self) -> float:
        """Time that 95 % of the iterations do not exceed [s]."""
        return self.percentile_s(95)

    @property
    def p99_s(self) -> float:
        """Time that 99 % of the iterations do not exceed [s]."""
        return self.percentile_s(99)

    @property
    def longest_s(self) -> float:
        """Time of the longest iteration [s]."""
        return max(self.iterations_s)

    @property
    def times(self) -> StepTimes:
        """Mean, median and 95th percentile of the iterations."""
        return StepTimes(mean_s=self.iteration_s, p50_s=self.p50_s, p95_s=self.p95_s)

    @property
    def varies(self) -> bool:
        """Whether iterations differ by more than rounding does."""
        return self.longest_s > min(self.iterations_s) * (1 + VARIES)

    @property
    def wait_s(self) -> float | None:
        """How long a rank waits for others in a mean iteration, the mean over the ranks [s]; None if all are alike."""
        return None if self.waits is None else self.waits.mean_s

    @property
    def trained_fraction(self) -> float | None:
        """Which part of the time trains, where nodes fail; None where none does."""
        return None if self.availability is None else self.availability.fraction

    def percentile_s(self, percent: float) -> float:
        """Return the time that so many per cent of the iterations do not exceed, interpolated between two [s]."""
        ordered = sorted(self.iterations_s)
        place = (len(ordered) - 1) * percent / 100
        low = int(place)
        return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


class Influence(Struct, frozen=True, kw_only=True, gc=False):
    """What a result would be if one uncertain value were at either end of its interval, all others as calibrated.

    Attributes:
        key: dotted key of the value in the scenario, such as "calibration.codec_efficiency".
        interval: 90 %, as factors on the value.
        values: the speedup there, or without a baseline the time of an iteration [s].
    """

    key: str
    interval: tuple[Positive, Positive]
    values: tuple[Positive, Positive]

    def effect(self, usual: float) -> float:
        """Return the largest relative change of the usual result."""
        return max(abs(value / usual - 1) for value in self.values)


class References(Struct, frozen=True, kw_only=True, gc=False):
    """What every speedup is over, and what stands beside it.

    Attributes:
        strategy: the fastest that changes nothing in training and fits the GPU: DDP at its best, or what shards.
        settings: how the batch is cut for it.
        tuned: what people call it, such as "tuned DDP (bf16, hierarchical)".
        tuned_s: its step [s].
        flat: DDP with its defaults, one ring and gradients in their own precision, such as "flat fp32 DDP".
        flat_s: its step [s]; None where it does not fit the GPU.
        named: the scenario's `baseline`; "" without one, or where it is one of the two.
        named_s: its step [s].
    """

    strategy: AnyStrategy
    settings: BatchSettings
    tuned: str
    tuned_s: Positive
    flat: str
    flat_s: Positive | None
    named: str = ""
    named_s: Positive | None = None

    def scenario_of(self, scenario: Scenario) -> Scenario:
        """Return a scenario with the strategy that it is compared with as its own, the batch cut for it."""
        there = with_settings(scenario, self.settings)
        return replace(there, strategy=self.strategy, baseline=None)


def compared_with(scenario: Scenario, references: References | None) -> Scenario | None:
    """Return the scenario of what a strategy is compared with, as its strategy: the reference, else the baseline."""
    if references is not None:
        return references.scenario_of(scenario)
    if scenario.baseline is None:
        return None
    return replace(scenario, strategy=scenario.baseline, baseline=None)


class RunResult(Struct, frozen=True, kw_only=True, gc=False):
    """A resolved scenario with what its strategy takes, and how that compares.

    Attributes:
        scenario: all that was simulated; `simnet simulate FILE.json` simulates it again.
        world_size: ranks of all nodes.
        result: what the strategy takes.
        baseline: what the strategy is compared with takes: the tuned reference; the scenario's baseline where nobody
            asked for references, or they are not known.
        speedup: mean step of the baseline / of the strategy, the share of a dense stage counted.
        end_to_end_speedup: the same of `run.steps` steps.
        gradient_bytes: of one rank, before compression.
        version: version of simnet.
        notes: what a reader must know to trust the numbers.
        intervals: 90 % intervals by name, such as `{"speedup": [3.9, 4.4]}`, if `run.draws` asks for them, with the
            model's own error.
        sensitive_to: values that the result is most sensitive to, the first most, where there are intervals.
        references: what the speedup is over; None where that would take the exact executor, nothing that changes
            nothing fits the GPU, or nobody asked.
    """

    scenario: Scenario
    world_size: Annotated[int, Meta(ge=1, le=10**12)]
    result: StrategyResult
    baseline: StrategyResult | None = None
    speedup: Positive | None = None
    end_to_end_speedup: Positive | None = None
    gradient_bytes: float = 0.0
    version: str = ""
    notes: tuple[str, ...] = ()
    intervals: dict[str, tuple[Positive, Positive]] = {}
    sensitive_to: tuple[Influence, ...] = field(name="hangs_on", default=())
    references: References | None = None

    def __post_init__(self) -> None:
        """Check that each node has a rank."""
        if self.world_size < self.num_nodes:
            raise ValueError(f"world_size: {self.world_size}: must be at least the number of nodes, {self.num_nodes}")

    @property
    def compared(self) -> Scenario | None:
        """The scenario of what the strategy is compared with, as its strategy; None of nothing."""
        return compared_with(self.scenario, self.references)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.scenario.cluster.num_nodes

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks, one GPU each, of a node."""
        return self.world_size // self.num_nodes

    @property
    def speedup_over_flat(self) -> float | None:
        """Time of a step with flat DDP / with the strategy; None where flat DDP does not fit or is not known."""
        return self._over(self.references.flat_s if self.references else None)

    @property
    def speedup_over_named(self) -> float | None:
        """Time of a step with the scenario's baseline / with the strategy; None where it is one of the references."""
        return self._over(self.references.named_s if self.references else None)

    def _over(self, step_s: float | None) -> float | None:
        return None if step_s is None else step_s / self.result.step_s

    @property
    def nic_gbit_per_s(self) -> float:
        """Nominal rate of all NICs of a node together [Gbit/s]."""
        cluster = self.scenario.cluster
        return cluster.inter_node.bytes_per_s * cluster.nics_per_node * 8 / 1e9

    def without_spans(self) -> "RunResult":
        """Return the result without spans, as journals and results.json hold it."""
        baseline = self.baseline and replace(self.baseline, spans=())
        return replace(self, result=replace(self.result, spans=()), baseline=baseline)


class PointResult(RunResult, frozen=True, kw_only=True, gc=False):
    """The result at one point of a sweep.

    Attributes:
        set: values that lead to the point, by dotted key.
    """

    set: dict[str, Any]


class RefusedPoint(Struct, frozen=True, kw_only=True):
    """A point of a sweep that was not simulated.

    Attributes:
        set: values that lead to the point, by dotted key.
        reason: in one sentence.
    """

    set: dict[str, Any]
    reason: str


class SweptAxis(Struct, frozen=True, kw_only=True):
    """One swept key with its values.

    Attributes:
        key: dotted key.
        values: its values, in their order.
    """

    key: str
    values: tuple[Any, ...]


class SweepResult(Struct, frozen=True, kw_only=True):
    """A whole sweep, as results.json holds it.

    Attributes:
        format: of the file.
        version: version of simnet.
        name: of the experiment.
        question: what the experiment asks.
        axes: the grid; keys of a list of points are in `set` of each point alone.
        points: in the order of the list, each with the grid, the last axis fastest.
        refused: points that were not simulated, in the same order.
    """

    format: int = FORMAT
    version: str = ""
    name: str = ""
    question: str = ""
    axes: tuple[SweptAxis, ...]
    points: tuple[PointResult, ...]
    refused: tuple[RefusedPoint, ...] = ()

    @property
    def varied(self) -> list[str]:
        """The swept keys that have more than one value in these points."""
        keys = dict.fromkeys(key for point in self.points for key in point.set)
        return [key for key in keys if len({repr(point.set.get(key)) for point in self.points}) > 1]


def point_result(values: dict[str, object], result: RunResult) -> PointResult:
    """Return a result with the values of the axes that led to it."""
    return PointResult(set=values, **asdict(result))


def to_json(result: RunResult | SweepResult, indent: int | None = None) -> bytes:
    """Return a result as JSON; `simnet.core.schema.decode` reads it back.

    Args:
        result: of a run without spans, or of a sweep.
        indent: spaces for each level; None puts all on one line.
    """
    whole = encode(result)
    return whole if indent is None else msgspec.json.format(whole, indent=indent)
