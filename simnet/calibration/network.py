"""Fit links, and the CPU time of sends, to measured collectives.

    time = launch + rounds x latency + sends x message cost + (sends posted at once)^2 x poll cost + bytes / bandwidth

All are non-negative costs of one linear fit. The counts of rounds, sends and bytes are those of the simulator's
schedules; a test compares the two. Where the bandwidth between nodes changes with their number, each number that was
measured has a factor on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from simnet.calibration import nccl
from simnet.calibration.comparison import Comparison, Role
from simnet.calibration.fit import (
    Fit,
    FittedPart,
    Floats,
    Interval,
    Linear,
    Samples,
    compared,
    duration_text,
    rate_text,
    text_with_interval,
    widen,
)
from simnet.calibration.measurement_file import MeasurementFile, Series, Setup
from simnet.calibration.nccl_log import NcclLog
from simnet.cluster.hardware import GLOO_WINDOW, Cluster
from simnet.core.errors import SimnetError
from simnet.core.units import Size, format_bytes

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
FACTOR_BOUNDS = (1e-3, 1e3)
"""Of a factor on the bandwidth between some number of nodes."""
AT_ONCE = "at once"
HOST_COSTS = ("launch", "round", "message", "time_per_byte")
_NO_NOMINAL = (
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
        rounds: sends of a rank that wait for one another.
        sends: messages that a rank posts.
        at_once: whether a rank posts all its messages together.
        link_bytes: bytes through the busiest link, of all concurrent groups together.
        send_bytes: bytes of one message.
        nominal_bytes_per_s: rate of the link; None if unknown.
        num_nodes: nodes on which the collective ran.
        is_gloo: whether gloo carried it.
    """

    level: str
    rounds: int
    sends: int
    at_once: bool
    link_bytes: float
    send_bytes: float
    nominal_bytes_per_s: float | None
    num_nodes: int
    is_gloo: bool = False

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


def select_sends(logs: Sequence[NcclLog], cluster: Cluster | None) -> list[TimedCollective]:
    """Return the sends between two GPUs of a node in logs of nccl-tests, each message a row."""
    return [
        TimedCollective(
            level=INTRA_NODE,
            label=f"send {format_bytes(size)}, {log.layout_text}",
            rounds=1,
            sends=1,
            at_once=False,
            link_bytes=size,
            send_bytes=size,
            nominal_bytes_per_s=float(cluster.intra_node.bytes_per_s) if cluster else None,
            num_nodes=1,
            samples_s=np.array([time_s]),
        )
        for log in logs
        for size, time_s in log.times()
    ]


def _timed_collective(series: Series, setup: Setup, cluster: Cluster | None) -> TimedCollective:
    group, size, message = str(series.labels["group"]), series.count("group_size"), series.number("message_bytes")
    # Ranks of several nodes are as fast as what joins the nodes.
    level = INTRA_NODE if group == INTRA_NODE or setup.num_nodes == 1 else INTER_NODE
    # Rounds and sends of a rank; an all-to-all posts all its sends at once.
    sends = {"all_reduce": 2 * (size - 1), "send": 1}.get(series.name, size - 1)
    at_once = series.name == "all_to_all"
    # Groups that are at work at one time, one for each local rank, share the NIC of a node.
    num_groups = series.count("num_groups") if level == INTER_NODE and group == INTER_NODE else 1
    chunk = message if series.name == "send" else message / size
    link_bytes = sends * chunk * num_groups
    # All ranks of a node share its NIC, and bytes between ranks of one node do not cross it.
    if at_once and level == INTER_NODE and group == "world":
        link_bytes = setup.ranks_per_node * (size - setup.ranks_per_node) * chunk
    nominal = float(cluster.intra_node.bytes_per_s) if cluster else None
    if level == INTER_NODE:
        of_cluster = float(cluster.inter_node.bytes_per_s) * cluster.nics_per_node if cluster else None
        nominal = setup.nic_bytes_per_s if setup.nic_bytes_per_s is not None else of_cluster
    where = f"{setup.num_nodes} x {setup.ranks_per_node} ranks, {group} of {size}"
    return TimedCollective(
        level=level,
        label=f"{series.name} {format_bytes(message)}, {where}",
        rounds=1 if at_once else sends,
        sends=sends,
        at_once=at_once,
        link_bytes=link_bytes,
        send_bytes=chunk,
        nominal_bytes_per_s=nominal,
        num_nodes=setup.num_nodes,
        is_gloo=setup.backend == "gloo",
        samples_s=np.array(series.values, dtype=np.float64),
    )


