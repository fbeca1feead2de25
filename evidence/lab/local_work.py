"""Predict steps from their own work: steps measured in place whose messages were answered at once.

A step is its own work, at the speed of the machine in the launch that trained, and its messages. Kernels and models
that are timed one by one miss what runs between them, and their slowest ranks add up to more than the slowest step.

A virtual machine has other speeds in other launches. Every launch times fixed pieces of work, the probes. Work follows
them by a power, the elasticity, fitted to what a campaign measures in place more than once; so is the spread that is
left. Predicted steps take no part: a probe of their launch says how fast the machine was, and nothing else does.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from simnet.calibration.measurement_file import MeasurementFile, Series, Setup
from simnet.cluster.hardware import Calibration
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.engine import intervals
from simnet.engine.intervals import SIGMAS
from simnet.engine.plan import StrategyPlan
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate, Compute
from simnet.validation import training_steps
from simnet.validation.strategy_spec import StrategySpec
from simnet.validation.training_steps import TrainedPoint

PRIOR, PRIOR_WEIGHT = 0.7, 0.01
"""Elasticity without any measurement, and its weight as a sum of squared logarithms: as two launches whose speeds
differ by 14 %. A judgment: work follows the speed of a core in full, and a probe's own noise lowers the power."""


def probed_slowness_s(whole: MeasurementFile) -> float:
    """Return what the probes of a launch took: the geometric mean of their medians [s]."""
    medians = [statistics.median(series.values) for series in whole.series if series.kind == "speed"]
    if not medians:
        raise SimnetError(f"{whole.command}: no series of kind speed: measure again with --speed")
    return statistics.geometric_mean(medians)


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The same things, measured in several launches.

    Attributes:
        slowness_s: of each launch.
        times_s: of each thing in each launch, its median.
    """

    slowness_s: tuple[float, ...]
    times_s: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, launches: Sequence[MeasurementFile], name: str = "") -> "Repeated":
        """Collect the series, but probes and those of single ranks, that all of some launches have."""
        medians = [
            {
                f"{series.kind} {series.name} {json.dumps(series.labels, sort_keys=True)}": statistics.median(
                    series.values
                )
                for series in whole.series
                if series.kind != "speed" and "rank" not in series.labels and name in {"", series.name}
            }
            for whole in launches
        ]
        common = [key for key in medians[0] if all(key in of_launch for of_launch in medians)]
        return cls(
            slowness_s=tuple(map(probed_slowness_s, launches)),
            times_s=tuple(tuple(of_launch[key] for of_launch in medians) for key in common),
        )

    @property
    def together(self) -> "Repeated":
        """All things as one, with the geometric mean of their times."""
        means = tuple(statistics.geometric_mean(column) for column in zip(*self.times_s, strict=True))
        return Repeated(slowness_s=self.slowness_s, times_s=(means,))


@dataclass(frozen=True, kw_only=True)
class SpeedFit:
    """How times of the CPU follow the probes.

    Attributes:
        elasticity: a machine whose probes take twice as long takes 2 ** elasticity as long for other work.
        doubt: standard deviation of the elasticity.
        spread: standard deviation of the logarithm of a time that is left from launch to launch.
        freedom: differences between launches that the spread was found from.
    """

    elasticity: float
    doubt: float
    spread: float
    freedom: int

    def factor(self, slowness_s: float, than_s: float) -> float:
        """Return how many times longer work takes at one slowness than at another."""
        return math.exp(self.elasticity * math.log(slowness_s / than_s))

    def reach(self, num_launches: int, slowness_s: float, than_s: float) -> float:
        """Return the end, as a factor, of the 90 % interval of a time in a new launch, predicted from some launches.

        The further the speed of the new launch is from theirs, the more the elasticity's own doubt counts.

        Source: the 95 % point of Student's distribution, to the first order of its expansion; Abramowitz and Stegun,
        "Handbook of Mathematical Functions", 26.7.5.
        """
        deviations = SIGMAS + (SIGMAS**3 + SIGMAS) / (4 * self.freedom)
        of_launches = self.spread * math.sqrt(1 + 1 / num_launches)
        return math.exp(deviations * math.hypot(of_launches, self.doubt * math.log(slowness_s / than_s)))


def fit(repeated: Sequence[Repeated], known: SpeedFit | None = None) -> SpeedFit:
    """Fit an elasticity from 0 to 1 by least squares, drawn to `PRIOR`, and the spread that it leaves.

    Args:
        repeated: of one layout each; every thing in them counts alike.
        known: gives the elasticity and its doubt; only the spread is fitted.
    """
    # Centred: only differences between launches of the same thing say how it follows the probes.
    pairs = [
        (_centred(same.slowness_s), _centred(times_s))
        for same in repeated
        for times_s in same.times_s
        if len(same.slowness_s) > 1
    ]
    freedom = sum(len(slow) - 1 for slow, _ in pairs)
    if not freedom:
        raise SimnetError("the spread between launches needs two launches of the same: give starts = 2 or more")
    x, y = (tuple(chain.from_iterable(side)) for side in zip(*pairs, strict=True))
    along, of_probes = sum(a * b for a, b in zip(x, y, strict=True)), sum(a * a for a in x) + PRIOR_WEIGHT
    elasticity = known.elasticity if known else min(max((along + PRIOR_WEIGHT * PRIOR) / of_probes, 0.0), 1.0)
    spread = math.sqrt(sum((b - elasticity * a) ** 2 for a, b in zip(x, y, strict=True)) / freedom)
    doubt = known.doubt if known else spread / math.sqrt(of_probes)
    return SpeedFit(elasticity=elasticity, doubt=doubt, spread=spread, freedom=freedom)


def _centred(values: Sequence[float]) -> list[float]:
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    return [log - mean for log in logs]


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a prediction takes into account.

    Attributes:
        at_speed: the speed of the machine in the launch that trained.
        hides: messages hide behind compute, as the simulator says; else not, where ranks share cores.
    """

    at_speed: bool = True
    hides: bool = False


