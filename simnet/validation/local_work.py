"""Predict steps from their own work: steps measured in place whose messages were answered at once.

A step is its own work, at the speed of the machine in the launch that trained, and its messages. Kernels and models
that are timed one by one miss what runs between them, and their slowest ranks add up to more than the slowest step.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from simnet.calibration.measurement_file import MeasurementFile, Series, Setup
from simnet.cluster.hardware import Calibration
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.engine import intervals
from simnet.engine.plan import StrategyPlan
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate, Compute
from simnet.validation import machine_speed, training_steps
from simnet.validation.lab.strategy_spec import StrategySpec
from simnet.validation.machine_speed import Repeated, SpeedFit
from simnet.validation.training_steps import INFINITE_BANDWIDTH, TrainedPoint


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
        """Fit to the launches of every part and layout that was measured in place.

        Raises:
            SimnetError: a launch has no probes, or nothing was measured twice.
        """
        launches = machine_speed.fit([Repeated.of(files).together for files in by_part])
        # A step is predicted from steps: their phases scatter more.
        own = [Repeated.of(files, "step") for files in by_part if files[0].series[0].kind == "own_work"]
        return cls(launches=launches, own_work=machine_speed.fit(own, launches))


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

        Raises:
            SimnetError: it was not measured.
        """
        found = []
        for whole in self.launches:
            values = [one.values for one in whole.series if _is_step(one, model, strategy)]
            if not values:
                raise SimnetError(f"own work of {model} with {strategy}: not measured: measure own_work again")
            own_s = machine_speed.slowness_s(whole)
            factor = 1.0 if slowness_s is None else self.speeds.launches.factor(slowness_s, own_s)
            found.append(statistics.median(values[0]) * factor)
        return _mean(found)

    @property
    def slowness_s(self) -> float:
        """The slowness of the machine while own work was measured, the geometric mean over launches [s]."""
        return _mean([machine_speed.slowness_s(whole) for whole in self.launches])

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
    """Return files whose times are those of one machine, and its slowness: the geometric mean of theirs [s].

    Raises:
        SimnetError: a launch has no probes.
    """
    slow = [machine_speed.slowness_s(whole) for whole in files]
    mean_s = _mean(slow)
    return [_scaled(whole, speed.factor(mean_s, own_s)) for whole, own_s in zip(files, slow, strict=True)], mean_s


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def _scaled(whole: MeasurementFile, factor: float) -> MeasurementFile:
    # What was measured, probes too: scaled files are fitted and not asked for their speed again.
    series = tuple(replace(one, values=tuple(value * factor for value in one.values)) for one in whole.series)
    return replace(whole, series=series)


def predict_point(  # noqa: PLR0913, PLR0917
    scenario: Scenario, series: Series, setup: Setup, own: OwnWork, slowness_s: float, form: Form = CHOSEN
) -> TrainedPoint:
    """Predict one measured step.

    Args:
        scenario: gives workload, calibration and draws.
        series: the measured step.
        setup: nodes, ranks and NIC of the measurement.
        own: the own work on this layout.
        slowness_s: of the machine in the launch that trained.
        form: what is taken into account.

    Raises:
        SimnetError: as `training_steps.predict_point`, or the own work was not measured.
    """
    there = training_steps.scenario_of_step(scenario, series, setup)
    model, strategy = str(series.labels["model"]), StrategySpec.of_labels(series.labels).label
    own_s = own.seconds(model, strategy, slowness_s if form.at_speed else None)
    speeds, is_serial = own.speeds, own.shares_cores and not form.hides
    host = speeds.launches.factor(slowness_s, own.messages_slowness_s) if form.at_speed else 1.0
    reach = (
        speeds.own_work.reach(len(own.launches), slowness_s, own.slowness_s),
        speeds.launches.reach(own.num_message_launches, slowness_s, own.messages_slowness_s),
    )
    draws = there.run.draws or 0
    # One deviation for both: they are times of one launch.
    deviations = zip(*(intervals.error_factors(one, draws) for one in reach), strict=True)
    drawn = [
        _step_s(one, own_s * by_own, host * by_host, is_serial=is_serial)
        for one, (by_own, by_host) in zip(intervals.drawn_scenarios(there, draws), deviations, strict=True)
    ]
    endless = replace(there.cluster, inter_node=replace(there.cluster.inter_node, bytes_per_s=INFINITE_BANDWIDTH))
    return TrainedPoint(
        setup=setup,
        model=model,
        series=strategy,
        label=model,
        measured=statistics.median(series.values),
        predicted=_step_s(there, own_s, host, is_serial=is_serial),
        interval=intervals.middle_90_percent(drawn) if drawn else None,
        without_network_s=_step_s(replace(there, cluster=endless), own_s, host, is_serial=is_serial),
        measured_interval_s=training_steps.median_interval(series.values),
        slowness=slowness_s / own.slowness_s,
    )


def _step_s(scenario: Scenario, own_s: float, host: float, *, is_serial: bool) -> float:
    """Return the time of a step whose compute takes `own_s` in all, and its messages `host` times the CPU [s]."""
    prepared = PreparedScenario(replace(scenario, calibration=_with_host(scenario.calibration, host)))
    plan = prepared.plan(scenario.strategy)
    timed = prepared.timed(plan)
    computed_s = sum(one.seconds for stream in timed for one in stream if isinstance(one, Compute))
    streams = _streams(timed, own_s / computed_s, is_serial=is_serial)
    return prepared.iteration_s(StrategyPlan(scenario.strategy, replace(plan.program, streams=streams)))


def _streams(streams: Streams, factor: float, *, is_serial: bool) -> Streams:
    """Return streams whose compute takes longer by a factor; serial ones are one stream, in which nothing overlaps."""
    scaled = tuple(
        tuple(replace(one, seconds=one.seconds * factor) if isinstance(one, Compute) else one for one in stream)
        for stream in streams
    )
    if not is_serial:
        return scaled
    return (tuple(replace(one, after=()) for kind in (Compute, Communicate) for stream in scaled
                  for one in stream if isinstance(one, kind)),)  # fmt: skip


def _with_host(calibration: Calibration, factor: float) -> Calibration:
    host = calibration.host
    costs = {
        name: Duration(getattr(host, name) * factor) for name in ("launch_s", "round_s", "message_s", "s_per_byte")
    }
    return replace(calibration, host=replace(host, **costs))
