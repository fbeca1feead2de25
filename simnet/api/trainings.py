"""Which training is first at its target."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from simnet.analysis.convergence import Convergence, load
from simnet.analysis.same_task import check_same_task
from simnet.analysis.time_to_target import times_to_target
from simnet.api.answers import TimeToTargetAnswer
from simnet.api.questions import Asked, Draws, Settings, as_answer, experiment_of, texts
from simnet.core.arguments import Names, checked
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth
from simnet.engine.scenario import Scenario
from simnet.report.progress_bar import Progress
from simnet.report.progress_bar import progress as bar

RATES = ("10 Gbit/s", "25 Gbit/s", "40 Gbit/s", "100 Gbit/s")


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
) -> TimeToTargetAnswer:
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
        >>> found = simnet.time_to_target(
        ...     "bert_base_10gbit", "characters", same_task=True, at=["10 Gbit/s"], draws=0
        ... )
        >>> found.bandwidths[0].systems[0].title, found.target
        ('BinSGDM', 2.4468)
    """
    resolved = experiment_of(scenario, settings, draws, needs_strategy=False).at({})
    rates = _bandwidths(at)
    trainings, notes = _trainings(texts(curves), resolved, metric, ranks)
    if not same_task:
        check_same_task(trainings, resolved)
    with bar(len(trainings.systems) * len(rates), "simulating", progress) as advance:
        times = times_to_target(
            _with_draws(resolved),
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
) -> tuple[Convergence, tuple[str, ...]]:
    """Return the trainings of a convergence file, or those of logs with notes on how they were read."""
    from simnet.analysis.logged_trainings import load_logs, names_a_log

    of_files = [text for text in curves if not names_a_log(text)]
    if not of_files:
        logged = load_logs(curves, scenario, metric=metric, ranks=ranks)
        return logged.convergence, logged.notes
    if len(curves) > 1:
        raise SimnetError(f"{of_files[0]}: among other curves: no log of a training; give it alone, or give logs only")
    if metric is not None:
        raise SimnetError(f"--metric: has no effect with the convergence of {of_files[0]}; drop it")
    return load(of_files[0]), ()


def _with_draws(scenario: Scenario) -> Scenario:
    from simnet.engine.intervals import DRAWS

    draws = DRAWS if scenario.run.draws is None else scenario.run.draws
    return replace(scenario, run=replace(scenario.run, draws=draws))