CHOSEN = Form()


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """How times follow the speed of the machine, over all layouts of a campaign.

    Attributes:
        launches: the speed of a launch; from everything that was measured in place more than once.
        own_work: with the same elasticity and the spread of own work of single strategies.
    """

    launches: SpeedFit
    own_work: SpeedFit

    @classmethod
    def of(cls, by_part: Sequence[Sequence[MeasurementFile]]) -> "Speeds":
        """Fit to the launches of every part and layout that was measured in place."""
        launches = fit([Repeated.of(files).together for files in by_part])
        # A step is predicted from steps: their phases scatter more.
        own_steps = [Repeated.of(files, "step") for files in by_part if files[0].series[0].kind == "own_work"]
        return cls(launches=launches, own_work=fit(own_steps, launches))


@dataclass(frozen=True, kw_only=True)
class OwnWork:
    """The own work of every model and strategy on a layout.

    Attributes:
        launches: measured without messages, each with all models and strategies.
        messages_slowness_s: what the calibration's CPU times of messages were brought to.
        num_message_launches: launches that these were fitted to.
        speeds: how times follow the speed.
    """

    launches: tuple[MeasurementFile, ...]
    messages_slowness_s: float
    num_message_launches: int
    speeds: Speeds

    def seconds(self, model: str, strategy: str, slowness_s: float | None) -> float:
        """Return the own work of a step where the machine is so slow, the geometric mean over launches [s].

        Args:
            model: its name.
            strategy: its label.
            slowness_s: of the machine; None takes each launch as it was.
        """
        seconds = []
        for whole in self.launches:
            values = [series.values for series in whole.series if _is_step(series, model, strategy)]
            if not values:
                raise SimnetError(f"own work of {model} with {strategy}: not measured: measure own_work again")
            own_s = probed_slowness_s(whole)
            factor = 1.0 if slowness_s is None else self.speeds.launches.factor(slowness_s, own_s)
            seconds.append(statistics.median(values[0]) * factor)
        return statistics.geometric_mean(seconds)

    @property
    def slowness_s(self) -> float:
        """The slowness of the machine while own work was measured, the geometric mean over launches [s]."""
        return statistics.geometric_mean([probed_slowness_s(whole) for whole in self.launches])

    @property
    def shares_cores(self) -> bool:
        """Whether the ranks of a machine have more threads than it has cores."""
        whole = self.launches[0]
        setup = whole.setups[0]
        return setup.ranks_on_machine * setup.threads_per_rank > whole.hardware.cores


def _is_step(series: Series, model: str, strategy: str) -> bool:
    is_own = series.kind == "own_work" and series.name == "step" and series.labels["model"] == model
    return is_own and StrategySpec.of_labels(series.labels).label == strategy


