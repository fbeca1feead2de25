"""Programs given as streams, run by every executor."""

from collections.abc import Callable, Sequence

from simnet.cluster.hardware import Calibration
from simnet.cluster.topology import Topology
from simnet.engine import every_send, exact, ranks
from simnet.engine.plan import PlanNumbers, StrategyPlan
from simnet.engine.random_factors import Variation
from simnet.engine.ranks import RunStep
from simnet.engine.timeline import Streams, Timeline, num_collectives
from simnet.strategies import DenseAllReduce
from simnet.strategies.program import Program
from simnet.workload.training_step import Step

NO_STEP = Step(
    tensors=(), num_elements=1.0, bytes_per_element=4, forward_s=0.0, backward_s=0.0, optimizer_s=0.0, samples=1
)
MakeExecutor = Callable[..., every_send.Exact]


def plan_of(streams: Streams) -> StrategyPlan:
    program = Program(streams=streams, num_buckets=1, payload_bytes=1.0, algorithm="")
    return StrategyPlan(DenseAllReduce(), program)


def numbers_on(network: Topology, slowdown: float = 1.0) -> PlanNumbers:
    return PlanNumbers(NO_STEP, network, Calibration(backward_slowdown=slowdown))


def run_step(streams: Streams, network: Topology) -> RunStep:
    plan = plan_of(streams)
    return RunStep(plan, plan.prices(numbers_on(network)))


def run_ranks(streams: Streams, network: Topology, steps: int = 1, slowdown: float = 1.0, seed: int = 0) -> Timeline:
    """Return what all ranks do, their collectives as wholes."""
    return ranks.run([run_step(streams, network)] * steps, network, slowdown, Variation(network, seed))


def run_exact(
    streams: Streams,
    network: Topology,
    steps: int = 1,
    slowdown: float = 1.0,
    seed: int = 0,
    make_executor: MakeExecutor = every_send.Exact,
) -> Timeline:
    """Return what all ranks do, send by send."""
    variation, number = Variation(network, seed), num_collectives(streams)
    drawn: Sequence = [variation.of(step, number) for step in range(steps)]
    return exact.run_exact([(streams, 1)] * steps, network, slowdown, drawn, make_executor)
