"""The one way in: a scenario goes in, what it takes comes out."""

import math
from dataclasses import dataclass
from importlib import metadata

from simnet.cluster import topology as topologies
from simnet.cluster.topology import Topology
from simnet.errors import SimnetError
from simnet.spec import AllReduce, AnyStrategy, OneBitAdam, RunResult, Scenario, StrategyResult
from simnet.training import iteration
from simnet.training import plan as plans
from simnet.training.iteration import Timeline
from simnet.training.plan import Plan
from simnet.workload import codec, model
from simnet.workload.model import Step

EXACT_MAX_RANKS = 4096


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """A scenario with what follows from it, the same for every strategy."""

    scenario: Scenario
    topology: Topology
    step: Step
    fidelity: str

    def plan(self, strategy: AnyStrategy) -> Plan:
        return plans.make(strategy, self.scenario, self.step, self.topology)

    def run(self, plan: Plan) -> Timeline:
        return iteration.run(plan, self.topology, self.scenario.calibration, fidelity=self.fidelity)


def simulate(scenario: Scenario) -> RunResult:
    """Simulate one iteration of a scenario's strategy, and of its baseline if it names one.

    The iteration is one of many: DDP's buckets are those from the second iteration on.

    Raises:
        SimnetError: the parts do not fit together (see the message).
    """
    setting = _setting(scenario)
    result = _strategy_result(setting, scenario.strategy)
    baseline = _strategy_result(setting, scenario.baseline) if scenario.baseline else None
    return RunResult(
        scenario=scenario,
        world_size=setting.topology.world_size,
        result=result,
        baseline=baseline,
        speedup=baseline.iteration_s / result.iteration_s if baseline else None,
        end_to_end_speedup=_ratio(baseline.total_s, result.total_s) if baseline else None,
        version=version(),
        notes=_notes(scenario, setting.step),
    )


def check(scenario: Scenario) -> None:
    """Check that the parts of a scenario fit together, without running it.

    Raises:
        SimnetError: as `simulate`.
    """
    setting = _setting(scenario)
    setting.plan(scenario.strategy)
    if scenario.baseline is not None:
        setting.plan(scenario.baseline)


def _setting(scenario: Scenario) -> _Setting:
    topology = topologies.build(scenario.cluster, scenario.calibration)
    step = model.resolve(scenario.workload, scenario.cluster, scenario.calibration)
    return _Setting(scenario=scenario, topology=topology, step=step, fidelity=_fidelity(scenario, topology))


def version() -> str:
    """Return the version of the installed distribution."""
    try:
        return metadata.version("binsgdm")
    except metadata.PackageNotFoundError:
        return "0+checkout"


def _strategy_result(setting: _Setting, strategy: AnyStrategy) -> StrategyResult:
    plan = setting.plan(strategy)
    timeline = setting.run(plan)
    if not 0 < timeline.iteration_s < math.inf:
        raise SimnetError(
            f"{setting.scenario.name}: an iteration of {timeline.iteration_s:g} s: must take some time and end; give "
            "workload.forward and workload.backward as they are"
        )
    dense_s = _dense_iteration_s(setting, strategy) if isinstance(strategy, OneBitAdam) else None
    samples = setting.topology.world_size * plan.step.samples * plan.grad_accumulation
    return StrategyResult(
        strategy=str(strategy.__struct_config__.tag),
        fidelity=setting.fidelity,
        algorithm="+".join(sorted({found.algorithm for found in plan.exchanges})),
        iteration_s=timeline.iteration_s,
        samples_per_s=samples / timeline.iteration_s,
        breakdown=timeline.breakdown,
        comm_s=timeline.comm_s,
        overlap=_hidden_fraction(timeline),
        nic_bytes_per_node=plan.nic_bytes_per_node(setting.topology),
        compression_ratio=plan.step.gradient_bytes / plan.payload_bytes,
        num_buckets=len(plan.buckets),
        dense_iteration_s=dense_s,
        total_s=_total_s(strategy, setting.scenario.run.steps, timeline.iteration_s, dense_s),
        spans=timeline.spans,
    )


def _dense_iteration_s(setting: _Setting, strategy: OneBitAdam) -> float:
    """Return the time of an iteration of 1-bit Adam's dense stage, which is DDP."""
    dense = AllReduce(payload=strategy.dense_payload, algorithm=strategy.dense_algorithm)
    return setting.run(setting.plan(dense)).iteration_s


def _hidden_fraction(timeline: Timeline) -> float:
    """Return the part of communication that ran beside compute, 0 if there was no communication."""
    if timeline.comm_s <= 0:
        return 0.0
    return min(max(1 - timeline.breakdown.exposed_comm_s / timeline.comm_s, 0.0), 1.0)


def _total_s(strategy: AnyStrategy, steps: int | None, iteration_s: float, dense_s: float | None) -> float | None:
    if steps is None:
        return None
    dense_steps = strategy.dense_steps if isinstance(strategy, OneBitAdam) else 0
    return (steps - dense_steps) * iteration_s + dense_steps * (dense_s or 0.0)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _fidelity(scenario: Scenario, topology: Topology) -> str:
    """Return the executor to use, the folded one where symmetry allows."""
    asked = scenario.run.fidelity
    if asked == "folded" and not topology.is_symmetric:
        raise SimnetError(
            "run.fidelity: 'folded': needs nodes that are all alike; drop slow_nodes, fill every leaf, or use 'exact'"
        )
    chosen = ("folded" if topology.is_symmetric else "exact") if asked == "auto" else asked
    if chosen == "exact" and topology.world_size > EXACT_MAX_RANKS:
        raise SimnetError(
            f"run.fidelity: 'exact' on {topology.world_size} ranks: at most {EXACT_MAX_RANKS}; use fewer nodes, or "
            "'folded' where all nodes are alike"
        )
    return chosen


def _notes(scenario: Scenario, step: Step) -> tuple[str, ...]:
    """Say what a reader must know to trust the numbers."""
    calibration = scenario.calibration
    notes = list(step.notes)
    if calibration.kind != "measured":
        notes.append(f"calibration {calibration.name!r} is {calibration.kind}, not measured on this cluster")
    if not codec.knows_kernels(calibration):
        notes.append("no kernel times: encoding and decoding cost nothing here; give calibration.memory_bandwidth")
    return tuple(notes)
