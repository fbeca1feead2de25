"""The result of `advise`: each system on one cluster, and the systems that pay."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct

from simnet.analysis.crossing import Range
from simnet.analysis.training_record import TrainingRecord
from simnet.analysis.verdict import MISSED, NO_FIT, PAYS, UNTRAINED, Speedup, Verdict, verdict_of
from simnet.core.units import Bandwidth
from simnet.engine.scenario import Scenario
from simnet.strategies import AnyStrategy, choices
from simnet.strategies.base import Mathematics
from simnet.workload.gpu_memory import GpuMemory

Bound = Literal["compute", "wire", "latency", "codec"]


class FaultyStep(Struct, frozen=True, kw_only=True):
    """A step of one system on the cluster as it is.

    Attributes:
        p50_s: median of its iterations [s].
        p95_s: time that 95 % of them do not exceed [s].
        speedup_p50: median of the baseline's iterations over it.
        speedup_p95: the same at the 95th percentile.
    """

    p50_s: float
    p95_s: float
    speedup_p50: float
    speedup_p95: float


class RankedSystem(Struct, frozen=True, kw_only=True):
    """One system on the cluster, at its best variant.

    Attributes:
        is_dense: it sends gradients without compression.
        strategy: the fastest of the variants tried.
        iteration_s: mean time of a step of a long training, a dense stage counted in by its share; on a cluster with
            faults, the median of its iterations [s].
        speedup: of a step, over the baseline at its best.
        records: what trainings say of the system, in the form that it has here.
        missed_otherwise: by task where it was trained, but in no such form: whether it missed the target in all others.
        speedup_vs_plain: speedup over `tune.PLAIN`.
        headroom_s: time that a step may gain before the system no longer pays; below 0 if it does not pay [s].
        longest_pause_s: longest time in which a GPU waits in a period of steps that are not all alike [s]; None where
            they are.
        memory: what a GPU holds in a step; None where that is not known.
        nic_bytes_per_node: sent out of a node in an iteration.
        saved: fraction of a step that goes away if compute, wire, latency or codec takes no time.
        faster_in: NIC bandwidths at which the system is faster than DDP tuned there.
        pays_in: NIC bandwidths at which the system pays by the rule of its verdict.
        curve: (bandwidth, speedup) at the bandwidths tried first; empty on one node.
        faulty: its step with the faults of the cluster; None where nodes are all alike, for which the bandwidths above
            hold.
    """

    name: str
    is_dense: bool
    strategy: AnyStrategy
    iteration_s: float
    speedup: Speedup
    records: tuple[TrainingRecord, ...] = ()
    missed_otherwise: dict[str, bool] = {}
    speedup_vs_plain: float
    headroom_s: float
    longest_pause_s: float | None = None
    memory: GpuMemory | None = None
    nic_bytes_per_node: float
    saved: dict[Bound, float]
    faster_in: tuple[Range, ...] = ()
    pays_in: tuple[Range, ...] = ()
    curve: tuple[tuple[Bandwidth, float], ...] = ()
    faulty: FaultyStep | None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name, with the topology of the fastest variant where there are several."""
        return f"{self.name}, {form}" if (form := choices.form(self.strategy)) else self.name

    @property
    def mathematics(self) -> Mathematics:
        """What it does to the mathematics of data-parallel training."""
        return self.strategy.mathematics

    @property
    def may_fit(self) -> bool:
        """Whether nothing says that the GPU has too little memory."""
        return self.memory is None or self.memory.fits is not False

    @property
    def is_untrained(self) -> bool:
        """Whether only trainings could say what its steps are worth, and there are none."""
        return self.mathematics == "local_steps" and not self.records

    @property
    def verdict(self) -> Verdict:
        """Whether it pays, by the time of its step and by its trainings."""
        if not self.may_fit:
            return NO_FIT
        found = verdict_of(self.speedup, [record.judged for record in self.records])
        return UNTRAINED if self.is_untrained and found != "does not pay" else found

    @property
    def to_target(self) -> float:
        """Geometric mean of the speedups of the time to targets; 0 where one was missed, that of a step without any."""
        found = [record.speedup.value if record.speedup else 0.0 for record in self.records]
        return math.prod(found) ** (1 / len(found)) if found else self.speedup.value

    @property
    def bound(self) -> Bound:
        """The part of a step whose removal saves most."""
        return max(self.saved, key=lambda part: self.saved[part])

    @property
    def crossovers(self) -> tuple[Bandwidth, ...]:
        """The NIC bandwidths at which the system is as fast as the baseline, ascending."""
        return tuple(end for range_ in self.faster_in for end in range_ if end is not None)


