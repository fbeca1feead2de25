"""A scenario made ready to run: its links, its step, and the program of each strategy with the time of each kernel."""

import math
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from simnet import folded_runner, gpu_models
from simnet.collectives import loads
from simnet.errors import SimnetError
from simnet.hardware import Calibration
from simnet.network import topology as topologies
from simnet.network.topology import Topology
from simnet.program import Compute, Kernel, Operation, Program, check_program
from simnet.registry import is_foreign
from simnet.scenario import Scenario
from simnet.strategies import Strategy, kernel_table
from simnet.timeline import Streams, TimedOperation, Timeline
from simnet.workload import training_step
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

EXACT_MAX_SENDS = 20_000_000
"""Most sends of one iteration that the exact executor takes on: several minutes (docs/evidence/benchmarks.md)."""


class PreparedScenario:
    """A scenario with what follows from it, the same for every strategy."""

    def __init__(self, scenario: Scenario, on_round: Callable[[], None] | None = None) -> None:
        kernel_table.check(scenario.calibration)
        step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
        self.scenario = scenario
        self.topology: Topology = topologies.build(scenario.cluster, scenario.calibration)
        self._topologies: dict[str, Topology] = {}
        self.step: Step = replace(step, micro_batches=scenario.grad_accumulation)
        self.fidelity = _fidelity(scenario, self.topology)
        self._on_round = on_round
        self._plans: dict[Strategy, TimedProgram] = {}

    def plan(self, strategy: Strategy) -> "TimedProgram":
        """Return the program of a strategy, made once."""
        if strategy not in self._plans:
            self.check(strategy)
            program = _program(strategy, self.step, self.topology_of(strategy))
            self._plans[strategy] = TimedProgram(strategy, program, self.scenario.calibration)
        return self._plans[strategy]

    def check(self, strategy: Strategy) -> None:
        """Refuse a strategy that the cluster's GPU cannot run, where its data sheet is known.

        Raises:
            SimnetError: it cannot.
        """
        if (gpu := gpu_models.known(self.scenario.cluster.gpu)) is not None:
            strategy.check_gpu(gpu)

    def topology_of(self, strategy: Strategy) -> Topology:
        """Return the links as a strategy's exchange finds them: a library of its own may carry it."""
        calibration, kind = self.scenario.calibration, strategy.kind
        if calibration.library_of(kind) is None:
            return self.topology
        if kind not in self._topologies:
            self._topologies[kind] = topologies.build(self.scenario.cluster, calibration, kind)
        return self._topologies[kind]

    def run(self, plan: "TimedProgram") -> Timeline:
        """Run one iteration, the mean one of a period where steps are not all alike.

        Raises:
            SimnetError: it takes no time or never ends, or it is too much for the exact executor.
        """
        timeline = self.run_period(plan).of_one_step(plan.program.period)
        self.checked_s(timeline.iteration_s)
        return timeline

    def run_period(self, plan: "TimedProgram") -> Timeline:
        """Run all steps of a period; spans are those of the streams, without the steps that are alike.

        Raises:
            SimnetError: as `run`.
        """
        timeline, inner = self._timeline(plan), plan.program.inner
        if inner is None or plan.inner is None:
            return timeline
        return timeline.with_steps(inner.number, self._timeline(plan.inner))

    def checked_s(self, iteration_s: float) -> float:
        """Return the time of an iteration [s].

        Raises:
            SimnetError: it takes no time, or never ends.
        """
        if not 0 < iteration_s < math.inf:
            raise SimnetError(
                f"{self.scenario.name}: an iteration of {iteration_s:g} s: must take some time and end; give "
                "workload.forward and workload.backward as they are"
            )
        return iteration_s

    def _timeline(self, plan: "TimedProgram") -> Timeline:
        comm_slowdown = float(self.scenario.calibration.backward_slowdown)
        topology = self.topology_of(plan.strategy)
        looped = folded_runner.run(plan.streams, topology, comm_slowdown) if self.fidelity == "folded" else None
        return self._on_the_clock(plan, topology, comm_slowdown) if looped is None else looped

    def forget_plans(self) -> None:
        """Free what plans take, which is much where many strategies are tried."""
        self._plans.clear()

    def _on_the_clock(self, plan: "TimedProgram", topology: Topology, comm_slowdown: float) -> Timeline:
        from simnet import event_runner
        from simnet.collectives.execute import Exact, Folded

        if self.fidelity == "folded":
            return event_runner.run(plan.streams, topology, comm_slowdown, Folded)
        sends = plan.program.num_rounds * self.topology.world_size
        if sends > EXACT_MAX_SENDS:
            raise SimnetError(
                f"run.fidelity: 'exact': about {sends} sends in one iteration: at most {EXACT_MAX_SENDS}; use fewer "
                "nodes or larger buckets, or 'folded' where all nodes are alike"
            )
        return event_runner.run(
            plan.streams, self.topology_of(plan.strategy), comm_slowdown, partial(Exact, on_round=self._on_round)
        )