def at_one_speed(files: Sequence[MeasurementFile], speed: SpeedFit) -> tuple[list[MeasurementFile], float]:
    """Return files whose times are those of one machine, and its slowness: the geometric mean of theirs [s]."""
    slow = [probed_slowness_s(whole) for whole in files]
    mean_s = statistics.geometric_mean(slow)
    return [_scaled(whole, speed.factor(mean_s, own_s)) for whole, own_s in zip(files, slow, strict=True)], mean_s


def _scaled(whole: MeasurementFile, factor: float) -> MeasurementFile:
    # What was measured, probes too: scaled files are fitted and not asked for their speed again.
    series = tuple(replace(each, values=tuple(value * factor for value in each.values)) for each in whole.series)
    return replace(whole, series=series)


def predict_point(  # noqa: PLR0913, PLR0917
    scenario: Scenario, series: Series, setup: Setup, own_work: OwnWork, slowness_s: float, form: Form = CHOSEN
) -> TrainedPoint:
    """Predict one measured step.

    Args:
        scenario: gives workload, calibration and draws.
        series: the measured step.
        setup: nodes, ranks and NIC of the measurement.
        own_work: on this layout.
        slowness_s: of the machine in the launch that trained.
        form: what is taken into account.
    """
    there = training_steps.scenario_of_step(scenario, series, setup)
    model, strategy = str(series.labels["model"]), StrategySpec.of_labels(series.labels).label
    own_s = own_work.seconds(model, strategy, slowness_s if form.at_speed else None)
    speeds, is_serial = own_work.speeds, own_work.shares_cores and not form.hides
    host = speeds.launches.factor(slowness_s, own_work.messages_slowness_s) if form.at_speed else 1.0
    reach = (
        speeds.own_work.reach(len(own_work.launches), slowness_s, own_work.slowness_s),
        speeds.launches.reach(own_work.num_message_launches, slowness_s, own_work.messages_slowness_s),
    )
    draws = there.run.draws or 0
    # One deviation for both: they are times of one launch.
    deviations = zip(*(intervals.error_factors(end, draws) for end in reach), strict=True)
    drawn = [
        _step_s(there, own_s * by_own, host * by_host, is_serial=is_serial)
        for there, (by_own, by_host) in zip(intervals.drawn_scenarios(there, draws), deviations, strict=True)
    ]
    endless = training_steps.with_endless_nics(there)
    return TrainedPoint.of(
        series,
        setup,
        predicted=_step_s(there, own_s, host, is_serial=is_serial),
        interval=intervals.middle_90_percent(drawn) if drawn else None,
        without_network_s=_step_s(endless, own_s, host, is_serial=is_serial),
        slowness=slowness_s / own_work.slowness_s,
    )


def _step_s(scenario: Scenario, own_s: float, host: float, *, is_serial: bool) -> float:
    """Return the time of a step whose compute takes `own_s` in all, and its messages `host` times the CPU [s]."""
    prepared = PreparedScenario(replace(scenario, calibration=_with_host(scenario.calibration, host)))
    plan = prepared.plan(scenario.strategy)
    timed = prepared.timed(plan)
    computed_s = sum(operation.seconds for stream in timed for operation in stream if isinstance(operation, Compute))
    streams = _streams(timed, own_s / computed_s, is_serial=is_serial)
    return prepared.iteration_s(StrategyPlan(scenario.strategy, replace(plan.program, streams=streams)))


def _streams(streams: Streams, factor: float, *, is_serial: bool) -> Streams:
    """Return streams whose compute takes longer by a factor; serial ones are one stream, in which nothing overlaps."""
    scaled = tuple(
        tuple(
            replace(operation, seconds=operation.seconds * factor) if isinstance(operation, Compute) else operation
            for operation in stream
        )
        for stream in streams
    )
    if not is_serial:
        return scaled
    return (tuple(replace(operation, after=()) for kind in (Compute, Communicate) for stream in scaled
                  for operation in stream if isinstance(operation, kind)),)  # fmt: skip


def _with_host(calibration: Calibration, factor: float) -> Calibration:
    host = calibration.host
    costs = {
        name: Duration(getattr(host, name) * factor) for name in ("launch_s", "round_s", "message_s", "s_per_byte")
    }
    return replace(calibration, host=replace(host, **costs))
