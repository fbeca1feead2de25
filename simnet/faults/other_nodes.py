"""Nodes of another kind than the rest: older GPUs, slower NICs."""

from collections.abc import Callable
from typing import Annotated, ClassVar

from msgspec import Meta
from msgspec.structs import replace

from simnet.faults.places import check_places, is_nic_of
from simnet.hardware import FAULTS, Cluster, Fault, LinkId
from simnet.units import Bandwidth
from simnet.values import Count

Slowdown = Annotated[float, Meta(ge=0.01, le=1000.0)]


@FAULTS.register
class OtherNodes(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="other_nodes"):
    """Nodes of another kind than the rest, in a cluster of two generations.

    Attributes:
        at_nodes: their numbers, from 0.
        gpu: name of their GPU: their compute takes as many times as long as forward and backward do on it.
        compute_slowdown: that factor, in place of the GPU; below 1 they are faster.
        nic: bandwidth of each of their NICs, of which they have as many as the others.
        nic_slowdown: in place of it, the factor on the time of their NICs; below 1 they are faster.
        ranks_per_node: ranks on each of them: as many as on the others, since collectives need that.
    """

    title: ClassVar[str] = "nodes of another kind"

    at_nodes: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)]
    gpu: str = ""
    compute_slowdown: Slowdown | None = None
    nic: Bandwidth | None = None
    nic_slowdown: Slowdown | None = None
    ranks_per_node: Count | None = None

    def __post_init__(self) -> None:
        if self.gpu and self.compute_slowdown is not None:
            raise ValueError(f"compute_slowdown: {self.compute_slowdown:g}: follows from gpu {self.gpu!r}; drop one")
        if self.nic is not None and self.nic_slowdown is not None:
            raise ValueError(f"nic_slowdown: {self.nic_slowdown:g}: follows from nic {self.nic.text()!r}; drop one")
        if self.nic is not None and self.nic < 1:
            raise ValueError(f"nic: {self.nic.text()!r}: must be at least 1 B/s")

    def check(self, cluster: Cluster) -> None:
        """Refuse nodes that are not there, or have another number of ranks.

        Raises:
            ValueError: one is not, or has.
        """
        check_places("node", self.at_nodes, cluster.num_nodes)
        if self.ranks_per_node not in (None, cluster.ranks_per_node):
            raise ValueError(
                f"ranks_per_node {self.ranks_per_node}: every node must have {cluster.ranks_per_node}, as the cluster "
                "says; leave out the nodes or the GPUs that are too many"
            )

    @property
    def nodes(self) -> tuple[int, ...]:
        """Those of the other kind."""
        return self.at_nodes

    def on(self, cluster: Cluster, compute_s: Callable[[str], float]) -> "OtherNodes":
        """Return the same with factors in place of the names."""
        found = self
        if self.gpu:
            factor = compute_s(self.gpu) / compute_s(cluster.gpu)
            found = replace(found, gpu="", compute_slowdown=factor)
        if self.nic is not None:
            found = replace(found, nic=None, nic_slowdown=cluster.inter_node.bytes_per_s / self.nic)
        return found

    def compute_factor(self, node: int, local_rank: int) -> float:  # noqa: ARG002
        """Return the factor of the nodes."""
        return self.compute_slowdown or 1.0 if node in self.at_nodes else 1.0

    def link_factor(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return the factor of their NICs."""
        return self.nic_slowdown or 1.0 if is_nic_of(link, self.at_nodes) else 1.0
