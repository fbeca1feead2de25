"""Rank all systems on the cluster and workload of one scenario against the fastest DDP without compression."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial

from msgspec.structs import replace

from simnet.analysis import convergence, whatif
from simnet.analysis.advice import Accumulated, Advice, Bound, RankedSystem
from simnet.analysis.advise_with_faults import as_run, median_s, with_faults
from simnet.analysis.convergence import Convergence
from simnet.analysis.crossing import Range
from simnet.analysis.training_record import TrainingRecord, missed_otherwise, trained_as
from simnet.analysis.tune import (
    PLAIN,
    Contender,
    Variants,
    dense_systems,
    first_of_ties,
    names_strategy,
    needs_training,
    reference_systems,
    systems,
    with_any_strategy,
    with_known_kernels,
    without_faults,
    without_repeats,
)
from simnet.analysis.tuned_steps import SystemVsBaseline, TunedSteps, costs_of, step_costs
from simnet.analysis.verdict import PAYS, Speedup
from simnet.analysis.workers import run_where_it_pays
from simnet.core.errors import SimnetError
from simnet.engine import intervals, memory_fit
from simnet.engine.axes import Override
from simnet.engine.prepared_scenario import StepLanes, StepTimer, is_folded
from simnet.engine.result import RunResult
from simnet.engine.scenario import BatchSettings, Experiment, Scenario, settings_of, to_dict, with_settings
from simnet.engine.simulation import simulate
from simnet.strategies import AnyStrategy
from simnet.strategies.calls import NO_CALL, effort, takes_clipping

FREED: dict[Bound, Callable[[Scenario, RunResult], Scenario]] = {
    "compute": whatif.free_compute,
    "wire": whatif.free_wire,
    "latency": whatif.free_latency,
    "codec": whatif.free_codec,
}
USABLE = "the same, usable"
# The answer is told for this many times the micro-batches, too.
MORE_ACCUMULATION = 4
# How often the ends of a range of bandwidths are simulated with faults at most; each round moves them by less.
LIMIT_ROUNDS = 3
# Ratio of two bandwidths at which faults change a speedup alike: medians are no surer.
NEAR = 1.03
ORIGIN = "strategy that simnet advise would use"
BATCH_KEYS = {"workload.batch_per_rank", "run.grad_accumulation", "run.global_batch"}
"""Keys that give the samples of a step together: where one is swept, all stay as they are."""


def advise(  # noqa: PLR0913 - the arguments of one command
    scenario: Scenario,
    *,
    names: Sequence[str] | None = None,
    recorded: Mapping[str, Variants] | None = None,
    trainings: Mapping[str, Convergence] | None = None,
    are_of_user: bool = False,
    samples: float | None = None,
    price_per_gpu_hour: float | None = None,
    jobs: int = 1,
    progress: Callable[[int], object] = int,
) -> Advice:
    """Rank systems; the scenario's own strategy, baseline and number of steps do not matter.

    Args:
        scenario: cluster, workload and calibration; `run.draws` drawn calibrations make the intervals.
        names: which of `tune.systems`, by default all; DDP is always among them, and what stands for it where it does
            not fit the GPU.
        recorded: further systems, as `tune.recorded_systems` gives them.
        trainings: measured ones by name of the task, so that systems are judged by the time to the target, too.
        are_of_user: whether these are trainings of the workload, as the user says; those of other models only warn.
        samples: of the whole training, for its days and its money.
        price_per_gpu_hour: what a GPU costs an hour, in any currency.
        jobs: number of processes at most; the advice is the same for any.
        progress: called with 1 whenever a system is done; on a cluster with faults, once more for each.

    Raises:
        SimnetError: not even DDP can be predicted.
    """
    for name, value in (("--samples", samples), ("--price-per-gpu-hour", price_per_gpu_hour)):
        if value is not None and not 0 < value < math.inf:
            raise SimnetError(f"{name}: {value!r}: must be above 0 and finite")
    if price_per_gpu_hour is not None and samples is None:
        raise SimnetError("--price-per-gpu-hour: no effect without --samples; give those of the whole training")
    same = without_faults(scenario)
    plain = replace(same, baseline=None, run=replace(same.run, draws=0, steps=None), strategy=PLAIN)
    known = {**systems(), **(recorded or {})}
    wanted = without_repeats(systems() if names is None else names, known, scenario.workload.dtype)
    names = (*wanted, *(recorded or {}))
    num_draws = intervals.DRAWS if scenario.run.draws is None else scenario.run.draws
    ranking = _Ranking(plain, known, trainings or {}, are_of_user=are_of_user, num_draws=num_draws)
    if ranking.baseline_name not in (*ranking.dense, *names):
        names = (ranking.baseline_name, *names)
    ranked: dict[str, RankedSystem | str] = {}
    here, prepare = partial(_row_of, ranking), partial(_prepare, ranking)
    for name, row in run_where_it_pays(names, here, jobs, work_there=_row_in_worker, prepare=prepare):
        ranked[name] = row
        progress(1)
    rows = [ranking.dense_row(name) for name in ranking.dense]
    rows += [row for name in names if isinstance(row := ranked[name], RankedSystem)]
    advice = Advice(
        scenario=plain,
        baseline=ranking.baseline_name,
        plain_iteration_s=ranking.plain_iteration_s,
        speedup_without_comm=ranking.speedup_without_comm,
        systems=tuple(sorted(rows, key=RankedSystem.place)),
        left_out=tuple((name, row) for name in names if isinstance(row := ranked[name], str)),
        tasks=tuple(trainings or {}),
        samples=samples,
        price_per_gpu_hour=price_per_gpu_hour,
    )
    # A usable form is ranked with faults from here, beside the baseline alone: all others are done.
    alike = advice
    if same.cluster != scenario.cluster:
        advice = ranking.with_limits(with_faults(advice, scenario, jobs, progress))
    usable = ranking.usable(advice.used)
    if usable is not None and advice.iterations:
        both = replace(alike, systems=(alike.baseline_system, replace(usable, name=USABLE)))
        usable = with_faults(both, scenario, jobs, int).named(USABLE)
    advice = replace(advice, usable=usable)
    # What accumulation does is timed where nodes are alike, and says nothing of a cluster with faults.
    answer = None if advice.iterations else advice.answer
    return replace(advice, accumulated=ranking.accumulated(answer.name)) if answer else advice


def check_rankable(scenario: Scenario) -> None:
    """Refuse a scenario that takes seconds per iteration, since thousands of iterations are simulated."""
    if scenario.run.fidelity == "exact" or not is_folded(without_faults(scenario)):
        raise SimnetError(
            f"{scenario.name}: needs the exact executor: the ranking needs the folded or the grouped one; drop "
            "run.fidelity, and fill every leaf"
        )


def with_strategy(experiment: Experiment, jobs: int = 1, progress: Callable[[int], object] = int) -> Experiment:
    """Return an experiment that names a strategy: as given, or that which advise would use at the file's own values.

    The batch is cut as it is for that strategy, where it is not swept. The question of the experiment says what was
    taken. `progress` is called with 1 whenever a system is ranked.

    Raises:
        SimnetError: no system can be ranked there.
    """
    if names_strategy(experiment):
        return experiment
    scenario = with_any_strategy(experiment).at({})
    try:
        check_rankable(scenario)
    except SimnetError as error:
        rule = "missing, and what simnet advise would use cannot be ranked here"
        raise SimnetError(f"{experiment.where}: strategy: {rule}; add strategy = 'binsgdm' ({error})") from error
    advice = advise(scenario, trainings=convergence.shipped(), jobs=jobs, progress=progress)
    chosen = advice.best or advice.baseline_system
    swept = set(experiment.swept_keys)
    if not swept.isdisjoint(BATCH_KEYS):
        swept |= BATCH_KEYS
    changes = chosen.batches.changes(settings_of(scenario))
    kept = {key: value for key, value in changes.items() if key not in swept}
    batches = chosen.batches.text() if kept == changes else ", ".join(f"{key} = {kept[key]}" for key in kept)
    cut = f", {batches}" if batches and chosen.batches != settings_of(advice.scenario) else ""
    taken = f"{experiment.where} names no strategy: {chosen.label}{cut} is taken, as simnet advise would use."
    question = f"{experiment.question} {taken}".strip()
    if scenario.run.global_batch is not None:
        kept.pop("run.grad_accumulation", None)
    values = {"strategy": to_dict(chosen.strategy), "question": question, **kept}
    overrides = (Override(key=key, value=value, origin=ORIGIN) for key, value in values.items())
    return replace(experiment, question=question, overrides=(*experiment.overrides, *overrides))


# The ranking of a worker process, put there once by `_prepare` and not with every name.
_in_worker: list["_Ranking"] = []


def _prepare(ranking: "_Ranking") -> None:
    _in_worker.append(ranking)


def _row_in_worker(name: str) -> tuple[str, RankedSystem | str]:
    return _row_of(_in_worker[0], name)


def _row_of(ranking: "_Ranking", name: str) -> tuple[str, RankedSystem | str]:
    """Return a system, ranked, or the reason why it cannot be predicted, with its name."""
    try:
        return name, ranking.row(name)
    except SimnetError as error:
        return name, str(error)


class _Setting(TunedSteps):
    """The steps of one way to cut the batch, those without some of their parts among them."""

    @cached_property
    def freed(self) -> StepLanes:
        """Steps without compute, wire, latency or codec."""
        plain = simulate(self.scenario)
        return StepLanes([free(self.scenario, plain) for free in FREED.values()])

    def step_s(self, variants: Variants) -> float:
        """Return the time of a step of the fastest variant [s]."""
        return min(map(self.here.of, variants))

    def contender(self, variants: Variants) -> Contender:
        """Return the fastest variant as it stands beside other systems."""
        strategy = self.here.fastest(variants)
        memory = memory_fit.memory_of(self.scenario, strategy)
        return Contender.of(strategy, self.here.of(strategy), memory, self.scenario.workload)


CutVariants = tuple[_Setting, Variants]
"""Variants of a system, and how the batch is cut for them."""


class _Ranking:
    """What all systems share: the baseline, and the settings in which steps are timed."""

    def __init__(
        self,
        scenario: Scenario,
        known: Mapping[str, Variants],
        trainings: Mapping[str, Convergence],
        *,
        are_of_user: bool,
        num_draws: int,
    ) -> None:
        intervals.check_draws(num_draws)
        self._scenario = scenario
        self._trainings = trainings
        self._are_of_user = are_of_user
        self._systems = known
        self._num_draws = num_draws
        self._settings: dict[BatchSettings, _Setting] = {}
        self._uncut = self._setting(scenario)
        self.dense: dict[str, Variants] = dense_systems(scenario.workload.dtype)
        flat = self._cuts((PLAIN,))
        self.plain_iteration_s = _fastest(flat)[0].here.of(PLAIN) if flat else None
        candidates = self._candidates()
        fastest = {name: _fastest(cuts) for name, cuts in candidates.items()}
        place = first_of_ties([setting.contender(variants) for setting, variants in fastest.values()])
        self.baseline_name = list(candidates)[place]
        self._baseline_in, variants = fastest[self.baseline_name]
        self._baseline = self._baseline_in.here.fastest(variants)
        alike = [variants for setting, variants in fastest.values() if setting is self._baseline_in]
        self._every_dense = tuple(strategy for variants in alike for strategy in variants)
        # At another bandwidth another system may stand for DDP, and another cut of the batch be the fastest.
        self._baseline_cuts = [cut for cuts in candidates.values() for cut in cuts]
        self._baseline_s = self._baseline_in.here.of(self._baseline)
        there = self._baseline_in.scenario
        without_comm = StepTimer(whatif.free_communication(there))
        self.speedup_without_comm = self._baseline_s / without_comm.of(self._baseline)
        self._error = intervals.model_error(scenario.calibration).speedup if num_draws else None
        self._drawn_baseline_s = self._baseline_in.drawn.of(self._baseline)
        self._baseline_costs = costs_of(self._baseline, self._baseline_in)

    def _setting(self, scenario: Scenario) -> _Setting:
        key = settings_of(scenario)
        if key not in self._settings:
            self._settings[key] = _Setting(scenario, self._num_draws)
        return self._settings[key]

    def _candidates(self) -> dict[str, list[CutVariants]]:
        """Return what the baseline is chosen from, as it fits."""
        known = reference_systems(self._scenario, lambda: self._systems)
        fitting = {name: cuts for name, variants in known.items() if (cuts := self._cuts(variants))}
        return fitting or {name: [self._least(variants)] for name, variants in self.dense.items()}

    def _cuts(self, variants: Variants) -> list[CutVariants]:
        """Return the ways to cut the batch with which some of the variants fit; none where nothing does."""
        return [
            (
                self._setting(fitted.scenario),
                with_known_kernels(fitted.variants, self._kernels, fitted.scenario.calibration),
            )
            for fitted in memory_fit.that_fit(self._scenario, variants)
        ]

    def _least(self, variants: Variants) -> CutVariants:
        """Return what takes the least memory of what was tried, where nothing fits."""
        smallest = memory_fit.least(self._scenario, variants)
        return self._setting(smallest.scenario), smallest.variants

    def _kernels(self, strategy: AnyStrategy) -> frozenset[str]:
        return self._uncut.kernels(strategy)

    def dense_row(self, name: str) -> RankedSystem:
        """Return DDP in one precision, ranked."""
        cuts = self._cuts(self.dense[name])
        return self._row(name, cuts or [self._least(self.dense[name])], is_dense=True, fits=bool(cuts))

    def row(self, name: str) -> RankedSystem:
        """Return a system, ranked; of what fits in no way neither intervals nor bandwidths, which nobody would use."""
        variants = self._systems[name]
        cuts = self._cuts(variants)
        if not cuts:
            return self._row(name, [self._least(variants)], is_dense=False, fits=False)
        versus = self._versus(cuts)
        row = self._row(name, cuts, is_dense=False)
        return replace(
            row,
            faster_in=versus.ranges(SystemVsBaseline.gain),
            pays_in=self._pays_in(versus, row),
            curve=versus.curve(),
        )

    def usable(self, row: RankedSystem) -> RankedSystem | None:
        """Return a system in a form that has a call and lets gradients be clipped; None if it is in such a form."""
        workload = self._scenario.workload
        setting = self._settings[row.batches]
        variants: Variants = ()
        if not takes_clipping(row.strategy):
            variants = (replace(row.strategy, overlap=False),)
        elif effort(row.strategy, workload) == NO_CALL:
            fitting = memory_fit.fitting(setting.scenario, self._systems[row.name])
            variants = tuple(strategy for strategy in fitting if effort(strategy, workload) < NO_CALL)
        return self._row(row.name, [(setting, variants)], is_dense=False) if variants else None

    def accumulated(self, name: str) -> tuple[Accumulated, ...]:
        """Return the speedup of a system with one micro-batch a step, with as many as given, and with more.

        Of a recorded step, which has as many as it was recorded with, there is none, nor of what does not fit as given.
        """
        micro_batches = self._scenario.grad_accumulation
        cuts = self._cuts(self._systems[name])
        if not cuts or self._baseline_in is not self._uncut:
            return ()
        setting, variants = _fastest(cuts)
        if setting is not self._uncut:
            return ()
        if not all(strategy.takes_other_micro_batches for strategy in variants):
            return ()

        def with_micro_batches(number: int) -> float:
            run = replace(self._scenario.run, grad_accumulation=number, global_batch=None)
            timer = StepTimer(replace(self._scenario, run=run))
            return min(map(timer.of, self._every_dense)) / min(map(timer.of, variants))

        return tuple(
            Accumulated(micro_batches=number, speedup=with_micro_batches(number))
            for number in sorted({1, micro_batches, MORE_ACCUMULATION * micro_batches})
        )

    def _versus(self, cuts: Sequence[CutVariants]) -> SystemVsBaseline:
        return SystemVsBaseline(cuts, self._baseline_cuts)

    def _row(self, name: str, cuts: Sequence[CutVariants], *, is_dense: bool, fits: bool = True) -> RankedSystem:
        setting, variants = _fastest(cuts)
        strategy = setting.here.fastest(variants)
        step_s = setting.here.of(strategy)
        result = simulate(replace(setting.scenario, strategy=strategy))
        # What would fit is told of the step as it is given, as `simulate` tells it.
        notes = result.notes if fits else simulate(replace(self._scenario, strategy=strategy)).notes
        trains_otherwise = fits and not is_dense and strategy.mathematics != "same"
        speedup = (
            self._speedup(setting, strategy, step_s, self._versus(cuts))
            if fits
            else Speedup(value=self._baseline_s / step_s)
        )
        return RankedSystem(
            name=name,
            is_dense=is_dense,
            needs_training=needs_training(strategy),
            strategy=strategy,
            batches=settings_of(setting.scenario),
            iteration_s=step_s,
            speedup=speedup,
            records=tuple(self._records(setting, strategy)) if trains_otherwise else (),
            missed_otherwise=self._missed_otherwise(strategy) if trains_otherwise else {},
            speedup_vs_plain=self.plain_iteration_s and self.plain_iteration_s / step_s,
            headroom_s=self._baseline_s / PAYS - step_s,
            longest_pause_s=result.result.longest_pause_s,
            memory=result.result.memory,
            nic_bytes_per_node=result.result.nic_bytes_per_node,
            saved={
                bound: 1 - freed_s / step_s for bound, freed_s in zip(FREED, setting.freed.of(strategy), strict=True)
            },
            notes=notes,
        )

    def _speedup(self, setting: _Setting, strategy: AnyStrategy, step_s: float, versus: SystemVsBaseline) -> Speedup:
        kernels = whatif.coverage(setting.kernels(strategy), self._scenario.calibration)
        return Speedup(
            value=self._baseline_s / step_s,
            interval=self._interval(setting, strategy),
            if_kernels_slow=versus.slow_speedup(setting.cluster_rate) if kernels.are_estimated else None,
            unmeasured=kernels.unmeasured,
        )

    def _interval(self, setting: _Setting, strategy: AnyStrategy) -> tuple[float, float] | None:
        """Return the 90 % interval of the speedup.

        System and baseline are timed on the same draws: an error of the calibration that slows both cancels.
        """
        if (strategy == self._baseline and setting is self._baseline_in) or self._error is None:
            return None
        pairs = zip(self._drawn_baseline_s, setting.drawn.of(strategy), strict=True)
        return intervals.middle_90_percent([baseline_s / own_s for baseline_s, own_s in pairs], self._error)

    def _records(self, setting: _Setting, strategy: AnyStrategy) -> Iterator[TrainingRecord]:
        """Yield what each file of trainings says of the system, with the time here of a step as it was trained."""
        for task, trainings in self._trainings.items():
            if (trained := trained_as(trainings, strategy)) is not None:
                costs = step_costs(trained.strategy, setting)
                yield trained.record(task, costs, self._baseline_costs, error=self._error, is_of_user=self._are_of_user)

    def _missed_otherwise(self, strategy: AnyStrategy) -> dict[str, bool]:
        """Return whether a system missed the target in every form that was trained, by task; not where its own was."""
        untrained = {
            task: trainings for task, trainings in self._trainings.items() if trained_as(trainings, strategy) is None
        }
        missed_by_task = {task: missed_otherwise(trainings, strategy) for task, trainings in untrained.items()}
        return {task: missed for task, missed in missed_by_task.items() if missed is not None}

    def _pays_in(
        self, versus: SystemVsBaseline, row: RankedSystem, change: Callable[[float], float] = lambda _: 1.0
    ) -> tuple[Range, ...]:
        """Return the bandwidths at which the system of a row pays by the rule of the verdict, where nodes are alike.

        The intervals, and the steps to a target, are known at the cluster's own bandwidth and taken to be the same in
        proportion elsewhere: drawing at each step of the search would take a hundred times as long. `change` is the
        factor by which faults change the speedup at a bandwidth.
        """
        here, reached = row.speedup, [judged_speedup for record in row.records if (judged_speedup := record.judged)]
        if here.unmeasured or len(reached) < len(row.records) or (row.needs_training and not reached):
            return ()
        # Trainings of the workload itself say of a slower step, too, that fewer of them make it pay.
        judged = reached if here.verdict == "does not pay" and row.verdict == "pays" else [here, *reached]
        margin = min((speedup.interval[0] if speedup.interval else speedup.value) / here.value for speedup in judged)
        slow_here = here.if_kernels_slow
        slow_margin = (
            min((speedup.if_kernels_slow or speedup.value) / slow_here for speedup in judged) if slow_here else 1.0
        )

        def excess(versus: SystemVsBaseline, rate: float) -> float:
            to_spare = margin * change(rate) * versus.speedup(rate) - PAYS
            if to_spare <= 0 or slow_here is None:
                return to_spare  # does not pay, or has no slow kernels: they need no simulation
            return min(to_spare, slow_margin * change(rate) * versus.slow_speedup(rate) - PAYS)

        return versus.ranges(excess, slow=slow_here is not None)

    def with_limits(self, advice: Advice) -> Advice:
        """Return an advice with faults in which the systems to choose from have the bandwidths at which they pay."""
        paying = {choice.system.name for choice in advice.choices if choice.system.verdict == "pays"}
        rows = [self._limited(row, advice.scenario) if row.name in paying else row for row in advice.systems]
        return replace(advice, systems=tuple(rows))

    def _limited(self, row: RankedSystem, scenario: Scenario) -> RankedSystem:
        """Return a system with the bandwidths at which it pays on a cluster with faults.

        What faults change of its speedup is simulated at the cluster's bandwidth and at the ends that follow from it,
        until these stay.
        """
        versus = self._versus(self._cuts(self.dense[row.name] if row.is_dense else self._systems[row.name]))
        rates, here = versus.rates, self._uncut.cluster_rate
        changes: dict[float, float] = {here: row.speedup.value / versus.speedup(here)}
        for _ in range(LIMIT_ROUNDS):
            ranges = self._pays_in(versus, row, partial(_between, changes))
            # An open end is that of the bandwidths tried.
            ends = {end or rates[-place] for range_ in ranges for place, end in enumerate(range_)}
            new = [end for end in ends if all(max(end, rate) > NEAR * min(end, rate) for rate in changes)]
            if not new:
                break
            try:
                changes |= {rate: _change(versus, scenario, rate) for rate in new}
            except (SimnetError, ValueError) as error:
                return replace(row, notes=(*row.notes, f"the bandwidths at which {row.name} pays: {error}"))
        return replace(row, pays_in=ranges)


def _fastest(cuts: Sequence[CutVariants]) -> CutVariants:
    """Return the way to cut the batch that is the fastest at the cluster's own bandwidth."""
    return cuts[0] if len(cuts) == 1 else min(cuts, key=lambda cut: cut[0].step_s(cut[1]))


def _change(versus: SystemVsBaseline, scenario: Scenario, rate: float) -> float:
    """Return the speedup with faults at a bandwidth over that without."""
    there = whatif.at_bandwidth(as_run(scenario), rate)
    own_s, baseline_s = (
        median_s(with_settings(replace(there, strategy=tuned.strategy), settings_of(times.scenario)))
        for times, tuned in (versus.best(rate), versus.baseline_best(rate))
    )
    return baseline_s / own_s / versus.speedup(rate)


def _between(changes: Mapping[float, float], rate: float) -> float:
    """Return the change at a bandwidth between those at which it is known, on logarithmic scales."""
    known = sorted(changes)
    high = next((known_rate for known_rate in known if known_rate >= rate), known[-1])
    low = next((known_rate for known_rate in reversed(known) if known_rate <= rate), known[0])
    if low == high:
        return changes[low]
    if low > high:  # beyond all of them
        return changes[high if rate > high else low]
    # Speedups over bandwidths are smoother there.
    part = math.log(rate / low) / math.log(high / low)
    return float(changes[low] * (changes[high] / changes[low]) ** part)
