"""Steps of real training against those that an experiment predicts for the same nodes, network and strategy."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from simnet.calibrate.measurement import Measurements, Series, Setup
from simnet.errors import SimnetError
from simnet.lab.strategy_spec import MIB, StrategySpec
from simnet.scenario import Scenario
from simnet.show.text import aligned, bandwidth_text
from simnet.simulate import simulate
from simnet.units import Bandwidth, Size, format_seconds
from simnet.validate.outcome import mean_error, worst_error
from simnet.validate.text import percent

OUTSIDE, LEAST_VALUES = 0.05, 6
"""Of the interval of a median; fewer values have none."""
ENDLESS = Bandwidth(1e15)
Step = tuple[Series, Setup]
HEADER = ("nodes x ranks", "NIC", "strategy", "measured", "predicted", "error", "90 % interval", "")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured setting with what is predicted for it.

    Attributes:
        measured_s: median of the measured steps.
        measured_interval_s: 95 % interval of that median; None for fewer than 6 steps.
        interval_s: of the prediction, if the calibration has intervals and draws were asked for.
        without_network_s: what is predicted for NICs of infinite bandwidth.
    """

    setup: Setup
    model: str
    strategy: str
    measured_s: float
    predicted_s: float
    interval_s: tuple[float, float] | None
    without_network_s: float
    measured_interval_s: tuple[float, float] | None = None

    @property
    def network_share(self) -> float:
        """Part of the predicted time that a network of infinite bandwidth would save."""
        return 1 - self.without_network_s / self.predicted_s

    @property
    def error(self) -> float:
        """Relative error with its sign: predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def is_inside(self) -> bool | None:
        """Tell whether the measured time lies in the predicted interval; None without one."""
        if self.interval_s is None:
            return None
        return self.interval_s[0] <= self.measured_s <= self.interval_s[1]


def points(
    scenario: Scenario,
    files: Sequence[Measurements],
    model: str | None,
    watched: Callable[[list[Step]], Iterable[Step]] = iter,
) -> list[Point]:
    """Predict every measured step of a model.

    Args:
        scenario: gives workload, calibration and what else the measurement does not tell.
        files: measurement files with training series.
        model: which model's steps, if there are several.
        watched: goes through the steps, and may show how far it is.

    Raises:
        SimnetError: there is no such step, several models without a choice, or a NIC of unknown bandwidth.
    """
    steps = steps_of(files)
    models = sorted({str(one.labels.get("model")) for one, _ in steps})
    chosen = model or (models[0] if len(models) == 1 else None)
    if chosen not in models:
        raise SimnetError(f"validate: --model {model}: the measured models are {', '.join(models) or 'none'}; name one")
    mine = [(series, setup) for series, setup in steps if series.labels.get("model") == chosen]
    return [point(scenario, series, setup) for series, setup in watched(mine)]


def steps_of(files: Sequence[Measurements]) -> list[Step]:
    """Return the measured steps of training, each with its setup."""
    return [(one, file.setups[one.setup]) for file in files for one in file.series if _is_step(one)]


def _is_step(series: Series) -> bool:
    return series.kind == "training" and series.name == "step"


def point(scenario: Scenario, series: Series, setup: Setup) -> Point:
    """Predict one measured step.

    Raises:
        SimnetError: a NIC of unknown bandwidth, or parts that do not fit together.
    """
    there = at(scenario, series, setup)
    result = simulate(there)
    endless = replace(there.cluster, inter_node=replace(there.cluster.inter_node, bytes_per_s=ENDLESS))
    without = simulate(replace(there, cluster=endless, run=replace(there.run, draws=0)))
    return Point(
        setup=setup,
        model=str(series.labels["model"]),
        strategy=StrategySpec.of_labels(series.labels).label,
        measured_s=statistics.median(series.values),
        predicted_s=result.result.iteration_s,
        interval_s=result.intervals.get("iteration_s"),
        without_network_s=without.result.iteration_s,
        measured_interval_s=median_interval(series.values),
    )


def at(scenario: Scenario, series: Series, setup: Setup) -> Scenario:
    """Return the scenario with the nodes, network and strategy of a measured series."""
    if setup.nic_bytes_per_s is None:
        raise SimnetError("validate: a NIC of unknown bandwidth: measure with --nic-gbit-per-s")
    cluster = replace(
        scenario.cluster,
        num_nodes=setup.num_nodes,
        ranks_per_node=setup.ranks_per_node,
        inter_node=replace(scenario.cluster.inter_node, bytes_per_s=Bandwidth(setup.nic_bytes_per_s)),
    )
    cap = Size(round(series.number("bucket_cap_mb") * MIB))
    strategy = StrategySpec.of_labels(series.labels).strategy(cap, is_ring=setup.backend == "gloo")
    return replace(scenario, cluster=cluster, strategy=strategy, baseline=None)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a median, free of any distribution; None for fewer than 6 values.

    Example:
        >>> median_interval([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
        (1.0, 6.0)
    """
    count, left_out, tail = len(values), 0, 0.0
    if count < LEAST_VALUES:
        return None
    while (tail := tail + math.comb(count, left_out) / 2.0**count) <= OUTSIDE / 2:
        left_out += 1
    ordered = sorted(values)
    return ordered[left_out - 1], ordered[count - left_out]


def table(found: Sequence[Point]) -> str:
    """Return points and a summary as text."""
    rows = [HEADER, *(_row(point) for point in sorted(found, key=_order))]
    inside = [point.is_inside for point in found if point.is_inside is not None]
    known = f"; {sum(inside)} of {len(inside)} measured values inside the interval" if inside else "; no intervals"
    errors = f"mean error {percent(mean_error(found))}, worst {percent(worst_error(found))}"
    return "\n".join([*aligned(rows), "", f"{len(found)} points: {errors}{known}"])


def _order(point: Point) -> tuple[int, int, float, str]:
    setup = point.setup
    return setup.num_nodes, setup.ranks_per_node, setup.nic_bytes_per_s or 0.0, point.strategy


def _row(point: Point) -> tuple[str, ...]:
    interval = " to ".join(map(format_seconds, point.interval_s)) if point.interval_s else ""
    inside = {None: "", True: "inside", False: "outside"}[point.is_inside]
    return (
        f"{point.setup.num_nodes} x {point.setup.ranks_per_node}",
        bandwidth_text((point.setup.nic_bytes_per_s or 0.0) * 8 / 1e9),
        point.strategy,
        format_seconds(point.measured_s),
        format_seconds(point.predicted_s),
        f"{point.error:+.1%}".replace("%", " %"),
        interval,
        inside,
    )