class TimedProgram:
    """A strategy's program, and what the calibration knows of its kernels.

    Attributes:
        kernels_without_time: kernels whose time the calibration does not know; they cost nothing.
        kernels_timed_otherwise: a sentence for each kernel that was timed with other options than the strategy's.
        kernels_timed_by_others: a sentence for each kernel that takes the time of another one.
        streams: those of the program with the time of every kernel. The dense optimizer takes no time where a kernel
            with a known time updates the parameters in its place.
        inner: the same for further steps of the period that are all alike; None if there are none.
    """

    def __init__(self, strategy: Strategy, program: Program, calibration: Calibration) -> None:
        self.strategy = strategy
        self.program = program
        costs = kernel_table.costs_of(self.program.kernels)
        self.kernels_without_time = tuple(
            sorted(name for name, cost in costs.items() if not cost.is_known(calibration))
        )
        options = strategy.kernel_options()
        wrong_options = {
            name: costs[name].other_options(calibration, options, strategy.timed_as) for name in sorted(costs)
        }
        self.kernels_timed_otherwise = tuple(
            f"{name} was timed with {options}" for name, options in wrong_options.items() if options
        )
        self.kernels_timed_by_others = tuple(
            sentence for name in sorted(costs) if (sentence := costs[name].stand_in_text(calibration))
        )
        without_optimizer = updates_parameters(costs, calibration)
        timed = partial(_timed, costs=costs, calibration=calibration, without_optimizer=without_optimizer)
        self.streams: Streams = tuple(tuple(map(timed, stream)) for stream in self.program.streams)
        self.inner = TimedProgram(strategy, program.inner.program, calibration) if program.inner else None

    def nic_bytes_per_node(self, topology: Topology) -> float:
        """Return the bytes that leave the busiest node in one iteration, the mean one of a period."""
        return self._nic_bytes_of_period(topology) / self.program.period

    def _nic_bytes_of_period(self, topology: Topology) -> float:
        sent = (loads.nic_bytes_per_node(topology, one.schedule, one.message_bytes) for one in self.program.collectives)
        inner = self.inner.nic_bytes_per_node(topology) if self.inner else 0.0
        return sum(sent) + (self.program.inner.number if self.program.inner else 0) * inner


def updates_parameters(costs: Mapping[str, KernelCost], calibration: Calibration) -> bool:
    """Tell whether kernels with a known time move the parameters, as BinSGDM's and 1-bit Adam's last one does.

    The workload's optimizer would then count twice.
    """
    updating = [cost for cost in costs.values() if cost.updates]
    return bool(updating) and all(cost.is_known(calibration) for cost in updating)


def _program(strategy: Strategy, step: Step, topology: Topology) -> Program:
    """Return the program of a strategy.

    Raises:
        SimnetError: it cannot be made, or is none, as another package's may be.
    """
    if not is_foreign(type(strategy)):
        return strategy.program(step, topology)
    try:
        return check_program(strategy.program(step, topology))
    except SimnetError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise SimnetError(f"strategy {strategy.kind!r}: program: {why}; fix the package that provides it") from error


def _timed(
    operation: Operation, *, costs: dict[str, KernelCost], calibration: Calibration, without_optimizer: bool
) -> TimedOperation:
    """Return an operation with its seconds."""
    if isinstance(operation, Kernel):
        return Compute(
            part=operation.part,
            seconds=costs[operation.name].seconds(calibration, operation.num_elements, operation.num_vectors),
            name=operation.name,
            bucket=operation.bucket,
            after=operation.after,
        )
    if isinstance(operation, Compute) and operation.part == "optimizer" and without_optimizer:
        return replace(operation, seconds=0.0)
    return operation


def is_folded(scenario: Scenario) -> bool:
    """Tell whether one node stands for all in a scenario, so that it is simulated in milliseconds."""
    return scenario.run.fidelity != "exact" and topologies.build(scenario.cluster, scenario.calibration).is_symmetric


def _fidelity(scenario: Scenario, topology: Topology) -> str:
    """Return the executor to use, the folded one where symmetry allows."""
    asked = scenario.run.fidelity
    if asked == "folded" and not topology.is_symmetric:
        raise SimnetError(
            "run.fidelity: 'folded': needs nodes that are all alike; drop slow_nodes and faults, fill every leaf, or "
            "use 'exact'"
        )
    return ("folded" if topology.is_symmetric else "exact") if asked == "auto" else asked
