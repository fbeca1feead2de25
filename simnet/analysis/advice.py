"""The result of `advise`: each system on one cluster, and the systems that pay."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

from msgspec import Struct

from simnet.analysis.crossing import Range
from simnet.analysis.training_record import TrainingRecord
from simnet.analysis.tune import TIE, Contender, first_of_ties, flat_name
from simnet.analysis.verdict import PAYS, Speedup, Verdict, verdict_of
from simnet.cluster import hardware
from simnet.core.units import Bandwidth
from simnet.engine.scenario import BatchSettings, Scenario
from simnet.strategies import AnyStrategy
from simnet.strategies.base import Mathematics, form_of
from simnet.workload.gpu_memory import GpuMemory

DAY_S = 86_400.0
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
        is_dense: it is DDP, which sends gradients without compression.
        needs_training: only trainings say that a model learns as well with it: it changes more than casts to 16 bits.
        strategy: the fastest of the variants tried.
        batches: how the samples of a step are cut: as given where that fits the GPU, else as is fastest and fits; where
            nothing that was tried fits, as takes the least memory, with the variant that does.
        iteration_s: mean time of a step of a long training, a dense stage counted in by its share; on a cluster with
            faults, the median of its iterations [s].
        speedup: of a step, over the baseline at its best.
        records: what trainings say of the system, in the form that it has here.
        missed_otherwise: by task where it was trained, but in no such form: whether it missed the target in all others.
        speedup_vs_plain: speedup over `tune.PLAIN`; None where that does not fit the GPU.
        headroom_s: time that a step may gain before the system no longer pays; below 0 if it does not pay [s].
        longest_pause_s: longest time in which a GPU waits in a period of steps that are not all alike [s]; None where
            they are.
        memory: what a GPU holds in a step; None where that is not known.
        nic_bytes_per_node: sent out of a node in an iteration.
        saved: fraction of a step that goes away if compute, wire, latency or codec takes no time.
        faster_in: NIC bandwidths at which the system is faster than DDP tuned there; empty on a cluster with faults.
        pays_in: NIC bandwidths at which the system pays by the rule of its verdict; on a cluster with faults, of those
            alone that pay among `Advice.choices`.
        curve: (bandwidth, speedup) at the bandwidths tried first; empty on one node and on a cluster with faults.
        faulty: its step with the faults of the cluster; None where nodes are all alike.
    """

    name: str
    is_dense: bool
    needs_training: bool
    strategy: AnyStrategy
    batches: BatchSettings
    iteration_s: float
    speedup: Speedup
    records: tuple[TrainingRecord, ...] = ()
    missed_otherwise: dict[str, bool] = {}
    speedup_vs_plain: float | None
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
        return f"{self.name}, {form}" if (form := form_of(self.strategy)) else self.name

    @property
    def mathematics(self) -> Mathematics:
        """What it does to the mathematics of data-parallel training."""
        return self.strategy.mathematics

    @property
    def may_fit(self) -> bool:
        """Whether nothing says that the GPU has too little memory."""
        return self.memory is None or self.memory.fits is not False

    def place(self) -> tuple[bool, float]:
        """Return what sorts systems: those that fit first, the fastest first."""
        return not self.may_fit, self.iteration_s

    @property
    def verdict(self) -> Verdict:
        """Whether it pays, by the time of its step and by its trainings; of what does not fit the GPU, too."""
        return verdict_of(
            self.speedup,
            [record.judged for record in self.records],
            needs_training=self.needs_training,
            are_of_user=any(record.is_of_user for record in self.records),
        )

    @property
    def to_target(self) -> float:
        """Geometric mean of the speedups of the time to targets; 0 where one was missed, that of a step without any."""
        speedups = [record.speedup.value if record.speedup else 0.0 for record in self.records]
        # Geometric, since twice and half as fast are even.
        return math.prod(speedups) ** (1 / len(speedups)) if speedups else self.speedup.value

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
    """All systems: those that fit first, the fastest first.

    Attributes:
        baseline: name of the faster dense system.
        plain_iteration_s: time of a step of plain DDP [s]; None where it does not fit the GPU.
        speedup_without_comm: speedup of the baseline if its communication took no time and links had no faults: what
            has no reason in `gains_beyond` cannot gain more.
        left_out: systems that cannot be predicted here, with the reason.
        tasks: of the trainings that systems were judged by.
        usable: the system to use in a form that has a call and lets gradients be clipped; None if it is in such a form.
        accumulated: the speedup of the `answer` by number of micro-batches.
        iterations: of each system on a cluster with faults; 0 where nodes are all alike.
        samples: of the whole training, for its days and its money; None if nobody asks.
        price_per_gpu_hour: what a GPU costs an hour, in any currency; None if nobody asks.
    """

    scenario: Scenario
    baseline: str
    plain_iteration_s: float | None
    speedup_without_comm: float
    systems: tuple[RankedSystem, ...]
    left_out: tuple[tuple[str, str], ...]
    tasks: tuple[str, ...] = ()
    usable: RankedSystem | None = None
    accumulated: tuple[Accumulated, ...] = ()
    iterations: int = 0
    samples: float | None = None
    price_per_gpu_hour: float | None = None

    def samples_per_s(self, row: RankedSystem) -> float:
        """Return the samples that all ranks go through in a second."""
        return (
            row.batches.batch_per_rank * row.batches.micro_batches * self.scenario.cluster.world_size / row.iteration_s
        )

    def mfu(self, row: RankedSystem) -> float | None:
        """Return the part of the GPU's peak that forward and backward take, recomputation not counted; None if unknown.

        Source: Chowdhery et al., PaLM, JMLR 2023, appendix B: model FLOPs utilization.
        """
        work, gpu = self.scenario.workload.work, hardware.known_gpu(self.scenario.cluster.gpu)
        if work is None or gpu is None or work.precision not in gpu.peak_flops:
            return None
        flops = (work.forward_flops + work.backward_flops) * self.samples_per_s(row)
        return flops / self.scenario.cluster.world_size / gpu.peak_flops[work.precision]

    def days(self, row: RankedSystem) -> float | None:
        """Return the days that the whole training takes; None if nobody asks."""
        return None if self.samples is None else self.samples / self.samples_per_s(row) / DAY_S

    def cost(self, row: RankedSystem) -> float | None:
        """Return what its GPUs cost; None if nobody asks."""
        days = self.days(row)
        if days is None or self.price_per_gpu_hour is None:
            return None
        return 24 * days * self.scenario.cluster.world_size * self.price_per_gpu_hour

    def gains_beyond(self, row: RankedSystem) -> str:
        """Return why a system gains more than the baseline would without communication; empty where it does not."""
        if row.speedup.value <= self.speedup_without_comm:
            return ""
        if row.mathematics == "local_steps":
            return "its steps do not wait for each other"
        cut, cut_of_baseline = (system.batches[:3] for system in (row, self.baseline_system))
        return "its optimizer takes less" if cut == cut_of_baseline else "its batch is cut otherwise"

    @property
    def flat_name(self) -> str:
        """The name of plain DDP, with which papers compare: one ring, DDP's default buckets, gradients as they are."""
        return flat_name(self.scenario.workload.dtype)

    @property
    def tuned_name(self) -> str:
        """The name of the baseline: DDP at its best, or what stands for it where DDP does not fit."""
        return "tuned DDP" if self.baseline_system.is_dense else f"tuned {self.baseline_system.strategy.title}"

    @property
    def baseline_system(self) -> RankedSystem:
        """The baseline."""
        return self.named(self.baseline)

    def named(self, name: str) -> RankedSystem:
        """Return the system of a name, which must be among those that are ranked."""
        return next(row for row in self.systems if row.name == name)

    @property
    def by_p95(self) -> tuple[RankedSystem, ...]:
        """Those with faults that may fit, by the 95th percentile of their iterations, the fastest first."""
        rows = [row for row in self.systems if row.faulty is not None and row.may_fit]
        return tuple(sorted(rows, key=lambda row: row.faulty.p95_s if row.faulty else 0.0))

    @property
    def others(self) -> tuple[RankedSystem, ...]:
        """Everything but DDP, and but the baseline where that is another."""
        return tuple(row for row in self.systems if not row.is_dense and row.name != self.baseline)

    def with_verdict(self, verdict: Verdict) -> tuple[RankedSystem, ...]:
        """Return what has this verdict, fits and is not DDP, the fastest first."""
        return tuple(row for row in self.others if row.may_fit and row.verdict == verdict)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The best that changes nothing in training, and the best of what rounds, compresses and trains apart."""
        best: list[Choice] = []
        for mathematics in get_args(Mathematics):
            rows = [row for row in self.systems if row.mathematics == mathematics and row.may_fit]
            if rows:
                system = self._chosen(rows)
                # A gain is over the best that changes less, not over what stands just before.
                least_s = min((choice.system.iteration_s for choice in best), default=system.iteration_s)
                best.append(Choice(mathematics=mathematics, system=system, gain=least_s / system.iteration_s))
        return tuple(best)

    def _chosen(self, rows: Sequence[RankedSystem]) -> RankedSystem:
        """Return the best of some: the first that pays, else the reference if it is about as fast, else the fastest."""
        paying = [row for row in self.paying if row in rows]
        reference = [row for row in rows if row is self.baseline_system or row.is_dense]
        # A system that is faster by less than counts is no reason to change anything in training.
        near = [row for row in reference if row.iteration_s < PAYS * rows[0].iteration_s]
        near.sort(key=lambda row: row is not self.baseline_system)
        return next(iter([*paying, *near]), None) or self._first_of_ties(rows)

    def _first_of_ties(self, rows: Sequence[RankedSystem]) -> RankedSystem:
        workload = self.scenario.workload
        return rows[first_of_ties([Contender.of(row.strategy, row.iteration_s, row.memory, workload) for row in rows])]

    @property
    def best(self) -> RankedSystem | None:
        """The system to use: the first that pays; None if none pays."""
        return next(iter(self.paying), None)

    @property
    def paying(self) -> tuple[RankedSystem, ...]:
        """The systems that pay: the one to use, which `tune.first_of_ties` chooses, then the fastest first."""
        pay = self.with_verdict("pays")
        # A step that is faster by less than counts is no reason to prefer what takes longer to a target.
        near = [row for row in pay if row.iteration_s < PAYS * pay[0].iteration_s]
        soonest = max((row.to_target for row in near), default=1.0)
        sooner = [row for row in near if TIE * row.to_target >= soonest]
        first = self._first_of_ties(sooner) if sooner else None
        return tuple(sorted(pay, key=lambda row: row is not first))

    @property
    def used(self) -> RankedSystem:
        """What to use: the best that pays, else the reference at its best."""
        return self.best or self.baseline_system

    @property
    def answer(self) -> RankedSystem | None:
        """The system that the advice is about: the best, else the fastest that is not DDP; None if there is none."""
        may_fit = (row for row in self.others if row.may_fit)
        return self.best or next(may_fit, None)
