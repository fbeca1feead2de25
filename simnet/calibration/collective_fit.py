"""Fit latencies and bandwidths of links to measured collectives.

    time = launch + rounds x latency + sends x message cost + (sends posted at once)^2 x poll cost + bytes / bandwidth

The time is linear in launch, latency, message cost, poll cost and the inverse of bandwidth, so one non-negative least
squares fits all series at once. Its design matrix has a row for each series and a column for each cost. The counts of
rounds, sends and bytes are those of the simulator's schedules; a test compares the two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simnet.calibration import bootstrap, nodes_fit
from simnet.calibration.bootstrap import Samples
from simnet.calibration.comparison import Comparison, Role
from simnet.calibration.fitted_part import (
    FittedPart,
    Floats,
    Interval,
    choose_columns,
    duration_text,
    text_with_interval,
    widen,
)
from simnet.calibration.measurement_file import MeasurementFile, Series, Setup
from simnet.calibration.nodes_fit import TimedBytes
from simnet.calibration.solvers import non_negative_least_squares
from simnet.cluster.hardware import Cluster
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Size, format_bytes

LEVELS = INTRA_NODE, INTER_NODE = ("intra_node", "inter_node")
FITTED = ("all_reduce", "all_gather", "all_to_all", "send")
MIN_SERIES = 3
MIN_GAIN = 0.01
"""Fraction by which a further cost must lower the mean error; else these rows do not determine the cost."""
CURVE_MIN_ERROR, CURVE_MIN_GAIN = 0.1, 0.25
"""An efficiency by size is tried from this mean error on, and kept if it lowers the error by this fraction."""
BIN_RATIO = 8.0
"""Ratio of the largest to the smallest send that share one efficiency."""
MIN_PER_BIN = 2
AT_ONCE = "at once"
NO_NOMINAL = (
    "no nominal bandwidth is known; efficiencies are fractions of the fastest measured rate (measured_on): give "
    "the cluster that uses the calibration this rate, or give --cluster"
)
_LATENCIES = {
    "launch": "collective_launch", "message": "message_cost", "poll": "poll_cost",
    "intra_node latency": "intra_node.latency", "inter_node latency": "inter_node.latency",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TimedCollective(Samples):
    """One measured series, with the counts that multiply the costs.

    Attributes:
        level: "intra_node" or "inter_node", the link that limits the collective.
        label: for people.
        rounds: sends of a rank that wait for one another.
        sends: messages that a rank posts.
        at_once: whether a rank posts all its messages together.
        link_bytes: bytes through the busiest link, of all concurrent groups together.
        send_bytes: bytes of one message.
        nominal_bytes_per_s: rate of the link; None if unknown.
        num_nodes: nodes on which the collective ran.
    """

    level: str
    label: str
    rounds: int
    sends: int
    at_once: bool
    link_bytes: float
    send_bytes: float
    nominal_bytes_per_s: float | None
    num_nodes: int

    @property
    def polls(self) -> int:
        """Polled connections: every send polls all connections, and each send posted at once has one of its own."""
        return self.sends**2 if self.at_once else 0


def select_collectives(measurements: Sequence[MeasurementFile], cluster: Cluster | None) -> list[TimedCollective]:
    """Return the collectives in measurement files that the fit knows."""
    return [
        _timed_collective(series, whole.setups[series.setup], cluster)
        for whole in measurements
        for series in whole.series
        if series.kind == "collective" and series.name in FITTED and series.count("group_size") > 1
    ]


def fit_collectives(
    train: Sequence[TimedCollective], held_out: Sequence[TimedCollective], draws: int, *, only_bandwidths: bool = False
) -> FittedPart:
    """Fit collectives, with intervals and residuals.

    Args:
        train: collectives to fit.
        held_out: collectives to predict.
        draws: bootstrap resamples.
        only_bandwidths: leave all costs but bandwidths at 0, since `host_fit` fits them in place.

    Raises:
        SimnetError: too few series, or a nominal bandwidth that only some series of a link have.
    """
    if len(train) < MIN_SERIES:
        raise SimnetError(f"{len(train)} collectives: at least {MIN_SERIES} sizes or groups are needed; measure more")
    medians_s = [one.median_s for one in train]
    model = _LinearModel.fit(train, medians_s, only_bandwidths=only_bandwidths)
    point = model.values()

    def draw(rng: np.random.Generator) -> Mapping[str, float]:
        rows, again_s = bootstrap.resample_rows(train, rng)
        values = _LinearModel.solve(rows, again_s, model.bin_centers, only_bandwidths=only_bandwidths).values()
        if any(name.endswith("efficiency") and name not in values for name in point):
            raise SimnetError("these rows do not determine every bandwidth")
        # A cost that the resample does without counts as 0: that it may be absent belongs to its interval.
        return dict.fromkeys(point, 0.0) | values

    spread = bootstrap.interval_factors(point, draw, draws)
    # Nodes that share a machine have no fabric between them: `host_fit` sees what their number changes.
    by_nodes = {} if only_bandwidths else nodes_fit.fit_factors(_timed_bytes(model, train))
    residuals = _residuals(model, train, "fitted", by_nodes)
    for level in LEVELS:
        name, rows = f"{level}.efficiency", [one for one in residuals if one.series.endswith(level)]
        if name in spread:
            spread[name] = widen(spread[name], rows)
    table = _table(model, train)
    if by_nodes:
        efficiency = table[INTER_NODE]["efficiency"]
        table["by_nodes"] = nodes_fit.points(by_nodes, efficiency, spread.get(f"{INTER_NODE}.efficiency"))
    return FittedPart(
        table=table,
        shown={name: _shown(name, value, spread.get(name)) for name, value in point.items()},
        intervals={key: spread[key] for key in point if key in spread and point[key] > 0},
        residuals=(*residuals, *_residuals(model, held_out, "held out", by_nodes)),
        notes=_notes(model, train),
    )


def _timed_collective(series: Series, setup: Setup, cluster: Cluster | None) -> TimedCollective:
    group, size, message = str(series.labels["group"]), series.count("group_size"), series.number("message_bytes")
    level = "intra_node" if group == "intra_node" or setup.num_nodes == 1 else "inter_node"
    rounds, sends, at_once = _rounds(series.name, size)
    # Groups that are at work at one time, one for each local rank, share the NIC of a node.
    num_groups = series.count("num_groups") if level == "inter_node" and group == "inter_node" else 1
    chunk = message if series.name == "send" else message / size
    link_bytes = sends * chunk * num_groups
    # All ranks of a node share its NIC, and bytes between ranks of one node do not cross it.
    if series.name == "all_to_all" and level == "inter_node" and group == "world":
        link_bytes = setup.ranks_per_node * (size - setup.ranks_per_node) * chunk
    where = f"{setup.num_nodes} x {setup.ranks_per_node} ranks, {group} of {size}"
    return TimedCollective(
        level=level,
        label=f"{series.name} {format_bytes(message)}, {where}",
        rounds=rounds,
        sends=sends,
        at_once=at_once,
        link_bytes=link_bytes,
        send_bytes=chunk,
        nominal_bytes_per_s=_nominal(level, setup, cluster),
        num_nodes=setup.num_nodes,
        samples_s=np.array(series.values, dtype=np.float64),
    )


def _rounds(name: str, size: int) -> tuple[int, int, bool]:
    """Return rounds, sends of a rank, and whether the sends are posted at once."""
    if name == "all_to_all":
        return 1, size - 1, True
    sends = {"all_reduce": 2 * (size - 1), "all_gather": size - 1, "send": 1}[name]
    return sends, sends, False


def _nominal(level: str, setup: Setup, cluster: Cluster | None) -> float | None:
    if level == "inter_node":
        if setup.nic_bytes_per_s is not None:
            return setup.nic_bytes_per_s
        return float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node if cluster else None
    return float(cluster.intra_node.bytes_per_s) if cluster else None


@dataclass(frozen=True, kw_only=True)
class _LinearModel:
    """Costs by column name; `bin_centers` are the send sizes that have a bandwidth of their own, by level."""

    names: tuple[str, ...]
    costs: Floats
    bin_centers: Mapping[str, tuple[float, ...]]

    @classmethod
    def fit(cls, rows: Sequence[TimedCollective], times_s: Sequence[float], *, only_bandwidths: bool) -> "_LinearModel":
        """Choose the columns and solve; fit an efficiency by size only if one number explains the times badly."""
        simple = cls.solve(rows, times_s, {}, only_bandwidths=only_bandwidths)
        error = simple.mean_error(rows, times_s)
        if only_bandwidths or error <= CURVE_MIN_ERROR:
            return simple
        bin_centers = {level: _bin_centers(rows, level) for level in LEVELS}
        finer = cls.solve(rows, times_s, bin_centers, only_bandwidths=only_bandwidths)
        return finer if finer.mean_error(rows, times_s) <= error * (1 - CURVE_MIN_GAIN) else simple

    @classmethod
    def solve(
        cls,
        rows: Sequence[TimedCollective],
        times_s: Sequence[float],
        bin_centers: Mapping[str, tuple[float, ...]],
        *,
        only_bandwidths: bool,
    ) -> "_LinearModel":
        """Solve for the bandwidths and for the other costs that lower the error enough."""
        columns = {name: column for name, column in _columns(rows, bin_centers).items() if column.any()}
        times = np.array(times_s)
        # Bandwidths are always kept: else the number of sends could explain the time of long messages.
        wire = [name for name in columns if " bytes" in name]
        names = tuple(wire) if only_bandwidths else choose_columns(columns, times, wire, MIN_GAIN)
        matrix = np.stack([columns[name] for name in names], axis=1)
        return cls(names=names, costs=non_negative_least_squares(matrix, times), bin_centers=bin_centers)

    def times_s(self, rows: Sequence[TimedCollective], part: str = "") -> Floats:
        """Return the time of each row by the costs with `part` in their name [s]; a cost that was not fitted is 0."""
        columns = _columns(rows, self.bin_centers)
        total = np.zeros(len(rows))
        for name, cost in zip(self.names, self.costs, strict=True):
            if part in name:
                total = total + cost * columns.get(name, np.zeros(len(rows)))
        return total

    def mean_error(self, rows: Sequence[TimedCollective], times_s: Sequence[float]) -> float:
        """Return the mean absolute relative error."""
        return float(np.mean(np.abs(self.times_s(rows) / np.array(times_s) - 1)))

    def values(self) -> dict[str, float]:
        """Return the fitted numbers by key of a calibration; a curve of efficiencies counts as its largest size."""
        costs = dict(zip(self.names, self.costs.tolist(), strict=True))
        found = {key: costs[name] for name, key in _LATENCIES.items() if name in costs}
        for level in LEVELS:
            curve = self.curve(level)
            if curve:
                found[f"{level}.efficiency"] = curve[-1][1]
        at_once = costs.get(f"inter_node bytes {AT_ONCE}", 0.0)
        in_turn = [cost for name, cost in costs.items() if name.startswith("inter_node bytes") and AT_ONCE not in name]
        # Costs are inverse bandwidths: the quotient is the bandwidth of an all-to-all over that of largest ring sends.
        if at_once > 0 and in_turn and in_turn[-1] > 0:
            found["all_to_all_efficiency"] = min(in_turn[-1] / at_once, 1.0)
        return found

    def curve(self, level: str) -> list[tuple[float, float]]:
        """Return efficiencies by ascending send size; bytes per second where the nominal rate is unknown."""
        costs = dict(zip(self.names, self.costs.tolist(), strict=True))
        sizes = self.bin_centers.get(level, ()) or (1.0,)
        found = [(size, costs.get(_bytes_name(level, index), 0.0)) for index, size in enumerate(sizes)]
        return [(size, 1 / cost) for size, cost in found if cost > 0]


def _bytes_name(level: str, index: int) -> str:
    return f"{level} bytes {index}"


def _columns(rows: Sequence[TimedCollective], bin_centers: Mapping[str, tuple[float, ...]]) -> dict[str, Floats]:
    """Return the columns of the design matrix by name of the cost, each with one value a row.

    Bytes are divided by the nominal rate where it is known, so that the cost is the inverse of an efficiency.
    """
    columns: dict[str, list[float]] = {}
    for index, row in enumerate(rows):
        shares_nic = row.at_once and row.level == "inter_node"
        sizes = bin_centers.get(row.level, ())
        # Bins have equal width on a log scale, so the nearest center is nearest on that scale.
        nearest = int(np.argmin([abs(np.log(row.send_bytes / size)) for size in sizes])) if sizes else 0
        # An all-to-all between nodes has a bandwidth of its own: many flows at once share the NIC less well.
        name = f"{row.level} bytes {AT_ONCE}" if shares_nic else _bytes_name(row.level, nearest)
        terms = {
            name: row.link_bytes / (row.nominal_bytes_per_s or 1.0),
            f"{row.level} latency": float(row.rounds),
            "launch": 1.0,
            "message": float(row.sends),
            "poll": float(row.polls),
        }
        for term, value in terms.items():
            columns.setdefault(term, [0.0] * len(rows))[index] = value
    return {name: np.array(columns[name]) for name in sorted(columns)}


def _bin_centers(rows: Sequence[TimedCollective], level: str) -> tuple[float, ...]:
    """Return the geometric centers of the bins of send sizes with enough rows for an efficiency of their own."""
    bins: dict[int, list[float]] = {}
    for row in rows:
        if row.level == level:
            bins.setdefault(int(np.floor(np.log(row.send_bytes) / np.log(BIN_RATIO))), []).append(row.send_bytes)
    return tuple(
        float(np.exp(np.mean(np.log(sizes)))) for _, sizes in sorted(bins.items()) if len(sizes) >= MIN_PER_BIN
    )


def _table(model: _LinearModel, train: Sequence[TimedCollective]) -> dict[str, Any]:
    """Return the fitted part of a calibration in file form."""
    values = model.values()
    table: dict[str, Any] = {
        key: duration_text(values[key]) for key in ("collective_launch", "message_cost", "poll_cost") if values.get(key)
    }
    if "all_to_all_efficiency" in values:
        table["all_to_all_efficiency"] = round(values["all_to_all_efficiency"], 4)
    for level in LEVELS:
        rows = [row for row in train if row.level == level]
        if rows:
            table[level] = _link(model, level, rows, values.get(f"{level}.latency", 0.0))
    return table


def _link(model: _LinearModel, level: str, rows: Sequence[TimedCollective], latency_s: float) -> dict[str, object]:
    curve = model.curve(level)
    rates = {row.nominal_bytes_per_s for row in rows}
    if None in rates and len(rates) > 1:
        raise SimnetError(
            f"{level}: only some of the files name the nominal bandwidth; calibrate the two kinds in two runs"
        )
    if not curve:
        raise SimnetError(
            f"{level}: no bandwidth can be fitted; also measure all_reduce or all_gather of large messages"
        )
    # Without a nominal rate the fastest measured rate stands for it.
    scale = max(value for _, value in curve) if None in rates else 1.0
    # A calibration holds fractions: a rate above the nominal one counts as 1.
    points = [(size, min(value / scale, 1.0)) for size, value in curve]
    nominal = scale if None in rates else rates.pop()
    is_one = None in rates or not rates
    efficiency = (
        [[_size(size), round(value, 4)] for size, value in points] if len(points) > 1 else round(points[0][1], 4)
    )
    return {
        "latency": duration_text(latency_s),
        **({"measured_on": Bandwidth(float(f"{nominal:.4g}")).text()} if is_one else {}),
        "efficiency": efficiency,
        "source": f"{len(rows)} series of collectives",
    }


def _timed_bytes(model: _LinearModel, rows: Sequence[TimedCollective]) -> list[TimedBytes]:
    """Return the rows between nodes, with what the model takes for their bytes and for all else."""
    between = [row for row in rows if row.level == INTER_NODE]
    if not between:
        return []
    times_s, bytes_s = model.times_s(between).tolist(), model.times_s(between, " bytes").tolist()
    return [
        TimedBytes(num_nodes=row.num_nodes, measured_s=row.median_s, bytes_s=of_bytes, rest_s=in_all - of_bytes)
        for row, in_all, of_bytes in zip(between, times_s, bytes_s, strict=True)
    ]


def _residuals(
    model: _LinearModel, rows: Sequence[TimedCollective], role: Role, by_nodes: Mapping[int, float]
) -> list[Comparison]:
    if not rows:
        return []
    factors = nodes_fit.factors_at(by_nodes, [row.num_nodes for row in rows])
    of_bytes = model.times_s(rows, " bytes") * [row.level == INTER_NODE for row in rows]
    times_s = model.times_s(rows) + of_bytes * (1 / factors - 1)
    return [
        Comparison(
            series=f"collectives, {row.level}", label=row.label, measured=row.median_s, predicted=time_s, role=role
        )
        for row, time_s in zip(rows, times_s.tolist(), strict=True)
    ]


def _notes(model: _LinearModel, train: Sequence[TimedCollective]) -> tuple[str, ...]:
    notes = []
    undetermined = [key for name, key in _LATENCIES.items() if name not in model.names and name in _columns(train, {})]
    if undetermined:
        notes.append(f"these collectives do not determine {', '.join(undetermined)}: taken as 0 in the fit")
    unknown_rates = dict.fromkeys(row.level for row in train if row.nominal_bytes_per_s is None)
    return (*notes, *(f"{level}: {NO_NOMINAL}" for level in unknown_rates))


def _shown(name: str, value: float, spread: Interval | None) -> str:
    def text(number: float) -> str:
        if not name.endswith("efficiency"):
            return f"{number * 1e6:.4g} us"
        # Without a nominal rate an efficiency is the rate itself [B/s], far above any fraction.
        return f"{number:.3f}" if number <= 10 else f"{number / 1e9:.4g} GB/s"

    return text_with_interval(value, spread, text)


def _size(num_bytes: float) -> str:
    return Size(round(num_bytes)).text()
