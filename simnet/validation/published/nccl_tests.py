"""nccl-tests on Azure in the simulator: all-reduces on 32 GPUs from the logs of 2 to 16, a set a class of sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from simnet.calibration import nccl, nccl_log
from simnet.calibration.nccl_log import LogRow, NcclLog
from simnet.cluster import nccl_costs, topology
from simnet.cluster.hardware import Calibration
from simnet.cluster.nccl_costs import NcclCosts
from simnet.collectives import algorithms, link_loads
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.core.units import Duration, format_seconds
from simnet.engine import intervals
from simnet.validation import published_rows, shipped_parts
from simnet.validation.outcome import Alternative, Limit, Outcome, Parameter, Prediction
from simnet.validation.published_rows import PublishedRow

CLUSTER = CALIBRATION = "azure_nd_a100_v4"
SOURCE = "NetX-lab/Echo nccl-test-log (arXiv 2412.12487)"
RANKS_PER_NODE = 8
CALIBRATION_GPUS, PREDICTED_GPUS, FURTHER_GPUS = (2, 4, 8, 16), 32, (64, 128)
MIB = 1024**2
PLACES = ("", ", in place")


def evaluate(band: str, mean: float) -> Outcome:
    """Calibrate on 2 to 16 GPUs, predict the messages of a band of sizes on 32, with so small a mean error."""
    target = Limit(mean=mean)
    logs = tuple(read_log(gpus) for gpus in CALIBRATION_GPUS)
    calibrated = fit(logs)
    return Outcome(
        title=f"nccl-tests: all-reduces {nccl.BAND_WORDS[band]}",
        unit="ms",
        bound=target,
        target=target,
        parameters=tuple(_parameters(calibrated, logs)),
        predictions=_with_scatter(predict(calibrated, PREDICTED_GPUS, band), calibrated, band),
        tells_of_others=False,
        make_alternatives=lambda: _alternatives(calibrated, band),
    )


def _with_scatter(predictions: Sequence[Prediction], calibrated: Calibration, band: str) -> tuple[Prediction, ...]:
    """Return predictions with the range by which fitted messages of their size scatter about the fit, 90 %.

    No other publication has single messages, so that none says how far the model is off on these.
    """
    fitted = [prediction for gpus in CALIBRATION_GPUS for prediction in predict(calibrated, gpus, band)]
    low, high = intervals.middle_90_percent([prediction.measured / prediction.predicted for prediction in fitted])
    return tuple(replace(prediction, known_range=(min(low, 1.0), max(high, 1.0))) for prediction in predictions)


def read_log(gpus: int) -> NcclLog:
    """Return a shipped log."""
    path = files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")
    try:
        log = nccl_log.read(path)
    except SimnetError as error:
        raise SimnetError(f"{error}: restore the shipped file") from error
    return _varied(log, path.name)


def _varied(log: NcclLog, name: str) -> NcclLog:
    """Return a log with the times that another run might have given, while rows are varied."""

    def varied(row: LogRow) -> LogRow:
        out_of_place, in_place = (
            None if time_us is None else time_us * published_rows.factor(_key(name, row, place))
            for place, time_us in zip(PLACES, row.times_us, strict=True)
        )
        return replace(row, times_us=(out_of_place, in_place))

    return replace(log, name=name, rows=tuple(map(varied, log.rows)))


def _key(name: str, row: LogRow, place: str) -> str:
    return f"{name}{place}:{row.line}"


def fit(logs: Sequence[NcclLog]) -> Calibration:
    """Return the shipped calibration with the costs of NCCL fitted to logs, as `simnet calibrate` does."""
    rates = nccl.nominal_rates(shipped_parts.cluster(CLUSTER, 1))
    costs, _ = nccl.fit_costs(nccl.select(logs), rates)
    in_node, between = costs.intra_node_efficiency, costs.inter_node_efficiency
    fitted = structs.replace(
        costs,
        intra_node_efficiency=None if in_node is None else in_node / rates.intra_bytes_per_s,
        inter_node_efficiency=None if between is None else between / rates.inter_bytes_per_s,
    )
    return structs.replace(shipped_parts.calibration(CALIBRATION), nccl=fitted)


def predict(calibrated: Calibration, gpus: int, band: str, algorithm: str | None = None) -> tuple[Prediction, ...]:
    """Return the simulated all-reduces of these sizes against a log."""
    rows = [row for row in log_rows(gpus) if (size := float(row.batch_per_gpu)) and nccl_costs.band(size) == band]
    cluster = shipped_parts.cluster(CLUSTER, -(-gpus // RANKS_PER_NODE))
    nodes = topology.build(structs.replace(cluster, ranks_per_node=min(gpus, RANKS_PER_NODE)), calibrated)

    def simulated_s(message_bytes: float) -> float:
        return link_loads.duration_s(nodes, algorithms.choose(algorithm, nodes, message_bytes), message_bytes)

    return tuple(
        Prediction(
            series=f"{gpus} GPUs",
            label=f"{row.location}, {gpus} GPUs",
            row=row,
            predicted=simulated_s(float(row.batch_per_gpu)),
            measured=row.value / 1e6,
        )
        for row in rows
    )


def log_rows(gpus: int) -> tuple[PublishedRow, ...]:
    """Return a log as rows, out of place and in place: `value` is the time [us], `batch_per_gpu` the message [B]."""
    log = read_log(gpus)
    return tuple(
        _row(_key(log.name, row, place), gpus, row.message_bytes, place, time_us)
        for row in log.rows
        for place, time_us in zip(PLACES, row.times_us, strict=True)
        if time_us is not None
    )


def _row(key: str, gpus: int, message_bytes: int, place: str, time_us: float) -> PublishedRow:
    size = f"{message_bytes // MIB} MiB" if message_bytes >= MIB else f"{message_bytes / 1024:g} KiB"
    return PublishedRow(
        key=key,
        source=SOURCE,
        location=f"{size}{place}",
        hardware="8 x A100-40GB a node",
        network="8 x 200 Gbit InfiniBand",
        effective_gbps="",
        gpus_per_node=RANKS_PER_NODE,
        gpus=gpus,
        nodes=-(-gpus // RANKS_PER_NODE),
        model="",
        batch_per_gpu=str(message_bytes),
        precision="fp32",
        method="all_reduce",
        metric=f"time, {place.removeprefix(', ') or 'out of place'}",
        unit="us",
        value=time_us,
        read_from="text",
    )


_TEXTS: dict[str, Callable[[float], str]] = {
    "start_s": format_seconds,
    "ll_start_s": format_seconds,
    "ll_hop_s": format_seconds,
    "inter_node_hop_s": format_seconds,
    "ll_inter_node_hop_s": format_seconds,
    "ll_efficiency": "{:.3f}".format,
    "exposed": "{:.3f}".format,
    "intra_node_efficiency": "{:.4f}".format,
    "inter_node_efficiency": "{:.4f}".format,
}


def _parameters(calibrated: Calibration, logs: Sequence[NcclLog]) -> Iterator[Parameter]:
    costs = calibrated.nccl
    assert isinstance(costs, NcclCosts)
    rows = tuple(row for gpus in CALIBRATION_GPUS for row in log_rows(gpus) if row.value)
    used = tuple(row for row in rows if float(row.batch_per_gpu) >= nccl.TINY_BYTES)
    for name in sorted(_TEXTS.keys() & nccl.fit_costs(nccl.select(logs))[1].keys(), key=[*_TEXTS].index):
        value = float(getattr(costs, name))
        yield Parameter(
            part=CALIBRATION,
            key=f"nccl.{name.removesuffix('_s')}",
            value=value,
            text=_TEXTS[name](value),
            how="least squares",
            rows=used,
        )


def _alternatives(calibrated: Calibration, band: str) -> Iterator[Alternative]:
    on = "2, 4, 8 and 16 GPUs"
    for gpus in FURTHER_GPUS:
        yield Alternative(f"{gpus} GPUs", on, predict(calibrated, gpus, band))
    yield Alternative("32 GPUs", "8 and 16 GPUs", predict(fit([read_log(8), read_log(16)]), PREDICTED_GPUS, band))
    assert calibrated.nccl is not None
    table = structs.replace(calibrated, nccl=structs.replace(calibrated.nccl, inter_node_hop_s=Duration(0)))
    yield Alternative("hops between nodes as in NCCL's table", on, predict(table, PREDICTED_GPUS, band))
    yield Alternative("the ring of links in place of NCCL", on, predict(calibrated, PREDICTED_GPUS, band, "ring"))