def fit_collectives(
    train: Sequence[TimedCollective], held_out: Sequence[TimedCollective], draws: int, *, only_bandwidths: bool = False
) -> FittedPart:
    """Fit collectives, with intervals and residuals.

    Args:
        train: collectives to fit.
        held_out: collectives to predict.
        draws: bootstrap resamples.
        only_bandwidths: leave all costs but bandwidths at 0, since `fit_host` fits them in place.

    Raises:
        SimnetError: too few series, or a nominal bandwidth that only some series of a link have.
    """
    if len(train) < MIN_SERIES:
        raise SimnetError(f"{len(train)} collectives: at least {MIN_SERIES} sizes or groups are needed; measure more")
    links = _fit_links(train, only_bandwidths=only_bandwidths)
    point = links.values

    def solve(resample: Fit[TimedCollective]) -> Mapping[str, float]:
        values = _LinkModel(links.model.bins).solved(resample, only_bandwidths=only_bandwidths).values
        if any(name.endswith("efficiency") and name not in values for name in point):
            raise SimnetError("these rows do not determine every bandwidth")
        # A cost that the resample does without counts as 0: that it may be absent belongs to its interval.
        return dict.fromkeys(point, 0.0) | values

    spread = links.fit.intervals(point, draws, solve)
    # Nodes that share a machine have no fabric between them: `fit_host` sees what their number changes.
    by_nodes = {} if only_bandwidths else _factors_by_nodes(links, [row for row in train if row.level == INTER_NODE])
    residuals = _residuals(links, train, "fitted", by_nodes)
    for level in LEVELS:
        name, rows = f"{level}.efficiency", [row for row in residuals if row.series.endswith(level)]
        if name in spread:
            spread[name] = widen(spread[name], rows)
    return FittedPart(
        table=_table(links, train, by_nodes, spread.get(f"{INTER_NODE}.efficiency")),
        shown={name: _shown(name, value, spread.get(name)) for name, value in point.items()},
        intervals={key: spread[key] for key in point if key in spread and point[key] > 0},
        residuals=(*residuals, *_residuals(links, held_out, "held out", by_nodes)),
        notes=(*_notes(links, train), *(() if only_bandwidths else _notes_of_nodes(train, by_nodes))),
    )


@dataclass(frozen=True)
class _LinkModel(Linear[TimedCollective]):
    """Costs of collectives; `bins` are the sizes of sends that have a bandwidth of their own, by level [B]."""

    bins: Mapping[str, tuple[float, ...]]

    def columns(self, rows: Sequence[TimedCollective]) -> dict[str, Floats]:
        """Return what multiplies each cost. Bytes are divided by the nominal rate where it is known: an efficiency."""
        columns: dict[str, list[float]] = {}
        for index, row in enumerate(rows):
            sizes = self.bins.get(row.level, ())
            # Bins have equal width on a log scale, so the nearest center is nearest on that scale.
            nearest = int(np.argmin([abs(np.log(row.send_bytes / size)) for size in sizes])) if sizes else 0
            # An all-to-all between nodes has a bandwidth of its own: many flows at once share the NIC less well.
            which = AT_ONCE if row.at_once and row.level == INTER_NODE else nearest
            terms = {
                f"{row.level} bytes {which}": row.link_bytes / (row.nominal_bytes_per_s or 1.0),
                f"{row.level} latency": float(row.rounds),
                "launch": 1.0,
                "message": float(row.sends),
                "poll": float(row.polls),
            }
            for term, value in terms.items():
                columns.setdefault(term, [0.0] * len(rows))[index] = value
        return {name: np.array(columns[name]) for name in sorted(columns)}

    def solved(self, fit: Fit[TimedCollective], *, only_bandwidths: bool) -> "_Links":
        """Solve for the bandwidths and for the other costs that lower the error enough."""
        # Bandwidths are always kept: else the number of sends could explain the time of long messages.
        wire = [name for name, column in self.columns(fit.rows).items() if " bytes" in name and column.any()]
        fit = replace(fit, model=self, free=dict.fromkeys(wire, 0.0))
        return _Links(self, fit, (fit if only_bandwidths else fit.chosen(wire, MIN_GAIN)).solve())


