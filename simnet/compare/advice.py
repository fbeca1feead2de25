"""The nouns of an advice: what was found of each system, and what follows from it."""

from typing import Literal

from msgspec import Struct

from simnet.compare.crossing import Range
from simnet.compare.verdict import Speedup, Verdict
from simnet.scenario import Scenario
from simnet.strategies import AnyStrategy
from simnet.units import Bandwidth

Bound = Literal["compute", "wire", "latency", "codec"]


class Row(Struct, frozen=True, kw_only=True):
    """One system on the cluster.

    Attributes:
        strategy: the fastest of the settings tried.
        iteration_s: of a step, those without compression counted in by their part of a training.
        speedup: over DDP at its best.
        speedup_vs_plain: the speedup over plain DDP.
        headroom_s: by how much longer a step may take before it does not pay, below zero if it does not pay.
        saved: which part of a step would be gone if compute, wire, latency or codec took no time.
        faster_in: bandwidths of a NIC at which it is faster than DDP tuned there.
        pays_in: those at which it pays by the rule of its verdict.
        curve: speedup at the bandwidths tried first; empty on one node.
        missed_in: shipped trainings in which it did not reach the target, if it pays.
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
        """What takes off most of a step if it takes no time."""
        return max(self.saved, key=lambda part: self.saved[part])

    @property
    def crossovers(self) -> tuple[Bandwidth, ...]:
        """The bandwidths at which it is as fast as DDP, ascending."""
        return tuple(end for range_ in self.faster_in for end in range_ if end is not None)


class Advice(Struct, frozen=True, kw_only=True):
    """All systems, the fastest first.

    Attributes:
        baseline: name of the faster of the dense rows.
        plain_s: of a step of plain DDP.
        ceiling: speedup of the baseline if its communication took no time at all.
        left_out: systems that cannot be predicted here, with the reason.
    """

    scenario: Scenario
    baseline: str
    plain_s: float
    ceiling: float
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def dense(self) -> Row:
        """The row of the baseline."""
        return next(row for row in self.rows if row.name == self.baseline)

    @property
    def compressing(self) -> tuple[Row, ...]:
        """The rows of the systems that compress."""
        return tuple(row for row in self.rows if not row.is_dense)

    def judged(self, *verdicts: Verdict) -> tuple[Row, ...]:
        """Return the systems that compress of these verdicts, the fastest first."""
        return tuple(row for row in self.compressing if row.speedup.verdict in verdicts)

    @property
    def best(self) -> Row | None:
        """The fastest of those that pay; None if none surely does."""
        return next(iter(self.judged("pays")), None)
