"""What-if questions: one scenario, a sweep, where the faster side changes, what to use, who is first at a target."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from simnet.core.arguments import File, Name, Names, checked
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth
from simnet.engine import scenario as scenarios
from simnet.engine.axes import point_list
from simnet.engine.scenario import Experiment, Scenario
from simnet.report.progress_bar import Progress
from simnet.report.progress_bar import progress as bar
from simnet.strategies import Strategy

if TYPE_CHECKING:  # commands that take their options from here load no more than they use
    from simnet.analysis.convergence import Convergence
    from simnet.api.answers import AdviceAnswer, CrossoverAnswer, RunAnswer, SweepAnswer, TimeToTargetAnswer

Asked = Scenario | Name
"""A scenario, the name of a shipped experiment, or the path of a scenario file."""
Settings = Mapping[str, object]
"""Values by dotted key, as a scenario file gives them: `{"cluster.num_nodes": 16}`."""
Axes = Mapping[str, Annotated[Sequence[object], Meta(min_length=1)]]
"""At least one value for each key that varies."""
Draws = Annotated[int, Meta(ge=0, le=10_000)]
Jobs = Annotated[int, Meta(ge=1, le=1024)]
RATES = ("10 Gbit/s", "25 Gbit/s", "40 Gbit/s", "100 Gbit/s")
"""Bandwidths at which trainings are compared."""


@checked
def load(scenario: Name, settings: Settings | None = None) -> Scenario:
    """Load a scenario; a sweep in its file is left out.

    Args:
        scenario: name of a shipped experiment, or path of a `.toml` or `.json` file.
        settings: values to use instead, by dotted key.

    Raises:
        SimnetError: the file cannot be found or read, or something in it does not fit.

    Example:
        >>> import simnet
        >>> scenario = simnet.load("bert_base_10gbit", {"cluster.num_nodes": 4})
        >>> scenario.cluster.num_nodes, scenario.strategy.kind, scenario.workload.batch_per_rank
        (4, 'binsgdm', 64)
    """
    return experiment_of(scenario, settings, None).at({})


@checked
def simulate(
    scenario: Asked,
    settings: Settings | None = None,
    *,
    draws: Draws | None = None,
    lost_time: bool = False,
    progress: Progress = False,
) -> "RunAnswer":
    """Simulate one iteration of a scenario's strategy, and of tuned DDP, with which it is compared.

    Tuned DDP is the fastest setting that changes nothing in training and fits the GPU. Flat DDP, and a baseline that
    the scenario names, stand beside it. A scenario without a strategy gets what `advise` would use.

    Args:
        scenario: what to simulate.
        settings: values to use instead, by dotted key.
        draws: drawn calibrations for intervals; 0 for none, else at least 20; by default as many as take little time.
        lost_time: simulate without each fault of the cluster, too: what each costs a step, mean, p50 and p95.
        progress: as in `sweep`, by what takes long.

    Raises:
        SimnetError: the parts do not fit together, or the cluster has no fault that time is lost to.

    Example:
        >>> import simnet
        >>> run = simnet.simulate("bert_base_10gbit", {"cluster.inter_node.bandwidth": "100 Gbit/s"})
        >>> f"{run.speedup:.2f}x, 90 % interval {run.speedup_interval[0]:.2f} to {run.speedup_interval[1]:.2f}"
        '1.03x, 90 % interval 0.71 to 1.41'
    """
    from simnet.analysis import lost_time as losses
    from simnet.analysis.tune import compared, references
    from simnet.api.answers import RunAnswer, as_answer
    from simnet.engine import simulation
    from simnet.engine.intervals import with_default_draws

    drawn = with_default_draws(experiment_of(scenario, settings, draws).at({}))
    if lost_time:
        losses.check(drawn)
    known = references([drawn])[0]
    with bar(simulation.num_calls(drawn, known), "simulating every send", progress) as advance:

        def on_round() -> None:
            advance(1)

        result = compared(drawn, on_round, known)
    result = simulation.with_influences(result) if result.intervals else result
    if lost_time:
        num_sides = 1 + (result.baseline is not None)
        with bar(losses.num_runs(drawn, num_sides=num_sides), "simulating without each fault", progress) as advance:
            result = losses.with_lost_time(result, advance)
    return as_answer(RunAnswer, result)


@checked
def sweep(  # noqa: PLR0913 - the options of the command
    scenario: Asked,
    axes: Axes | None = None,
    *,
    points: Sequence[Settings] | None = None,
    settings: Settings | None = None,
    draws: Draws | None = None,
    jobs: Jobs = 1,
    output: File | None = None,
    dask_client: Any | None = None,
    progress: Progress = True,
) -> "SweepAnswer":
    """Simulate every point of a grid, or of a list of points.

    Args:
        scenario: where all values start from; a sweep in its file is swept, unless `axes` or `points` say otherwise.
        axes: values of keys that vary; every combination is simulated.
        points: values by key, point by point, each at every combination of `axes`.
        settings: values to use instead, by dotted key.
        draws: as in `simulate`; by default none beyond 200 points.
        jobs: processes at most; more than 1 needs a script with `if __name__ == "__main__"`.
        output: folder of a journal, from which the same sweep goes on after it was stopped.
        dask_client: a `distributed.Client`, whose workers simulate in place of processes of this machine; it is left
            open.
        progress: a bar, a function that is called with the number of points done, or nothing.

    Raises:
        SimnetError: there is nothing to sweep, more than a million points, or no point holds together; or workers of
            Dask that cannot be used.

    Example:
        >>> import simnet
        >>> sweep = simnet.sweep("bert_base_10gbit", {"strategy": ["binsgdm", "one_bit_adam"]}, draws=0)
        >>> [(run.result.strategy, round(run.speedup, 1)) for run in sweep]
        [('binsgdm', 4.9), ('one_bit_adam', 1.4)]
    """
    from simnet.analysis import sweeps
    from simnet.analysis.workers import DaskPool
    from simnet.api.answers import SweepAnswer, as_answer

    listed = points and point_list(points, [f"points[{i}]" for i in range(len(points))], "points", Path())
    experiment = experiment_of(scenario, settings, draws, axes, listed or None)
    asked = sweeps.with_draws(sweeps.points_of(experiment, sweeps.MAX_HELD))
    sweeps.check_any(asked)
    pool = None if dask_client is None else DaskPool(dask_client, "dask_client")
    with bar(len(asked), "simulating", progress) as advance:
        results = sweeps.run(asked, Path(output) if output is not None else None, jobs, advance, pool)
    return as_answer(SweepAnswer, sweeps.collect_results(experiment, asked, results))


@checked
def crossover(  # noqa: PLR0913 - the options of the command
    scenario: Asked,
    *,
    over: str,
    start: object,
    end: object,
    settings: Settings | None = None,
    draws: Draws | None = None,
    tolerance: float = 1e-4,
    progress: Progress = True,
) -> "CrossoverAnswer":
    """Find the values of a key at which a strategy is as fast as tuned DDP, and between which it pays.

    Args:
        scenario: what is asked about.
        over: dotted key of a number or a quantity, such as "cluster.inter_node.bandwidth".
        start: value at one end of the search.
        end: value at the other end.
        settings: values to use instead, by dotted key.
        draws: as in `simulate`.
        tolerance: relative width of a crossing; integers are found exactly.
        progress: as in `sweep`, by step of the search.

    Raises:
        SimnetError: nothing to compare with, a key that is no number or has no effect, two equal ends, or a wrong
            tolerance.
    """
    from simnet.analysis.crossover import NUM_STEPS, search
    from simnet.analysis.tune import compared
    from simnet.api.answers import CrossoverAnswer, as_answer

    experiment = experiment_of(scenario, settings, draws)
    with bar(NUM_STEPS, "searching", progress) as advance:
        searched = search(
            experiment,
            key=over,
            start=start,
            end=end,
            tolerance=tolerance,
            simulate=compared,
            progress=advance,
        )
    return as_answer(CrossoverAnswer, searched)


@checked
def advise(  # noqa: PLR0913 - the options of the command
    scenario: Asked,
    settings: Settings | None = None,
    *,
    systems: Iterable[str] | str = (),
    steps: Names = (),
    convergence: Names = (),
    samples: float | None = None,
    price_per_gpu_hour: float | None = None,
    draws: Draws | None = None,
    jobs: Jobs = 1,
    progress: Progress = True,
) -> "AdviceAnswer":
    """Rank everything that may train this model on this cluster: what to use, and does it pay?

    Args:
        scenario: gives cluster, workload and calibration; its strategies are not used.
        settings: values to use instead, by dotted key.
        systems: rank only these: titles or kinds, such as "BinSGDM" or "power_sgd"; by default all.
        steps: steps of your own script, recorded by simnet record, to rank with the systems.
        convergence: trainings of this workload, by which systems are judged, too: JSON files or shipped names; by
            default all shipped, which only warn.
        samples: samples of the whole training, above 0, for its days, and with a price for its money.
        price_per_gpu_hour: what a GPU costs an hour, in any currency; needs `samples`.
        draws: as in `simulate`.
        jobs: processes at most, as in `sweep`.
        progress: as in `sweep`, by system.

    Raises:
        SimnetError: an unknown system, a file that cannot be read, or a cluster that needs the exact executor.
    """
    from simnet.analysis import convergence as trainings
    from simnet.analysis.advise import advise as ranked
    from simnet.analysis.advise import check_rankable
    from simnet.analysis.advise_with_faults import num_runs
    from simnet.analysis.tune import chosen, recorded_systems
    from simnet.api.answers import AdviceAnswer, as_answer

    names, recorded, judges = chosen(systems), recorded_systems(texts(steps)), texts(convergence)
    resolved = experiment_of(scenario, settings, draws, needs_strategy=False).at({})
    check_rankable(resolved)
    records = {Path(name).stem: trainings.load(name) for name in judges} or trainings.shipped()
    with bar(num_runs(resolved, len(names) + len(recorded)), "predicting", progress) as advance:
        ranking = ranked(
            resolved,
            names=names,
            recorded=recorded,
            trainings=records,
            are_of_user=bool(judges),
            samples=samples,
            price_per_gpu_hour=price_per_gpu_hour,
            jobs=jobs,
            progress=advance,
        )
    return as_answer(AdviceAnswer, ranking)


@checked
def time_to_target(  # noqa: PLR0913 - the options of the command
    scenario: Asked,
    curves: Annotated[Names, Meta(min_length=1)],
    *,
    at: Iterable[str] | str = RATES,
    target: float | None = None,
    ranks: Count | None = None,
    steps: Annotated[int, Meta(ge=1, le=10**12)] | None = None,
    metric: str | None = None,
    same_task: bool = False,
    price_per_gpu_hour: Annotated[float, Meta(gt=0, le=1e9)] | None = None,
    settings: Settings | None = None,
    draws: Draws | None = None,
    progress: Progress = True,
) -> "TimeToTargetAnswer":
    """Find the system that reaches a target metric first: measured steps to it, times the simulated time of a step.

    Args:
        scenario: gives cluster, workload and calibration; its strategies are not used.
        curves: a shipped name, a convergence file, or logs, each as "[SYSTEM=]LOG".
        at: bandwidths of a NIC.
        target: value of the metric to reach; by default that of the curves, if they have one.
        ranks: number of ranks of the trainings to use; by default the largest; of logs, those of the cluster.
        steps: steps of the whole training, to which measured curves are stretched; by default as measured.
        metric: column or tag of the loss in logs; by default loss.
        same_task: take the curves for those of the simulated model, though their number of parameters differs or is
            unknown.
        price_per_gpu_hour: what a GPU costs an hour, in any currency: adds the cost up to the target.
        settings: values to use instead, by dotted key.
        draws: as in `simulate`.
        progress: as in `sweep`, by system and bandwidth.

    Raises:
        SimnetError: curves that cannot be read or are of another task, no target, or a wrong bandwidth.

    Example:
        >>> import simnet
        >>> times = simnet.time_to_target(
        ...     "bert_base_10gbit", "characters", same_task=True, at=["10 Gbit/s"], draws=0
        ... )
        >>> times.bandwidths[0].systems[0].title, times.target
        ('BinSGDM', 2.4468)
    """
    from simnet.analysis.convergence import check_same_task
    from simnet.analysis.time_to_target import times_to_target
    from simnet.api.answers import TimeToTargetAnswer, as_answer
    from simnet.engine.intervals import DRAWS

    resolved = experiment_of(scenario, settings, draws, needs_strategy=False).at({})
    run = resolved.run if resolved.run.draws is not None else replace(resolved.run, draws=DRAWS)
    rates = _bandwidths(at)
    trainings, notes = _trainings(texts(curves), resolved, metric, ranks)
    if not same_task:
        check_same_task(trainings, resolved)
    with bar(len(trainings.systems) * len(rates), "simulating", progress) as advance:
        times = times_to_target(
            replace(resolved, run=run),
            trainings,
            bandwidths=rates,
            ranks=ranks,
            target=target,
            steps=steps,
            price_per_gpu_hour=price_per_gpu_hour,
            progress=advance,
        )
    return as_answer(TimeToTargetAnswer, replace(times, notes=(*notes, *times.notes)))


def _bandwidths(texts: Iterable[object]) -> tuple[Bandwidth, ...]:
    """Return bandwidths, each once."""
    try:
        rates = [Bandwidth.parse(str(text)) for text in texts]
    except ValueError as error:
        raise SimnetError(f"--at: {error}") from error
    if not rates:
        raise SimnetError("--at: '': must hold a bandwidth; write '10 Gbit/s,25 Gbit/s'")
    if slow := [rate for rate in rates if rate < 1]:
        raise SimnetError(f"--at: {slow[0].text()!r}: must be at least 1 B/s; name a NIC's bandwidth")
    return tuple(dict.fromkeys(rates))


def _trainings(
    curves: tuple[str, ...], scenario: Scenario, metric: str | None, ranks: int | None
) -> "tuple[Convergence, tuple[str, ...]]":
    """Return the trainings of a convergence file, or those of logs with notes on how they were read."""
    from simnet.analysis.convergence import load as load_trainings
    from simnet.analysis.training_logs import load_logs, names_a_log

    of_files = [text for text in curves if not names_a_log(text)]
    if not of_files:
        return load_logs(curves, scenario, metric=metric, ranks=ranks)
    if len(curves) > 1:
        raise SimnetError(f"{of_files[0]}: among other curves: no log of a training; give it alone, or give logs only")
    if metric is not None:
        raise SimnetError(f"--metric: has no effect with the convergence of {of_files[0]}; drop it")
    return load_trainings(of_files[0]), ()


@checked
def fits(scenario: Asked, strategy: Strategy | str) -> bool | None:
    """Tell whether a step fits the cluster's GPU under a strategy.

    Args:
        scenario: gives cluster and workload; its strategies are not used.
        strategy: itself, or as text: a kind, with options after a colon or without, such as "power_sgd:matrix_rank=4".

    Returns:
        None where parts are not known, and those that are fit.

    Raises:
        SimnetError: the cluster names no GPU of the table, or the strategy cannot be in this scenario.

    Example:
        >>> import simnet
        >>> large = simnet.load("what_to_use", {"workload.batch_per_rank": 512})
        >>> simnet.fits("what_to_use", "ddp:wire_dtype=bf16"), simnet.fits(large, "ddp")
        (True, False)
    """
    from simnet.cluster import hardware
    from simnet.engine.memory_fit import memory_of
    from simnet.strategies.base import strategy_from_text

    resolved = experiment_of(scenario, None, None, needs_strategy=False).at({})
    named = strategy_from_text(strategy, "strategy") if isinstance(strategy, str) else strategy
    try:
        hardware.find_gpu(resolved.cluster.gpu)
    except SimnetError as error:
        raise SimnetError(f"cluster.gpu: {error} Its memory is not known; see simnet show gpus") from error
    memory = memory_of(resolved, named)
    return memory.fits if memory is not None else None


def experiment_of(  # noqa: PLR0913 - what each question may set
    scenario: Asked,
    settings: Settings | None,
    draws: int | None,
    axes: Axes | None = None,
    listed: Any = None,
    *,
    needs_strategy: bool = True,
    jobs: int | None = 1,
) -> Experiment:
    """Return what was asked as an experiment.

    One that names no strategy gets what `advise` would use, unless it needs none; that takes seconds, in as many
    processes as there are cores where `jobs` is None.
    """
    fixed = {**(settings or {}), **({} if draws is None else {"run.draws": draws})}
    if draws is not None and settings and "run.draws" in settings:
        raise SimnetError(f"draws: {draws}: has no effect with run.draws; drop one of the two")
    if isinstance(scenario, Scenario):
        return scenarios.experiment_of(scenario, fixed, axes, listed)
    from simnet.analysis.tune import names_strategy, systems, with_any_strategy

    experiment = scenarios.load_experiment(str(scenario), fixed, axes, listed)
    if names_strategy(experiment):
        return experiment
    if not needs_strategy:
        return with_any_strategy(experiment)
    from simnet.analysis.advise import with_strategy
    from simnet.analysis.workers import num_cores

    with bar(len(systems()), "choosing a strategy") as advance:
        return with_strategy(experiment, jobs or num_cores(), advance)


def texts(names: Names) -> tuple[str, ...]:
    """Return names as texts."""
    assert isinstance(names, tuple)  # as `checked` makes it
    return tuple(map(str, names))
