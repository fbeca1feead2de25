"""Nodes that fail: the time that a stop, the work since the last checkpoint and a restart cost."""

from typing import ClassVar

from simnet.cluster.hardware import FAULTS, Cluster, Fault
from simnet.core.units import Duration


@FAULTS.register
class NodeFailure(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="node_failure"):
    """Nodes that fail now and then, after which the training goes on from its last checkpoint.

    It slows no iteration down: the result says which part of a day trains (`availability`).

    Attributes:
        mean_time_between: of one node, exponentially distributed; any node stops the cluster.
        checkpoint_every: training time between checkpoints; by default Young and Daly's best.
        checkpoint: what writing one takes, while training waits.
        restart: from the failure until training goes on.
    """

    title: ClassVar[str] = "failing nodes"

    mean_time_between: Duration
    checkpoint_every: Duration | None = None
    checkpoint: Duration
    restart: Duration

    def __post_init__(self) -> None:
        if self.mean_time_between < 1:
            raise ValueError(f"mean_time_between: {self.mean_time_between.text()!r}: must be at least 1 s")
        if self.checkpoint_every is not None and self.checkpoint_every <= 0:
            raise ValueError(f"checkpoint_every: {self.checkpoint_every.text()!r}: must be above 0 s")
        if self.checkpoint_every is None and self.checkpoint <= 0:
            raise ValueError(f"checkpoint: {self.checkpoint.text()!r}: must be above 0 s, or give checkpoint_every")

    def check(self, cluster: Cluster) -> None:
        """Refuse a second one.

        Raises:
            ValueError: there is one.
        """
        if sum(isinstance(fault, NodeFailure) for fault in cluster.faults) > 1:
            raise ValueError("node_failure: is named twice; give the mean time of all causes together once")

    @property
    def nodes(self) -> tuple[int, ...]:
        """No link and no kernel is slower."""
        return ()