class _Links(NamedTuple):
    """A fit of `_LinkModel`, and its costs by column."""

    model: _LinkModel
    fit: Fit[TimedCollective]
    costs: Mapping[str, float]

    def of_bytes_s(self, rows: Sequence[TimedCollective]) -> Floats:
        """Return the part of the time of each row that its bytes take [s]."""
        return self.model({name: cost for name, cost in self.costs.items() if " bytes" in name}, rows)

    @property
    def values(self) -> dict[str, float]:
        """The fitted numbers by key of a calibration; a curve of efficiencies counts as its largest size."""
        values = {key: self.costs[name] for name, key in _LATENCIES.items() if name in self.costs}
        for level in LEVELS:
            if curve := self.curve(level):
                values[f"{level}.efficiency"] = curve[-1][1]
        at_once = self.costs.get(f"{INTER_NODE} bytes {AT_ONCE}", 0.0)
        in_turn = [cost for name, cost in self.costs.items() if f"{INTER_NODE} bytes" in name and AT_ONCE not in name]
        # Costs are inverse bandwidths: the quotient is the bandwidth of an all-to-all over that of largest ring sends.
        if at_once > 0 and in_turn and in_turn[-1] > 0:
            values["all_to_all_efficiency"] = min(in_turn[-1] / at_once, 1.0)
        return values

    def curve(self, level: str) -> list[tuple[float, float]]:
        """Return efficiencies by ascending send size; bytes per second where the nominal rate is unknown."""
        sizes = self.model.bins.get(level, ()) or (1.0,)
        points = [(size, self.costs.get(f"{level} bytes {index}", 0.0)) for index, size in enumerate(sizes)]
        return [(size, 1 / cost) for size, cost in points if cost > 0]


def _fit_links(rows: Sequence[TimedCollective], *, only_bandwidths: bool) -> _Links:
    """Choose the costs and solve; fit an efficiency by size only if one number explains the times badly."""
    simple = _LinkModel({})
    fit = Fit(rows=rows, times=[row.median_s for row in rows], model=simple, free={})
    links = simple.solved(fit, only_bandwidths=only_bandwidths)
    error = links.fit.mean_error(links.costs)
    if only_bandwidths or error <= CURVE_MIN_ERROR:
        return links
    # More numbers always fit better, so that a curve has to lower the error by much.
    finer = _LinkModel({level: _bins(rows, level) for level in LEVELS}).solved(fit, only_bandwidths=False)
    return finer if finer.fit.mean_error(finer.costs) <= error * (1 - CURVE_MIN_GAIN) else links


def _bins(rows: Sequence[TimedCollective], level: str) -> tuple[float, ...]:
    """Return the geometric centers of the bins of send sizes with enough rows for an efficiency of their own."""
    bins: dict[int, list[float]] = {}
    for row in rows:
        if row.level == level:
            bins.setdefault(int(np.floor(np.log(row.send_bytes) / np.log(BIN_RATIO))), []).append(row.send_bytes)
    return tuple(
        float(np.exp(np.mean(np.log(sizes)))) for _, sizes in sorted(bins.items()) if len(sizes) >= MIN_PER_BIN
    )


def _factors_by_nodes(links: _Links, rows: Sequence[TimedCollective]) -> dict[int, float]:
    """Return a factor on the bandwidth by number of nodes, 1 where one number was measured."""
    numbers = sorted({row.num_nodes for row in rows})
    if len(numbers) < 2:
        return dict.fromkeys(numbers, 1.0)
    return {nodes: _factor(links, [row for row in rows if row.num_nodes == nodes], nodes) for nodes in numbers}


