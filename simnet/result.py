"""The nouns of a result: what an iteration took, on which stream, and how sure that is."""

from typing import Literal

from msgspec import Struct

from simnet.scenario import Scenario


class Breakdown(Struct, frozen=True, kw_only=True):
    """Where the seconds of one iteration went, on the slowest rank; the six add up to the iteration."""

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


class Span(Struct, frozen=True, kw_only=True):
    """One thing that ran: on which stream, from when to when [s from the start of the iteration]."""

    stream: Literal["compute", "communication"]
    name: str
    start_s: float
    end_s: float
    rank: int = 0
    bucket: int | None = None
    wire_bytes: float = 0.0


class StrategyResult(Struct, frozen=True, kw_only=True):
    """What one strategy takes on one scenario.

    `comm_s` is the time that the communication stream was busy; `overlap` the fraction of it hidden behind compute
    (0 if there was none). `nic_bytes_per_node` leave one node in one iteration. `compression_ratio` is the gradients'
    bytes over the bytes that this strategy puts on the wire where it is compressed, >= 1 if it compresses.
    `algorithm` tells what "auto" chose. `total_s` is the end-to-end time of `run.steps`.
    """

    strategy: str
    fidelity: str
    algorithm: str
    iteration_s: float
    samples_per_s: float
    breakdown: Breakdown
    comm_s: float
    overlap: float
    nic_bytes_per_node: float
    compression_ratio: float
    num_buckets: int
    dense_iteration_s: float | None = None
    total_s: float | None = None
    spans: tuple[Span, ...] = ()


class RunResult(Struct, frozen=True, kw_only=True):
    """A resolved scenario with what its strategy takes and, if it names a baseline, how that compares.

    `speedup` is baseline time / time of one iteration; `end_to_end_speedup` that of `run.steps`, dense stage
    counted. `intervals` holds 90 % intervals by name, such as "speedup", if `run.draws` asks for them.
    """

    scenario: Scenario
    world_size: int
    result: StrategyResult
    baseline: StrategyResult | None = None
    speedup: float | None = None
    end_to_end_speedup: float | None = None
    gradient_bytes: float = 0.0
    version: str = ""
    notes: tuple[str, ...] = ()
    intervals: dict[str, tuple[float, float]] = {}
