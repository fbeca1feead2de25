"""Nodes of another kind than the rest: older GPUs, slower NICs."""

from collections.abc import Callable
from typing import Annotated, ClassVar

from msgspec import Meta
from msgspec.structs import force_setattr, replace

from simnet.cluster.faults.places import check_places, is_nic_of
from simnet.cluster.hardware import FAULTS, Cluster, Fault, LinkId, full_gpu_name
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth

LEAST_FACTOR, MAX_FACTOR = 0.01, 1000.0
Slowdown = Annotated[float, Meta(ge=LEAST_FACTOR, le=MAX_FACTOR)]


@FAULTS.register
class OtherNodes(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="other_nodes"):
    """Nodes of another kind than the rest, in a cluster of two generations.

    Attributes:
        at_nodes: their numbers, from 0.
        gpu: their GPU: compute takes as many times as long as forward and backward do on it.
        compute_slowdown: that factor, in place of the GPU; below 1 they are faster.
        nic: bandwidth of each of their NICs, as many as the others have.
        nic_slowdown: in place of it, the factor on the time of their NICs.
        ranks_per_node: as many as on the others, since collectives need that.
    """

    title: ClassVar[str] = "nodes of another kind"

    at_nodes: tuple[Annotated[int, Meta(ge=0)], ...]
    gpu: str = ""
    compute_slowdown: Slowdown | None = None
    nic: Bandwidth | None = None
    nic_slowdown: Slowdown | None = None
    ranks_per_node: Count | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "gpu", full_gpu_name(self.gpu))
        if not self.at_nodes:
            raise ValueError("at_nodes: []: must name at least one node")
        if self.gpu and self.compute_slowdown is not None:
            raise ValueError(f"compute_slowdown: {self.compute_slowdown:g}: follows from gpu {self.gpu!r}; drop one")
        if self.nic is not None and self.nic_slowdown is not None:
            raise ValueError(f"nic_slowdown: {self.nic_slowdown:g}: follows from nic {self.nic.text()!r}; drop one")
        if self.nic is not None and self.nic < 1:
            raise ValueError(f"nic: {self.nic.text()!r}: must be at least 1 B/s")
        if not self.says_compute and not self.says_nic:
            raise ValueError("at_nodes: are as all others: give gpu, compute_slowdown, nic or nic_slowdown")

    def check(self, cluster: Cluster) -> None:
        """Refuse nodes that are not there, or have another number of ranks.

        Raises:
            ValueError: one is not, or has.
        """
        check_places("node", self.at_nodes, cluster.num_nodes)
        if self.nic is not None and not LEAST_FACTOR <= cluster.inter_node.bytes_per_s / self.nic <= MAX_FACTOR:
            raise ValueError(
                f"nic {self.nic.text()!r}: must be from a thousandth to a hundred times the cluster's "
                f"{cluster.inter_node.bytes_per_s.text()}"
            )
        if self.ranks_per_node not in (None, cluster.ranks_per_node):
            raise ValueError(
                f"ranks_per_node {self.ranks_per_node}: every node must have {cluster.ranks_per_node}, as the cluster "
                "says; leave out the nodes or the GPUs that are too many"
            )

    @property
    def says_compute(self) -> bool:
        """Whether their compute is another."""
        return bool(self.gpu) or self.compute_slowdown is not None

    @property
    def says_nic(self) -> bool:
        """Whether their NICs are others."""
        return self.nic is not None or self.nic_slowdown is not None

    def contradicts(self, other: Fault) -> str:
        """Tell of another that says something else of the same nodes."""
        if not isinstance(other, OtherNodes):
            return ""
        both = sorted(set(self.at_nodes) & set(other.at_nodes))
        whats = (("compute", self.says_compute and other.says_compute), ("NICs", self.says_nic and other.says_nic))
        what = next((name for name, is_said_twice in whats if is_said_twice), "")
        if not both or not what:
            return ""
        return f"two of kind 'other_nodes' on the {what} of node {both[0]}: name each node once for either"

    @property
    def nodes(self) -> tuple[int, ...]:
        """Those of the other kind."""
        return self.at_nodes

    def on(self, cluster: Cluster, compute_s: Callable[[str], float]) -> "OtherNodes":
        """Return the same with factors in place of the names.

        Raises:
            SimnetError: the workload knows no time on that GPU, or the same as on the others, whose it may be.
        """
        slower = self
        if self.gpu:
            where = f"cluster.faults: 'other_nodes': gpu: {self.gpu!r}"
            if self.gpu == cluster.gpu:
                raise SimnetError(f"{where}: is that of all nodes; give another, or drop it")
            own_s, usual_s = compute_s(self.gpu), compute_s(cluster.gpu)
            if own_s == usual_s:
                raise SimnetError(
                    f"{where}: takes as long as {cluster.gpu!r}, since the workload gives its times whatever the GPU; "
                    "give compute_slowdown in its place"
                )
            slower = replace(slower, gpu="", compute_slowdown=own_s / usual_s)
        if self.nic is not None:
            slower = replace(slower, nic=None, nic_slowdown=cluster.inter_node.bytes_per_s / self.nic)
        return slower

    def compute_factor(self, node: int, local_rank: int) -> float:  # noqa: ARG002
        """Return the factor of the nodes."""
        return self.compute_slowdown or 1.0 if node in self.at_nodes else 1.0

    def link_factor(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return the factor of their NICs."""
        return self.nic_slowdown or 1.0 if is_nic_of(link, self.at_nodes) else 1.0