def _factor(links: _Links, rows: Sequence[TimedCollective], nodes: int) -> float:
    in_all_s, of_bytes_s = links.model(links.costs, rows), links.of_bytes_s(rows)

    # Latencies stay those of all numbers of nodes: rows of one number seldom tell both apart.
    def times_s(values: Mapping[str, float], _: Sequence[TimedCollective]) -> Floats:
        return in_all_s - of_bytes_s + of_bytes_s / values["factor"]

    fit = Fit(
        rows=rows, times=[row.median_s for row in rows], model=times_s, free={"factor": 1.0},
        bounds={"factor": FACTOR_BOUNDS},
    )  # fmt: skip
    try:
        return fit.zero_mean_log()
    except SimnetError as error:
        raise SimnetError(
            f"collectives on {nodes} nodes: no bandwidth explains them with the latencies of the other numbers of "
            "nodes; measure larger messages, or calibrate this number of nodes in a run of its own"
        ) from error


def _factors_at(factors: Mapping[int, float], num_nodes: Sequence[int]) -> Floats:
    """Return the factors at some numbers of nodes, as a calibration interpolates them; 1 without any."""
    if not factors:
        return np.ones(len(num_nodes))
    known = sorted(factors)
    return np.exp(np.interp(np.log(num_nodes), np.log(known), np.log([factors[nodes] for nodes in known])))


def _table(
    links: _Links, train: Sequence[TimedCollective], by_nodes: Mapping[int, float], interval: Interval | None
) -> dict[str, Any]:
    """Return the fitted part of a calibration in file form; the interval is that of the NICs' efficiency."""
    values = links.values
    table: dict[str, Any] = {
        key: duration_text(values[key]) for key in ("collective_launch", "message_cost", "poll_cost") if values.get(key)
    }
    if "all_to_all_efficiency" in values:
        table["all_to_all_efficiency"] = round(values["all_to_all_efficiency"], 4)
    for level in LEVELS:
        rows = [row for row in train if row.level == level]
        if rows:
            table[level] = _link(links.curve(level), level, rows, values.get(f"{level}.latency", 0.0))
    if by_nodes:
        intervals = {"intervals": {"efficiency": list(interval)}} if interval else {}
        efficiency = table[INTER_NODE]["efficiency"]
        table["by_nodes"] = [
            {"nodes": nodes, "efficiency": _scaled(efficiency, factor), **intervals}
            for nodes, factor in by_nodes.items()
        ]
    return table


def _link(
    curve: Sequence[tuple[float, float]], level: str, rows: Sequence[TimedCollective], latency_s: float
) -> dict[str, object]:
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
    nominal = max(filter(None, rates), default=scale)
    # A fitted latency holds already what gloo's window costs where it was measured.
    has_window = level == INTER_NODE and not latency_s and all(row.is_gloo for row in rows)
    return {
        "latency": duration_text(latency_s),
        **({"window": GLOO_WINDOW.text()} if has_window else {}),
        **({"measured_on": rate_text(nominal)} if len(rates) == 1 else {}),
        "efficiency": [[Size(round(size)).text(), round(value, 4)] for size, value in points]
        if len(points) > 1
        else round(points[0][1], 4),
        "source": f"{len(rows)} series of collectives",
    }


def _scaled(efficiency: object, factor: float) -> object:
    if isinstance(efficiency, list):
        return [[size, _scaled(value, factor)] for size, value in efficiency]
    assert isinstance(efficiency, float | int)
    # A calibration holds fractions: a rate above the nominal one counts as 1.
    return min(round(efficiency * factor, 4), 1.0)


def _residuals(
    links: _Links, rows: Sequence[TimedCollective], role: Role, by_nodes: Mapping[int, float]
) -> list[Comparison]:
    if not rows:
        return []
    of_bytes_s = links.of_bytes_s(rows) * [row.level == INTER_NODE for row in rows]
    factors = _factors_at(by_nodes, [row.num_nodes for row in rows])
    # The costs were solved as if all numbers of nodes were alike: a factor acts on bytes between nodes alone.
    times_s = links.model(links.costs, rows) + of_bytes_s * (1 / factors - 1)
    return [
        Comparison(
            series=f"collectives, {row.level}", label=row.label, measured=row.median_s, predicted=time_s, role=role
        )
        for row, time_s in zip(rows, times_s.tolist(), strict=True)
    ]


