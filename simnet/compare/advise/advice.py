"""The nouns of an advice: what was found of each system, and what follows from it."""

from typing import Literal

from msgspec import Struct

from simnet.scenario import Scenario
from simnet.strategies import AnyStrategy
from simnet.units import Bandwidth

Bound = Literal["compute", "wire", "latency", "codec"]
Verdict = Literal["yes", "perhaps", "measure first", "no"]
Range = tuple[Bandwidth | None, Bandwidth | None]

PAYS = 1.05
"""The least speedup that counts: predictions of steps were off by 4.4 % on average (docs/lab-campaign.md)."""
OFF = 1.18
"""By how much speedups were off on average where the calibration was not measured on the cluster: 1-bit Adam over Adam,
Fig 5a (docs/validation.md)."""
SLOW = 170 / 44
"""How many times as long as estimated kernels may take: 1-bit Adam's own took 44 ms on one of its two clusters, which
the estimates follow, and 170 ms on the other (arXiv 2102.02888, Fig 5a, one node; docs/model.md)."""


class Row(Struct, frozen=True, kw_only=True):
    """One system on the cluster.

    Attributes:
        strategy: the fastest of the settings tried.
        iteration_s: of a step, those without compression counted in by their part of a training.
        speedup: baseline time / time; the baseline is DDP at its best.
        speedup_interval: 90 %, if the calibration or the workload has intervals.
        speedup_if_slow: with kernels that are not timed `SLOW` times as slow as estimated; None if all are
            timed, or there are none.
        may_be_off: factor by which the speedup may be off, 1 if its calibration was measured on the cluster.
        speedup_vs_plain: the speedup over plain DDP.
        room_s: by how much longer a step may take before it does not pay, below zero if it does not pay.
        saved: which part of a step would be gone if compute, wire, latency or codec took no time.
        unmeasured: kernels that have neither a time nor an estimate that is worth the name.
        faster_in: bandwidths of a NIC at which it is faster than DDP tuned there; None: an end of what was tried.
        pays_in: those at which its speedup is `PAYS` and more.
        curve: speedup at the bandwidths tried first; empty on one node.
    """

    name: str
    is_dense: bool
    strategy: AnyStrategy
    iteration_s: float
    speedup: float
    speedup_interval: tuple[float, float] | None
    speedup_if_slow: float | None
    may_be_off: float
    speedup_vs_plain: float
    room_s: float
    nic_bytes_per_node: float
    saved: dict[Bound, float]
    unmeasured: tuple[str, ...]
    faster_in: tuple[Range, ...]
    pays_in: tuple[Range, ...]
    curve: tuple[tuple[Bandwidth, float], ...]
    notes: tuple[str, ...]

    @property
    def bound(self) -> Bound:
        """What takes off most of a step if it takes no time."""
        return max(self.saved, key=lambda part: self.saved[part])

    @property
    def least_speedup(self) -> float:
        """The least that it may be: what it may be off by, its interval and slow kernels counted, each alone."""
        low = self.speedup_interval[0] if self.speedup_interval else self.speedup
        return min(self.speedup / self.may_be_off, low, self.speedup_if_slow or self.speedup)

    @property
    def verdict(self) -> Verdict:
        """Whether it pays: surely, perhaps, not to be known before its kernels are measured, or not."""
        if self.speedup < PAYS:
            return "no"
        if self.unmeasured:
            return "measure first"
        return "yes" if self.least_speedup >= PAYS else "perhaps"

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

    def judged(self, verdict: Verdict) -> tuple[Row, ...]:
        """Return the systems that compress of this verdict, the fastest first."""
        return tuple(row for row in self.compressing if row.verdict == verdict)

    @property
    def best(self) -> Row | None:
        """The fastest of those that pay; None if none surely does."""
        return next(iter(self.judged("yes")), None)
