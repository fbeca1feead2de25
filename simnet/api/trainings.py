"""Which training is first at its target."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from simnet.analysis.convergence import Convergence, check_same_task, load
from simnet.analysis.time_to_target import TimesToTarget, times_to_target
from simnet.api.answers import TimeToTargetAnswer
from simnet.api.questions import Asked, Draws, Progress, Settings, advancing, as_answer, experiment_of, texts
from simnet.core.arguments import Names, checked
from simnet.core.bounded_types import Count
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth
from simnet.engine.scenario import Scenario

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
    asked = TargetQuestion.of(
        experiment_of(scenario, settings, draws, needs_strategy=False).at({}),
        texts(curves),
        bandwidths(at),
        metric=metric,
        ranks=ranks,
        same_task=same_task,
    )
    with advancing(progress, asked.num_steps, "simulating") as advance:
        found = asked.answer(advance, target=target, steps=steps, price_per_gpu_hour=price_per_gpu_hour)
    return as_answer(TimeToTargetAnswer, found)


@dataclass(frozen=True, kw_only=True)
class TargetQuestion:
    """Trainings that go with a scenario, before anything is simulated."""

    scenario: Scenario
    trainings: Convergence
    bandwidths: tuple[Bandwidth, ...]
    ranks: int | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(  # noqa: PLR0913 - the options of the command
        cls,
        scenario: Scenario,
        curves: tuple[str, ...],
        rates: tuple[Bandwidth, ...],
        *,
        metric: str | None,
        ranks: int | None,
        same_task: bool,
    ) -> "TargetQuestion":
        """Read the trainings, and check that they are of the simulated model.

        Raises:
            SimnetError: they cannot be read, or are of another task.
        """
        trainings, notes = _trainings(curves, scenario, metric, ranks)
        if not same_task:
            check_same_task(trainings, scenario)
        drawn = _with_draws(scenario)
        return cls(scenario=drawn, trainings=trainings, bandwidths=rates, ranks=ranks, notes=notes)

    @property
    def num_steps(self) -> int:
        """How often `answer` calls `advance` at most."""
        return len(self.trainings.systems) * len(self.bandwidths)

    def answer(
        self,
        advance: Callable[[int], object],
        *,
        target: float | None,
        steps: int | None,
        price_per_gpu_hour: float | None,
    ) -> TimesToTarget:
        """Simulate; `advance` is called with 1 for every system at every bandwidth.

        Raises:
            SimnetError: no target, or one that no training has a value for.
        """
        found = times_to_target(
            self.scenario,
            self.trainings,
            bandwidths=self.bandwidths,
            ranks=self.ranks,
            target=target,
            steps=steps,
            price_per_gpu_hour=price_per_gpu_hour,
            progress=advance,
        )
        return replace(found, notes=(*self.notes, *found.notes))


def bandwidths(rates: Iterable[object], text: str = "") -> tuple[Bandwidth, ...]:
    """Return bandwidths, each once; `text` is what was given, for a message.

    Raises:
        SimnetError: there is none, or one is no bandwidth of at least 1 B/s.
    """
    try:
        found = [Bandwidth.parse(str(value)) for value in rates]
    except ValueError as error:
        raise SimnetError(f"--at: {error}") from error
    if not found:
        raise SimnetError(f"--at: {text!r}: must hold a bandwidth; write '10 Gbit/s,25 Gbit/s'")
    if slow := [rate for rate in found if rate < 1]:
        raise SimnetError(f"--at: {slow[0].text()!r}: must be at least 1 B/s; name a NIC's bandwidth")
    return tuple(dict.fromkeys(found))


def _trainings(
    curves: tuple[str, ...], scenario: Scenario, metric: str | None, ranks: int | None
) -> tuple[Convergence, tuple[str, ...]]:
    """Return the trainings of a convergence file, or those of logs with notes on how they were read."""
    from simnet.analysis.training_logs import load_logs, names_a_log

    of_files = [text for text in curves if not names_a_log(text)]
    if not of_files:
        return load_logs(curves, scenario, metric=metric, ranks=ranks)
    if len(curves) > 1:
        raise SimnetError(f"{of_files[0]}: among other curves: no log of a training; give it alone, or give logs only")
    if metric is not None:
        raise SimnetError(f"--metric: has no effect with the convergence of {of_files[0]}; drop it")
    return load(of_files[0]), ()


def _with_draws(scenario: Scenario) -> Scenario:
    from simnet.engine.intervals import DRAWS

    draws = DRAWS if scenario.run.draws is None else scenario.run.draws
    return replace(scenario, run=replace(scenario.run, draws=draws))