def _notes(links: _Links, train: Sequence[TimedCollective]) -> tuple[str, ...]:
    notes = []
    present = links.model.columns(train)
    undetermined = [key for name, key in _LATENCIES.items() if name not in links.costs and name in present]
    if undetermined:
        notes.append(f"these collectives do not determine {', '.join(undetermined)}: taken as 0 in the fit")
    unknown_rates = dict.fromkeys(row.level for row in train if row.nominal_bytes_per_s is None)
    return (*notes, *(f"{level}: {_NO_NOMINAL}" for level in unknown_rates))


def _notes_of_nodes(train: Sequence[TimedCollective], by_nodes: Mapping[int, float]) -> list[str]:
    """Return on how few numbers of nodes the bandwidth between them rests, and where fewer nodes have less of it."""
    numbers = sorted({row.num_nodes for row in train})
    notes = [nccl.few_numbers_note(numbers)] if by_nodes and len(numbers) < nccl.MIN_NUMBERS else []
    return notes + [
        f"{few} nodes reach {by_nodes[few] / by_nodes[more]:.3g} of the bandwidth of {more}: fewer nodes are slower, "
        "so that one of the files is not of a quiet network; measure it again"
        for few, more in pairwise(sorted(by_nodes))
        if by_nodes[few] < nccl.SLOWER * by_nodes[more]
    ]


def _shown(name: str, value: float, spread: Interval | None) -> str:
    def text(number: float) -> str:
        if not name.endswith("efficiency"):
            return f"{number * 1e6:.4g} us"
        # Without a nominal rate an efficiency is the rate itself [B/s], far above any fraction.
        return f"{number:.3f}" if number <= 10 else f"{number / 1e9:.4g} GB/s"

    return text_with_interval(value, spread, text)


class _HostModel(Linear[TimedCollective]):
    """The CPU time of collectives whose network is no limit."""

    def columns(self, rows: Sequence[TimedCollective]) -> dict[str, Floats]:
        """Return what multiplies each of `HOST_COSTS`."""
        table = np.array([[1, row.rounds, row.sends, row.sends * row.send_bytes] for row in rows], dtype=np.float64)
        return dict(zip(HOST_COSTS, table.T, strict=True))


def fit_host(rows: Sequence[TimedCollective], draws: int) -> FittedPart:
    """Fit the CPU time of a collective, a round, a send and a byte to collectives whose network is no limit.

    They are measured in place, with as many ranks on a machine as in training: ranks that share cores wait for each
    other's turns. Inside a node gloo sends over the loopback device: there is no wire, so the link is written as free.
    """
    if len(rows) < MIN_SERIES:
        raise SimnetError(f"--in-place: {len(rows)} collectives: at least {MIN_SERIES} are needed; measure more sizes")
    fit = Fit(rows=rows, times=[row.median_s for row in rows], model=_HostModel(), free=dict.fromkeys(HOST_COSTS, 0.0))
    point = fit.solve()
    spread = fit.intervals(point, draws)
    residuals = compared("collectives, CPU time in place", rows, _HostModel()(point, rows))
    table = {name: duration_text(value) for name, value in point.items() if value > 0}
    return FittedPart(
        table={
            "host": {**table, "source": f"{len(rows)} series of collectives in place"},
            INTRA_NODE: {"latency": "0 s", "efficiency": 1.0, "source": "CPU time; no wire inside a node"},
        },
        shown={f"host.{name}": _host_text(name, value, spread.get(name)) for name, value in point.items()},
        intervals={f"host.{name}": widen(factors, residuals) for name, factors in spread.items()},
        residuals=residuals,
        # The scheduler decides when a rank runs: such times scatter far more than a wire, and intervals say so.
        is_checked=False,
    )


def _host_text(name: str, value: float, spread: Interval | None) -> str:
    scale, unit = (1e9, "ns a byte") if name == "time_per_byte" else (1e6, "us")
    text = f"{value * scale:.4g} {unit}"
    low, high = (value * factor * scale for factor in spread or (1.0, 1.0))
    return text if spread is None else f"{text} (90 %: {low:.4g} to {high:.4g})"
