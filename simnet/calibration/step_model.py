"""What was trained, and the predicted time of a row of a table of step times, under a calibration and compute times."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from simnet.calibration.step_rows import TimedStep
from simnet.cluster.hardware import Calibration, Cluster
from simnet.core.errors import SimnetError
from simnet.core.units import Duration, Size
from simnet.engine.scenario import Scenario, build, load, to_dict
from simnet.strategies import Strategy
from simnet.strategies.base import strategy_from_text
from simnet.workload import training_step
from simnet.workload.workload import Workload

MIB = 2**20
FORWARD_SHARE = 1 / 3
"""Of compute, where nothing is known: backward computes two products for each one of forward."""
Batch = tuple[str, int]
"""Name of a workload and samples of a micro-batch: what compute times belong to."""


class Trained(NamedTuple):
    """What was trained, and what simulates it: fits do not import the simulator.

    Attributes:
        scenario: the scenario by the name of its workload; with its own workload for an empty name.
        simulate_s: time of an iteration of a scenario [s].
    """

    scenario: Callable[[str], Scenario]
    simulate_s: Callable[[Scenario], float]


@dataclass(frozen=True, kw_only=True)
class WasTrained:
    """What was trained, with a scenario for each workload.

    Attributes:
        experiment: its name; None where a workload is named.
        workload_name: name of the workload; None where an experiment is named.
        own_cluster: in place of that of the experiment.
    """

    experiment: str | None
    workload_name: str | None
    own_cluster: Cluster | None
    _known: dict[str, Scenario] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.experiment is not None and self.workload_name is not None:
            raise SimnetError("--trained: an experiment names its workload; drop --trained or --experiment")

    @property
    def cluster(self) -> Cluster | None:
        """The cluster; None if nothing names one together with what was trained."""
        is_named = self.experiment is not None or (self.workload_name is not None and self.own_cluster is not None)
        return self.scenario("").cluster if is_named else None

    @property
    def nic_bytes_per_s(self) -> float:
        """Bandwidth of all NICs of a node [B/s]; 0 without a cluster."""
        cluster = self.cluster
        return float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node if cluster else 0.0

    @property
    def workload(self) -> Workload | None:
        """The workload; None if none is named."""
        if self.experiment is not None:
            return self.scenario("").workload
        if self.workload_name is None:
            return None
        # A workload needs no cluster here: of the scenario only the workload is taken.
        return self._build(self.workload_name, "generic_10gbit").workload

    def scenario(self, workload: str) -> Scenario:
        """Return the scenario of a workload by name, of that named on the command line for an empty name.

        Raises:
            SimnetError: it cannot be found, or something in it does not fit.
        """
        if workload not in self._known:
            self._known[workload] = self._made(workload)
        return self._known[workload]

    def _made(self, workload: str) -> Scenario:
        if self.experiment is None:
            assert self.workload_name is not None
            assert self.own_cluster is not None
            return self._build(workload or self.workload_name, to_dict(self.own_cluster))
        changes = {"workload": workload, "cluster": self.own_cluster and to_dict(self.own_cluster)}
        return load(self.experiment, {key: value for key, value in changes.items() if value})

    @staticmethod
    def _build(workload: str, cluster: object) -> Scenario:
        return build({"cluster": cluster, "workload": workload, "strategy": "all_reduce"}, "--trained")


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """What was trained.

    Attributes:
        trained: gives cluster, workload and strategies, and simulates them.
        start: the calibration that is fitted further.
        compute_factors: factors on the workload's forward and backward, where they were fitted.
    """

    trained: Trained
    start: Calibration
    compute_factors: Mapping[Batch, float] = field(default_factory=dict)

    @cached_property
    def _scenarios(self) -> dict[tuple[object, ...], Scenario]:
        return {}

    def with_factors(self, factors: Mapping[Batch, float]) -> "StepModel":
        """Return the model with other compute times."""
        return StepModel(trained=self.trained, start=self.start, compute_factors=factors)

    def strategy(self, row: TimedStep) -> Strategy:
        """Return the strategy of a row."""
        return self._scenario(row).strategy

    def workload(self, row: TimedStep, factor: float | None = None) -> Workload:
        """Return the workload of a row with its compute times, a factor on them or those workload."""
        workload = self._scenario(row).workload
        factor = self._factor(row) if factor is None else factor
        assert workload.forward_s is not None
        assert workload.backward_s is not None
        return replace(
            workload, forward_s=Duration(workload.forward_s * factor), backward_s=Duration(workload.backward_s * factor)
        )

    def compute_s(self, row: TimedStep) -> float:
        """Return forward and backward of all micro-batches, and the optimizer: the least that a step takes [s]."""
        workload = self.workload(row)
        passes_s = float(workload.forward_s or 0.0) + float(workload.backward_s or 0.0)
        return row.grad_accumulation * passes_s + float(workload.optimizer_s or 0.0)

    def step_s(self, row: TimedStep, calibration: Calibration, factor: float | None = None) -> float:
        """Return the predicted step [s]; `factor` replaces the one that was found for the compute."""
        there = replace(self._scenario(row), calibration=calibration, workload=self.workload(row, factor))
        try:
            return self.trained.simulate_s(there)
        except SimnetError as error:
            raise SimnetError(f"{row.where}: {error}") from error

    def has_own_compute(self, row: TimedStep) -> bool:
        """Tell whether the workload gives compute as times, measured on what was trained."""
        return self._whole(row).workload.forward_s is not None

    def gives_compute(self, row: TimedStep) -> bool:
        """Tell whether the workload gives compute times for the cluster's GPU."""
        return self._compute_by_workload(row) is not None

    def knows_compute(self, row: TimedStep) -> bool:
        """Tell whether the workload or a fit gives compute times."""
        return self.gives_compute(row) or bool(self._fitted_factors(row))

    def _factor(self, row: TimedStep) -> float:
        """Return the factor of the batch, or else of the nearest batch of the workload, or else 1."""
        factors = self._fitted_factors(row)
        # Time a sample changes with the batch, slowly: the nearest one is off the least.
        return factors[min(factors, key=lambda batch: abs(batch - row.batch))] if factors else 1.0

    def _fitted_factors(self, row: TimedStep) -> dict[int, float]:
        return {batch: factor for (name, batch), factor in self.compute_factors.items() if name == row.workload}

    def _scenario(self, row: TimedStep) -> Scenario:
        """Return the scenario of a row with its compute as times; without any, those of a second in all."""
        # Rows of one setting differ in their time alone.
        key = row.setting
        if key not in self._scenarios:
            there = self._at_nodes(row)
            forward_s, backward_s, optimizer_s = self._compute_by_workload(row) or (
                FORWARD_SHARE,
                1 - FORWARD_SHARE,
                0.0,
            )
            workload = replace(
                there.workload,
                forward_s=Duration(forward_s),
                backward_s=Duration(backward_s),
                optimizer_s=Duration(optimizer_s),
                compute=(),
                compute_factor=1.0,
                batch_per_rank=row.batch,
            )
            self._scenarios[key] = replace(there, workload=workload, strategy=_strategy_of(row, self._whole(row)))
        return self._scenarios[key]

    def _at_nodes(self, row: TimedStep) -> Scenario:
        whole = self._whole(row)
        try:
            cluster = replace(whole.cluster, num_nodes=row.num_nodes, ranks_per_node=row.ranks_per_node)
            run = replace(whole.run, grad_accumulation=row.grad_accumulation, global_batch=None, draws=0)
        except ValueError as error:  # such as a slow node that is not among so few
            raise SimnetError(f"{row.where}: cluster: {error}") from error
        return replace(whole, cluster=cluster, run=run, baseline=None)

    def _whole(self, row: TimedStep) -> Scenario:
        """Return what was trained, with the workload that the row names."""
        try:
            return self.trained.scenario(row.workload)
        except SimnetError as error:
            where = f"{row.where}: workload" if row.workload else row.where
            raise SimnetError(f"{where}: {str(error).removeprefix('--set: workload: ')}") from error

    def _compute_by_workload(self, row: TimedStep) -> tuple[float, float, float] | None:
        """Return forward, backward and optimizer of a micro-batch [s]; None if the workload has none for this GPU."""
        there = self._at_nodes(row)
        workload = there.workload
        has_times = workload.forward_s is not None and workload.backward_s is not None
        scaled = replace(workload, batch_per_rank=row.batch)
        try:
            step = training_step.resolve(scaled, there.cluster, self.start)
        except SimnetError:  # what else does not fit, the simulation refuses
            return None
        # Times belong to the workload's own batch; rows of `compute` are scaled already.
        ratio = row.batch / workload.batch_per_rank if has_times else 1.0
        return step.forward_s * ratio, step.backward_s * ratio, step.optimizer_s


def _strategy_of(row: TimedStep, scenario: Scenario) -> Strategy:
    """Return the strategy that a row names: the scenario's own of this kind, else with its options or defaults."""
    where = f"{row.where}: strategy"
    step = strategy_from_text(row.strategy, where, (scenario.strategy, scenario.baseline))
    cap = row.bucket_cap_mb
    try:
        return step if cap is None else replace(step, bucket_cap=Size(round(cap * MIB)))
    except ValueError as error:
        raise SimnetError(f"{where}: {error}") from error
