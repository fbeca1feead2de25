"""From a scenario to what an iteration does: buckets, and what each of them goes through. Pure; nothing runs."""

from dataclasses import dataclass

from msgspec.structs import asdict

from simnet.collectives import loads
from simnet.hardware import Calibration
from simnet.network.topology import Topology
from simnet.scenario import Scenario
from simnet.strategies import AllReduce, AnyStrategy, BinSGDM, OneBitAdam
from simnet.training import all_reduce, binsgdm, compressing, one_bit_adam
from simnet.training.stages import Collective, Exchange, Kernel, Stage
from simnet.workload import buckets as bucketing
from simnet.workload import codec
from simnet.workload.buckets import Bucket, StartUp
from simnet.workload.model import Step

UPDATES = frozenset({"binsgdm_apply", "adam_update"})
"""Kernels that update the parameters, in place of the dense optimizer."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that an iteration needs to run.

    `settlement` follows the last exchange. `optimizer_s` is 0 where the exchange updates the parameters itself, in a
    kernel that has a time. `free_kernels` are those of the exchange that have none, `other_kernels` tells of those that
    were timed with other options than the strategy's.
    """

    step: Step
    buckets: tuple[Bucket, ...]
    exchanges: tuple[Exchange, ...]
    settlement: tuple[Stage, ...]
    overlap: bool
    grad_accumulation: int
    optimizer_s: float
    free_kernels: tuple[str, ...]
    other_kernels: tuple[str, ...]

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of the iteration, in order."""
        stages = (*(stage for found in self.exchanges for stage in found.stages), *self.settlement)
        return tuple(stage for stage in stages if isinstance(stage, Collective))

    @property
    def kernels(self) -> frozenset[str]:
        """Names of all kernels of the iteration."""
        stages = (*(stage for found in self.exchanges for stage in found.stages), *self.settlement)
        return frozenset(stage.name for stage in stages if isinstance(stage, Kernel))

    @property
    def num_rounds(self) -> int:
        """Rounds of all collectives, those posted at once counted one by one."""
        return sum(round_.repeat for c in self.collectives for round_ in c.schedule.rounds)

    @property
    def payload_bytes(self) -> float:
        """Bytes of all gradients in the form in which they travel."""
        return sum(found.payload_bytes for found in self.exchanges)

    def nic_bytes_per_node(self, topology: Topology) -> float:
        """Return the bytes that leave the busiest node in one iteration."""
        return sum(loads.nic_bytes_per_node(topology, c.schedule, c.message_bytes) for c in self.collectives)


def make(strategy: AnyStrategy, scenario: Scenario, step: Step, topology: Topology) -> Plan:
    """Return what an iteration of `strategy` (the scenario's own, its baseline, or another) does."""
    buckets = bucketing.build(strategy, step, _start_up(strategy, step, topology))
    exchanges = tuple(exchange(strategy, bucket, step.bytes_per_element, topology) for bucket in buckets)
    elements = [bucket.num_elements for bucket in buckets]
    settlement = binsgdm.settlement(strategy, elements, topology) if isinstance(strategy, BinSGDM) else ()
    stages = (*(stage for found in exchanges for stage in found.stages), *settlement)
    kernels = {stage.name for stage in stages if isinstance(stage, Kernel)}
    free = tuple(sorted(name for name in kernels if not codec.knows(scenario.calibration, name)))
    updates_itself = bool(kernels & UPDATES) and not UPDATES.intersection(free)
    return Plan(
        step=step,
        buckets=buckets,
        exchanges=exchanges,
        settlement=settlement,
        overlap=strategy.overlap,
        grad_accumulation=scenario.run.grad_accumulation,
        optimizer_s=0.0 if updates_itself else step.optimizer_s,
        free_kernels=free,
        other_kernels=_with_other_options(strategy, kernels, scenario.calibration),
    )


def _with_other_options(strategy: AnyStrategy, kernels: set[str], calibration: Calibration) -> tuple[str, ...]:
    options = asdict(strategy)
    found = {name: codec.other_options(calibration, name, options) for name in sorted(kernels)}
    return tuple(f"{name} was timed with {said}" for name, said in found.items() if said)


def exchange(strategy: AnyStrategy, bucket: Bucket, bytes_per_element: int, topology: Topology) -> Exchange:
    """Return what one bucket goes through under a strategy.

    Args:
        strategy: which.
        bucket: the gradients, on every rank.
        bytes_per_element: of the gradients as backward leaves them.
        topology: the ranks.
    """
    if isinstance(strategy, AllReduce):
        return all_reduce.exchange(strategy, bucket.num_elements, bytes_per_element, topology)
    if isinstance(strategy, BinSGDM):
        return binsgdm.exchange(strategy, bucket.num_elements, topology)
    if isinstance(strategy, OneBitAdam):
        return one_bit_adam.exchange(strategy, bucket, topology)
    return compressing.exchange(strategy, bucket, topology)


def _start_up(strategy: AnyStrategy, step: Step, topology: Topology) -> StartUp:
    """Return what the planner believes, else the line through the times of an empty exchange and of one of all."""
    if strategy.bucketing != "mg_wfbp":
        return StartUp(start_s=0.0, s_per_byte=0.0)
    if strategy.planner is not None:
        return StartUp(start_s=strategy.planner.start_up_s, s_per_byte=1 / strategy.planner.bytes_per_s)
    least_s, most_s = (_exchange_s(strategy, step, topology, part) for part in (1e-9, 1.0))
    return StartUp(start_s=least_s, s_per_byte=(most_s - least_s) / step.gradient_bytes)


def _exchange_s(strategy: AnyStrategy, step: Step, topology: Topology, part: float) -> float:
    bucket = Bucket(index=0, num_elements=step.num_elements * part, backward_part=1.0)
    found = exchange(strategy, bucket, step.bytes_per_element, topology)
    collectives = (stage for stage in found.stages if isinstance(stage, Collective))
    return sum(loads.duration_s(topology, c.schedule, c.message_bytes) for c in collectives)
