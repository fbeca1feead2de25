"""Measured training steps against predictions for the same nodes, network and strategy."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from msgspec.structs import replace

from simnet.calibration.comparison import Comparison
from simnet.calibration.measurement_file import MeasurementFile, Series, Setup
from simnet.calibration.variation import intervals_of_medians
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.validation.strategy_spec import MIB, StrategySpec

OUTSIDE, MIN_VALUES = 0.05, 6
"""Error probability of the interval of a median, and the fewest values that have such an interval."""
INFINITE_BANDWIDTH = Bandwidth(1e15)
MeasuredStep = tuple[Series, Setup]
Setting = tuple[str, int, int, float, float]
"""Model, nodes, ranks on each, NIC bandwidth [B/s] and added latency [s]."""


@dataclass(frozen=True, kw_only=True)
class TrainedPoint(Comparison):
    """The median of measured steps and its prediction; the series is the strategy.

    Attributes:
        setup: nodes, ranks and NIC of the measurement.
        model: trained model.
        without_network_s: predicted step with NICs of infinite bandwidth.
        measured_interval_s: 95 % interval of the median; None for fewer than 6 steps.
        slowness: time of the probes of the machine's speed in this launch over that in the launches that it was
            predicted from; None where none were taken.
    """

    setup: Setup
    model: str
    without_network_s: float
    measured_interval_s: tuple[float, float] | None = None
    slowness: float | None = None

    @classmethod
    def of(cls, series: Series, setup: Setup, **predicted: Any) -> Self:
        """Return a measured step with what is predicted of it."""
        model = str(series.labels["model"])
        return cls(
            setup=setup,
            model=model,
            series=StrategySpec.of_labels(series.labels).label,
            label=model,
            measured=statistics.median(series.values),
            measured_interval_s=median_interval(series.values),
            **predicted,
        )

    @property
    def network_share(self) -> float:
        """Fraction of the predicted step that NICs of infinite bandwidth would save."""
        return 1 - self.without_network_s / self.predicted

    @property
    def setting(self) -> Setting:
        """Model, nodes, ranks per node, NIC bandwidth [B/s] and added latency [s]."""
        setup = self.setup
        return self.model, setup.num_nodes, setup.ranks_per_node, setup.nic_bytes_per_s or 0.0, setup.nic_latency_s


def predict_points(
    scenario: Scenario,
    files: Sequence[MeasurementFile],
    model: str | None,
    watched: Callable[[list[MeasuredStep]], Iterable[MeasuredStep]] = iter,
) -> list[TrainedPoint]:
    """Predict every measured step of a model.

    Args:
        scenario: gives workload and calibration; nodes, NIC and strategy come from the measurement.
        files: measurement files with training series.
        model: name of the model, needed if the files hold several.
        watched: iterates over the steps, and may show progress.

    Raises:
        SimnetError: there is no such step, several models and no choice, or a NIC of unknown bandwidth.
    """
    steps = measured_steps(files)
    models = sorted({str(series.labels.get("model")) for series, _ in steps})
    chosen = model or (models[0] if len(models) == 1 else None)
    if chosen not in models:
        raise SimnetError(f"validate: --model {model}: the measured models are {', '.join(models) or 'none'}; name one")
    of_model = [(series, setup) for series, setup in steps if series.labels.get("model") == chosen]
    return [predict_point(scenario, series, setup) for series, setup in watched(of_model)]


def with_nic(whole: MeasurementFile, nic_bytes_per_s: float | None) -> MeasurementFile:
    """Return a file with the bandwidth of a node's NICs where it does not say it."""
    if nic_bytes_per_s is None or all(setup.nic_bytes_per_s is not None for setup in whole.setups):
        return whole
    setups = [
        setup if setup.nic_bytes_per_s else replace(setup, nic_bytes_per_s=nic_bytes_per_s) for setup in whole.setups
    ]
    return replace(whole, setups=tuple(setups))


def measured_steps(files: Sequence[MeasurementFile]) -> list[MeasuredStep]:
    """Return the measured steps of training, each with its setup."""
    return [
        (series, file.setups[series.setup])
        for file in files
        for series in file.series
        if (series.kind, series.name) == ("training", "step")
    ]


def predict_point(scenario: Scenario, series: Series, setup: Setup, *, with_model_error: bool = True) -> TrainedPoint:
    """Predict one measured step.

    Args:
        scenario: gives workload and calibration.
        series: the measured step.
        setup: nodes, ranks and NIC of the measurement.
        with_model_error: whether the interval holds the model's own error.

    Raises:
        SimnetError: a NIC of unknown bandwidth, or a strategy that the simulator does not know.
    """
    there = scenario_of_step(scenario, series, setup)
    result = simulate(there, with_model_error=with_model_error)
    # Not what a step without messages takes: their CPU time stays.
    without = simulate(replace(with_endless_nics(there), run=replace(there.run, draws=0)))
    return TrainedPoint.of(
        series,
        setup,
        predicted=result.result.iteration_s,
        interval=result.intervals.get("iteration_s"),
        without_network_s=without.result.iteration_s,
    )


def with_endless_nics(scenario: Scenario) -> Scenario:
    """Return a scenario with NICs of infinite bandwidth."""
    link = replace(scenario.cluster.inter_node, bytes_per_s=INFINITE_BANDWIDTH)
    return replace(scenario, cluster=replace(scenario.cluster, inter_node=link))


def scenario_of_step(scenario: Scenario, series: Series, setup: Setup) -> Scenario:
    """Return the scenario with the nodes, network and strategy of a measured series."""
    cluster = replace(scenario.cluster, num_nodes=setup.num_nodes, ranks_per_node=setup.ranks_per_node)
    if setup.nic_bytes_per_s is not None:
        link = replace(cluster.inter_node, bytes_per_s=Bandwidth(setup.nic_bytes_per_s))
        cluster = replace(cluster, inter_node=link)
    elif setup.num_nodes > 1:
        raise SimnetError(
            f"validate: {setup.num_nodes} nodes with NICs of unknown bandwidth: give that of a node with "
            "--nic-gbit-per-s"
        )
    calibration = scenario.calibration
    # A shaper adds to what the link has; the calibration's latency, if there is one, stands for the link's.
    if setup.nic_latency_s:
        calibrated = calibration.inter_node.alpha_s
        known = cluster.inter_node.alpha_s if calibrated is None else calibrated
        over = replace(calibration.inter_node, alpha_s=Duration(known + setup.nic_latency_s))
        calibration = replace(calibration, inter_node=over)
    cap = Size(round(series.number("bucket_cap_mb") * MIB))
    strategy = StrategySpec.of_labels(series.labels).strategy(cap, is_ring=setup.backend == "gloo")
    alone = scenario.without_global_batch()
    return replace(alone, cluster=cluster, calibration=calibration, strategy=strategy, baseline=None)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a median for any distribution; None for fewer than 6 values.

    Example:
        >>> median_interval([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
        (1.0, 6.0)
    """
    if len(values) < MIN_VALUES:
        return None
    _, (start,), (end,) = intervals_of_medians(np.array([values], dtype=float), OUTSIDE)
    return float(start), float(end)