class Choice(Struct, frozen=True, kw_only=True):
    """What to use where training may change so much, and no more.

    Attributes:
        mathematics: the most that may change.
        system: the best of those that change so much.
        gain: speedup over the best that changes less; 1 for that which changes nothing.
    """

    mathematics: Mathematics
    system: RankedSystem
    gain: float


class Accumulated(Struct, frozen=True, kw_only=True):
    """The speedup of a system over the baseline, both tuned, with so many micro-batches a step."""

    micro_batches: int
    speedup: float


class Advice(Struct, frozen=True, kw_only=True):
    """All systems, the fastest first.

    Attributes:
        baseline: name of the faster dense system.
        plain_iteration_s: time of a step of plain DDP [s].
        speedup_without_comm: speedup of the baseline if its communication took no time: no system can gain more.
        left_out: systems that cannot be predicted here, with the reason.
        tasks: of the trainings that systems were judged by.
        accumulated: the speedup of the `answer` by number of micro-batches.
        iterations: of each system on a cluster with faults; 0 where nodes are all alike.
    """

    scenario: Scenario
    baseline: str
    plain_iteration_s: float
    speedup_without_comm: float
    systems: tuple[RankedSystem, ...]
    left_out: tuple[tuple[str, str], ...]
    tasks: tuple[str, ...] = ()
    accumulated: tuple[Accumulated, ...] = ()
    iterations: int = 0

    @property
    def baseline_system(self) -> RankedSystem:
        """The baseline."""
        return next(row for row in self.systems if row.name == self.baseline)

    @property
    def by_p95(self) -> tuple[RankedSystem, ...]:
        """Those with faults that may fit, by the 95th percentile of their iterations, the fastest first."""
        rows = [row for row in self.systems if row.faulty is not None and row.may_fit]
        return tuple(sorted(rows, key=lambda row: row.faulty.p95_s if row.faulty else 0.0))

    @property
    def others(self) -> tuple[RankedSystem, ...]:
        """Everything but DDP, and but the baseline where that is another."""
        return tuple(row for row in self.systems if not row.is_dense and row.name != self.baseline)

    def with_verdict(self, *verdicts: Verdict) -> tuple[RankedSystem, ...]:
        """Return what has these verdicts and is not DDP, the fastest first."""
        return tuple(row for row in self.others if row.verdict in verdicts)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The best that changes nothing in training, and the best of what rounds, compresses and trains apart."""
        found: list[Choice] = []
        for mathematics in get_args(Mathematics):
            rows = [row for row in self.systems if row.mathematics == mathematics and row.may_fit]
            if rows:
                system = self._chosen(rows)
                least_s = min((one.system.iteration_s for one in found), default=system.iteration_s)
                found.append(Choice(mathematics=mathematics, system=system, gain=least_s / system.iteration_s))
        return tuple(found)

    def _chosen(self, rows: Sequence[RankedSystem]) -> RankedSystem:
        """Return the best of some: the first that pays, else DDP if it is about as fast, else the fastest."""
        paying = [row for row in self.paying if row in rows]
        ddp = [row for row in rows if row.is_dense and row.iteration_s < PAYS * rows[0].iteration_s]
        return next(iter([*paying, *ddp, *rows]))

    @property
    def best(self) -> RankedSystem | None:
        """The system to use: the fastest that pays, where possible one that was trained; None if none pays.

        One that missed a target comes last.
        """
        return next(iter(self.paying), None)

    @property
    def paying(self) -> tuple[RankedSystem, ...]:
        """The systems that pay, the one to use first, then the fastest first."""
        pay = [*self.with_verdict("pays"), *self.with_verdict(MISSED)]
        # A step that is faster by less than counts is no reason to prefer what nobody has trained, or what takes longer
        # to a target.
        known = [row for row in pay if row.records or row.mathematics == "same"]
        near = [row for row in known if row.iteration_s < PAYS * pay[0].iteration_s]
        first = max(near, key=lambda row: row.to_target, default=pay[0] if pay else None)
        return tuple(sorted(pay, key=lambda row: row is not first))

    @property
    def answer(self) -> RankedSystem | None:
        """The system that the advice is about: the best, else the fastest that is not DDP; None if there is none."""
        may_fit = (row for row in self.others if row.may_fit)
        return self.best or next(may_fit, None)
