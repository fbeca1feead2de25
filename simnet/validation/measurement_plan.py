"""What must be measured so that `simnet validate` can judge an experiment: said before anything is measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth
from simnet.engine.scenario import Experiment, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import Strategy
from simnet.validation import held_out_proof, training_steps
from simnet.validation.lab.strategy_spec import StrategySpec

NODES = "cluster.num_nodes"
FEWEST_NODES = 2
"""Fewer nodes send nothing over a network."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A training to measure: nodes, the system, its predicted step, and the share of it that NICs take."""

    num_nodes: int
    spec: StrategySpec
    step_s: float
    network_share: float


@dataclass(frozen=True, kw_only=True)
class MeasurementPlan:
    """What must be measured.

    Attributes:
        scenario: the experiment at its own number of nodes.
        nic_bytes_per_s: bandwidth of all NICs of a node.
        runs: trainings, the fewest nodes first.
        unfit: why a strategy or a number of nodes cannot be judged, a sentence each.
        link_nodes: nodes on which to measure links: other than those of the runs.
        needs_links: whether the calibration is not fitted to links of such NICs yet.
        needs_compute: whether the workload is not fitted to a measured model yet.
    """

    scenario: Scenario
    nic_bytes_per_s: float
    runs: tuple[PlannedRun, ...]
    unfit: tuple[str, ...]
    link_nodes: tuple[int, ...]
    needs_links: bool
    needs_compute: bool

    @property
    def nodes(self) -> tuple[int, ...]:
        """Numbers of nodes of the runs, ascending."""
        return tuple(sorted({run.num_nodes for run in self.runs}))


def plan(experiment: Experiment, nic_bytes_per_s: float | None) -> MeasurementPlan:
    """Return what must be measured to judge an experiment.

    Args:
        experiment: to judge; its axis of nodes, if it has one, gives the numbers of nodes.
        nic_bytes_per_s: bandwidth of all NICs of a node; None: that of the experiment's cluster.
    """
    scenario = experiment.at({}).without_global_batch()
    cluster = scenario.cluster
    rate = nic_bytes_per_s or float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node
    # A measurement names the bandwidth of a node's NICs together, and so does the cluster that predicts it.
    link = replace(cluster.inter_node, bytes_per_s=Bandwidth(rate))
    scenario = replace(scenario, cluster=replace(cluster, inter_node=link, nics_per_node=1))
    values = experiment.values_of(NODES)
    nodes = sorted({experiment.at({NODES: value}).cluster.num_nodes for value in values} or {cluster.num_nodes})
    specs, unfit = _specs([one for one in (scenario.strategy, scenario.baseline) if one is not None])
    unfit += _accumulation(scenario)
    runs: list[PlannedRun] = []
    for num_nodes in nodes:
        if fitted := held_out_proof.file_fitted_at(scenario, num_nodes, cluster.ranks_per_node, rate):
            unfit.append(f"{num_nodes} nodes: the calibration was fitted to steps or links there ({fitted})")
            continue
        runs += [_run(scenario, num_nodes, spec, strategy) for spec, strategy in specs]
    if not runs:
        raise SimnetError(f"validate: --plan: nothing to judge: {'; '.join(unfit)}: change the strategy or the nodes")
    kinds = {kind for one in scenario.calibration.fitted_to for kind in one.measured}
    return MeasurementPlan(
        scenario=scenario,
        nic_bytes_per_s=rate,
        runs=tuple(runs),
        unfit=tuple(unfit),
        link_nodes=_link_nodes(nodes),
        needs_links=max(nodes) > 1 and not held_out_proof.OVER_THE_NETWORK & kinds,
        needs_compute=not scenario.workload.fitted_to,
    )


def _specs(strategies: Iterable[Strategy]) -> tuple[list[tuple[StrategySpec, Strategy]], list[str]]:
    """Return the real system of each strategy, and why some have none."""
    found: list[tuple[StrategySpec, Strategy]] = []
    unfit: list[str] = []
    for strategy in strategies:
        try:
            found.append((StrategySpec.of_strategy(strategy), strategy))
        except ValueError as error:
            unfit.append(f"{strategy.kind}: simnet measure training cannot run it so ({error})")
    return found, unfit


def _accumulation(scenario: Scenario) -> list[str]:
    accumulated = scenario.grad_accumulation
    if accumulated == 1:
        return []
    return [
        f"run.grad_accumulation = {accumulated}: simnet measure training takes one micro-batch a step: judge with "
        "--set run.grad_accumulation=1 in the experiment"
    ]


def _run(scenario: Scenario, num_nodes: int, spec: StrategySpec, strategy: Strategy) -> PlannedRun:
    cluster = replace(scenario.cluster, num_nodes=num_nodes)
    there = replace(scenario, cluster=cluster, strategy=strategy, baseline=None, run=replace(scenario.run, draws=0))
    both = (there, training_steps.with_endless_nics(there))
    step_s, without_s = (simulate(one).result.iteration_s for one in both)
    return PlannedRun(num_nodes=num_nodes, spec=spec, step_s=step_s, network_share=1 - without_s / step_s)


def _link_nodes(nodes: Sequence[int]) -> tuple[int, ...]:
    """Return up to two numbers of nodes for links: fewer than those of the runs, which are then predictions."""
    fewer = [one for one in (FEWEST_NODES, FEWEST_NODES + 1, 2 * FEWEST_NODES) if one < max(nodes) and one not in nodes]
    return tuple(fewer[:2])
