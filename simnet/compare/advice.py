"""The result of `advise`: each system on one cluster, and the systems that pay."""

from typing import Literal

from msgspec import Struct

from simnet.compare.crossing import Range
from simnet.compare.verdict import Speedup, Verdict
from simnet.scenario import Scenario
from simnet.strategies import AnyStrategy
from simnet.units import Bandwidth

Bound = Literal["compute", "wire", "latency", "codec"]


class RankedSystem(Struct, frozen=True, kw_only=True):
    """One system on the cluster, at its best variant.

    Attributes:
        is_dense: it sends gradients without compression.
        strategy: the fastest of the variants tried.
        iteration_s: mean time of a step of a long training, a dense stage counted in by its share [s].
        speedup: over the baseline at its best.
        speedup_vs_plain: speedup over `tune.PLAIN`.
        headroom_s: time that a step may gain before the system no longer pays; below 0 if it does not pay [s].
        nic_bytes_per_node: sent out of a node in an iteration.
        saved: fraction of a step that goes away if compute, wire, latency or codec takes no time.
        faster_in: NIC bandwidths at which the system is faster than DDP tuned there.
        pays_in: NIC bandwidths at which the system pays by the rule of its verdict.
        curve: (bandwidth, speedup) at the bandwidths tried first; empty on one node.
        missed_in: shipped trainings in which the system missed the target; empty unless it pays.
    """

    name: str
    is_dense: bool
    strategy: AnyStrategy
    iteration_s: float
    speedup: Speedup
    speedup_vs_plain: float
    headroom_s: float
    nic_bytes_per_node: float
    saved: dict[Bound, float]
    faster_in: tuple[Range, ...] = ()
    pays_in: tuple[Range, ...] = ()
    curve: tuple[tuple[Bandwidth, float], ...] = ()
    notes: tuple[str, ...] = ()
    missed_in: tuple[str, ...] = ()

    @property
    def bound(self) -> Bound:
        """The part of a step whose removal saves most."""
        return max(self.saved, key=lambda part: self.saved[part])

    @property
    def crossovers(self) -> tuple[Bandwidth, ...]:
        """The NIC bandwidths at which the system is as fast as the baseline, ascending."""
        return tuple(end for range_ in self.faster_in for end in range_ if end is not None)


class Advice(Struct, frozen=True, kw_only=True):
    """All systems, the fastest first.

    Attributes:
        baseline: name of the faster dense system.
        plain_iteration_s: time of a step of plain DDP [s].
        speedup_without_comm: speedup of the baseline if its communication took no time: no system can gain more.
        left_out: systems that cannot be predicted here, with the reason.
    """

    scenario: Scenario
    baseline: str
    plain_iteration_s: float
    speedup_without_comm: float
    systems: tuple[RankedSystem, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def baseline_system(self) -> RankedSystem:
        """The baseline."""
        return next(row for row in self.systems if row.name == self.baseline)

    @property
    def compressing(self) -> tuple[RankedSystem, ...]:
        """The systems that compress."""
        return tuple(row for row in self.systems if not row.is_dense)

    def with_verdict(self, *verdicts: Verdict) -> tuple[RankedSystem, ...]:
        """Return the compressing systems with these verdicts, the fastest first."""
        return tuple(row for row in self.compressing if row.speedup.verdict in verdicts)

    @property
    def best(self) -> RankedSystem | None:
        """The fastest system that pays; None if none does."""
        return next(iter(self.with_verdict("pays")), None)
