"""What was trained or traced, as the command line names it: an experiment, or a workload and a cluster."""

from dataclasses import dataclass, field

from simnet.cluster.hardware import Cluster
from simnet.core.errors import SimnetError
from simnet.engine import scenario
from simnet.engine.scenario import Scenario
from simnet.workload.workload import Workload

DENSE = "all_reduce"


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

    @classmethod
    def of(cls, experiment: str | None, workload: str | None, cluster: Cluster | None) -> "WasTrained":
        """Return what the options name.

        Raises:
            SimnetError: they name a workload twice.
        """
        if experiment is not None and workload is not None:
            raise SimnetError("--trained: an experiment names its workload; drop --trained or --experiment")
        return cls(experiment=experiment, workload_name=workload, own_cluster=cluster)

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
            return self._build(workload or self.workload_name, scenario.to_dict(self.own_cluster))
        changes = {"workload": workload, "cluster": self.own_cluster and scenario.to_dict(self.own_cluster)}
        return scenario.load(self.experiment, {key: value for key, value in changes.items() if value})

    @staticmethod
    def _build(workload: str, cluster: object) -> Scenario:
        return scenario.build({"cluster": cluster, "workload": workload, "strategy": DENSE}, "--trained")
