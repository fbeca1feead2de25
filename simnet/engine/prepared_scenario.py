"""A scenario made ready to run: its links, its step, and the program of each strategy with the time of each kernel."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from simnet.cluster import gpu_models
from simnet.cluster import topology as topologies
from simnet.cluster.hardware import Calibration, Cluster
from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.core.errors import SimnetError
from simnet.core.registry import is_foreign
from simnet.engine import folded_runner
from simnet.engine.scenario import Scenario
from simnet.engine.timeline import Streams, TimedOperation, Timeline
from simnet.strategies import Strategy
from simnet.strategies.base import check_calibration, kernel_costs_of
from simnet.strategies.program import Communicate, Compute, Kernel, Operation, Program, check_program
from simnet.workload import training_step
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

if TYPE_CHECKING:
    from simnet.engine.random_factors import Variation
    from simnet.engine.uneven_iterations import RunStep

EXACT_MAX_SENDS = 20_000_000
"""Most sends that the exact executor takes on: several minutes (docs/evidence/benchmarks.md)."""
EXACT_QUICK_SENDS = 40_000
"""Most sends that "auto" has simulated one by one where the grouped executor gives an approximation: 2 seconds."""
NEAR = 1e-3
"""Part of an iteration by which the grouped executor may be off before "auto" takes the exact one."""


class PreparedScenario:
    """A scenario with what follows from it, the same for every strategy."""

    def __init__(
        self,
        scenario: Scenario,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        """Take a scenario, and what to call after each round of the exact executor, or each step of the grouped one."""
        check_calibration(scenario.calibration)
        step = training_step.resolve(scenario.workload, scenario.cluster, scenario.calibration)
        self.scenario = scenario
        self._cluster = _with_numbers(scenario)
        self.topology: Topology = topologies.build(self._cluster, scenario.calibration)
        self._topologies: dict[str, Topology] = {}
        self.step: Step = replace(step, micro_batches=scenario.grad_accumulation)
        self.fidelity = _fidelity(scenario, self.topology)
        self._on_progress = on_progress
        self._plans: dict[Strategy, TimedProgram] = {}

    def plan(self, strategy: Strategy) -> "TimedProgram":
        """Return the program of a strategy, made once."""
        if strategy not in self._plans:
            self.check(strategy)
            # Whoever chooses an algorithm, as NCCL's tuner does, knows of no fault.
            usual = replace(self.topology_of(strategy), faults=())
            program = _program(strategy, self.step, usual)
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
            self._topologies[kind] = topologies.build(self._cluster, calibration, kind)
        return self._topologies[kind]

    def run(self, plan: "TimedProgram") -> Timeline:
        """Run one iteration, the mean one of a period where steps are not all alike.

        Raises:
            SimnetError: it takes no time or never ends, or it is too much for the exact executor.
        """
        if self.fidelity == "folded":
            timeline = self.run_period(plan).of_one_step(plan.program.period)
            alike = self.scenario.num_iterations
            timeline = replace(timeline, iterations_s=(timeline.iteration_s,) * alike)
        else:
            timeline = self._run_ranks(plan)
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
        comm_slowdown, topology = float(self.scenario.calibration.backward_slowdown), self.topology_of(plan.strategy)
        looped = folded_runner.run(plan.streams, topology, comm_slowdown)
        if looped is not None:
            return looped
        from simnet.engine import event_runner
        from simnet.engine.execute_schedule import Folded

        return event_runner.run(plan.streams, topology, comm_slowdown, Folded)

    def _run_ranks(self, plan: "TimedProgram") -> Timeline:
        """Run all iterations on ranks that are not alike, by the executor that was asked for, or else by what it takes.

        Raises:
            SimnetError: that is too much for the exact executor.
        """
        asked = self.scenario.run.fidelity
        if self.fidelity == "exact":
            return self._run_exact(plan)
        found = self._run_grouped(plan)
        is_near = found.off_s <= NEAR * found.iteration_s
        if asked == "auto" and not is_near and self.num_sends(plan) <= EXACT_QUICK_SENDS:
            return self._run_exact(plan)
        return found

    def _run_grouped(self, plan: "TimedProgram") -> Timeline:
        from simnet.engine import uneven_iterations

        topology, slowdown = self.topology_of(plan.strategy), float(self.scenario.calibration.backward_slowdown)
        variation = self._variation(topology)
        return uneven_iterations.run_grouped(
            self._steps(plan), topology, slowdown, variation, self._on_progress or _nothing
        )

    def _run_exact(self, plan: "TimedProgram") -> Timeline:
        from simnet.engine import uneven_iterations
        from simnet.engine.execute_schedule import Exact

        if (sends := self.num_sends(plan)) > EXACT_MAX_SENDS:
            raise SimnetError(
                f"run.fidelity: 'exact': about {sends} sends: at most {EXACT_MAX_SENDS}; use fewer nodes or "
                "iterations, larger buckets, or 'grouped'"
            )
        topology, slowdown = self.topology_of(plan.strategy), float(self.scenario.calibration.backward_slowdown)
        on_round = self._on_progress if self.fidelity == "exact" else None
        make_executor = partial(Exact, on_round=on_round, by_arrays=_is_regular(plan))
        return uneven_iterations.run_exact(
            self._steps(plan), topology, slowdown, self._variation(topology), make_executor
        )

    def _variation(self, topology: Topology) -> "Variation":
        from simnet.engine.random_factors import Variation

        return Variation(topology, self.scenario.run.seed)

    def _steps(self, plan: "TimedProgram") -> "list[RunStep]":
        """Return what runs, one period after the other until there are as many iterations as asked for."""
        from simnet.engine.uneven_iterations import RunStep

        inner = plan.program.inner
        period = [RunStep(plan.streams, plan.program.num_steps)]
        if inner is not None and plan.inner is not None:
            period = [RunStep(plan.inner.streams)] * inner.number + period
        return period * self.num_periods(plan)

    def num_periods(self, plan: "TimedProgram") -> int:
        """Return how many periods hold as many iterations as asked for."""
        return -(-self.scenario.num_iterations // plan.program.period)

    def num_steps(self, plan: "TimedProgram") -> int:
        """Return how many steps run one after the other."""
        inner = plan.program.inner
        return self.num_periods(plan) * (1 + (inner.number if inner else 0))

    def num_sends(self, plan: "TimedProgram") -> int:
        """Return about how many sends all iterations have."""
        return self.num_rounds(plan) * self.topology.world_size

    def num_rounds(self, plan: "TimedProgram") -> int:
        """Return how many rounds a rank goes through in all iterations."""
        return plan.program.num_rounds * self.num_periods(plan)

    def forget_plans(self) -> None:
        """Free what plans take, which is much where many strategies are tried."""
        self._plans.clear()


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
        costs = kernel_costs_of(self.program.kernels)
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
        sent = (
            link_loads.nic_bytes_per_node(topology, one.schedule, one.message_bytes) for one in self.program.collectives
        )
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


def _with_numbers(scenario: Scenario) -> Cluster:
    """Return the cluster of a scenario whose faults hold numbers in place of names."""
    cluster = scenario.cluster
    if not cluster.faults:
        return cluster

    def compute_s(gpu: str) -> float:
        step = training_step.resolve(scenario.workload, replace(cluster, gpu=gpu), scenario.calibration)
        return step.forward_s + step.backward_s

    return replace(cluster, faults=tuple(fault.on(cluster, compute_s) for fault in cluster.faults))


def is_folded(scenario: Scenario) -> bool:
    """Tell whether one node stands for all in a scenario, so that it is simulated in milliseconds."""
    return _fidelity(scenario, topologies.build(scenario.cluster, scenario.calibration)) == "folded"


def is_grouped(scenario: Scenario) -> bool:
    """Tell whether the grouped executor simulates a scenario, or the exact one in its place where that is as quick."""
    return _fidelity(scenario, topologies.build(scenario.cluster, scenario.calibration)) == "grouped"


def _fidelity(scenario: Scenario, topology: Topology) -> str:
    """Return the executor to use, the fastest one that holds.

    Raises:
        SimnetError: the one that was asked for does not hold.
    """
    asked = scenario.run.fidelity
    if asked == "folded" and not topology.is_symmetric:
        raise SimnetError(
            "run.fidelity: 'folded': needs nodes that are all alike; drop slow_nodes and faults, fill every leaf, or "
            "use 'auto'"
        )
    if asked == "grouped" and not topology.leaves_are_filled:
        raise SimnetError(
            f"run.fidelity: 'grouped': needs leaves that are all filled, not {topology.num_nodes} nodes in leaves of "
            f"{topology.nodes_per_leaf}; use 'exact', or as many nodes as fill every leaf"
        )
    if asked != "auto":
        return asked
    if topology.is_symmetric:
        return "folded"
    return "grouped" if topology.leaves_are_filled else "exact"


def _is_regular(plan: TimedProgram) -> bool:
    """Tell whether no two collectives of a program ever use the same links."""
    from simnet.engine.execute_schedule import never_share_links

    programs = [plan.program, *([plan.inner.program] if plan.inner else [])]
    sending = max(sum(any(isinstance(one, Communicate) for one in stream) for stream in p.streams) for p in programs)
    return sending <= 1 and never_share_links(one.schedule for p in programs for one in p.collectives)


def _nothing() -> None:
    """Take no note of a step."""
