"""nccl-tests on Azure: large all-reduces on 32 GPUs from those on 16."""

from collections.abc import Sequence

from simnet import files
from simnet.calibrate import nccl_tests
from simnet.collectives import loads, ring
from simnet.errors import SimnetError
from simnet.hardware import Calibration
from simnet.network import topology
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Limit, Outcome, Parameter, Prediction

CLUSTER = "azure_nd_a100_v4"
CALIBRATION = "azure_nd_a100_v4"
SOURCE = "NetX-lab/Echo nccl-test-log (arXiv 2412.12487)"
RANKS_PER_NODE = 8
CALIBRATION_GPUS, PREDICTED_GPUS = 16, 32
LEAST_BYTES = 64 * 1024**2
BOUND = Limit(mean=0.06, worst=0.12)

ABOUT = """\
Raw nccl-tests output of all-reduces of 64 MiB and more on Azure ND A100 v4, 8 GPUs and 8 x 200 Gbit InfiniBand a \
node, out of place. One number is fitted by least squares on the 16-GPU log: the part of the NICs' rate that a flat \
ring reaches. Latencies and the links inside a node are those of the shipped calibration `azure_nd_a100_v4` (8 GPUs \
of one node). The log of 32 GPUs is predicted. No target."""
MISSES = """\
Messages below 64 MiB are left out: there NCCL changes protocol and algorithm by size, which one efficiency between \
nodes cannot follow; no claim is made for them on this network."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:  # noqa: ARG001 - one signature for every set; the logs are its rows
    """Calibrate on 16 GPUs, predict 32."""
    known = log_rows(CALIBRATION_GPUS)
    efficiency = _fit(known)
    calibrated = parts.with_efficiency(parts.calibration(CALIBRATION), "inter_node", efficiency)
    return Outcome(
        name="nccl_tests",
        title="nccl-tests: large all-reduces",
        unit="ms",
        parameters=(
            Parameter(
                part="this set only",
                key="inter_node.efficiency",
                value=efficiency,
                text=f"{efficiency:.4f} ({efficiency * 200:.1f} GB/s a node)",
                how="least squares",
                rows=known,
            ),
        ),
        predictions=tuple(_prediction(row, calibrated) for row in log_rows(PREDICTED_GPUS)),
        target=None,
        bound=BOUND,
        about=ABOUT,
        misses=MISSES,
    )


def log_rows(gpus: int) -> tuple[Row, ...]:
    """Read the large messages of a log; a row's value is its time [us], its batch the message [B].

    Raises:
        SimnetError: the log cannot be read.
    """
    path = files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")
    try:
        rows = nccl_tests.read(path).rows
    except SimnetError as error:
        raise SimnetError(f"{error}: restore the shipped file") from error
    return tuple(
        _row(f"{path.name}:{row.line}", gpus, row.message_bytes, row.times_us[0])
        for row in rows
        if row.message_bytes >= LEAST_BYTES and row.times_us[0] is not None
    )


def _row(key: str, gpus: int, message_bytes: int, time_us: float) -> Row:
    return Row(
        key=key,
        source=SOURCE,
        location=f"{message_bytes // 1024**2} MiB",
        hardware="8 x A100-40GB a node",
        network="8 x 200 Gbit InfiniBand",
        effective_gbps="",
        gpus_per_node=RANKS_PER_NODE,
        gpus=gpus,
        nodes=gpus // RANKS_PER_NODE,
        model="",
        batch_per_gpu=str(message_bytes),
        precision="fp32",
        method="all_reduce",
        metric="time, out of place",
        unit="us",
        value=time_us,
        read_from="text",
    )


def _fit(known: Sequence[Row]) -> float:
    base = parts.calibration(CALIBRATION)
    return parts.fit_efficiency(base, "inter_node", lambda tried: [_prediction(row, tried).error for row in known])


def _prediction(row: Row, calibration: Calibration) -> Prediction:
    nodes = topology.build(parts.cluster(CLUSTER, row.nodes), calibration)
    schedule = ring.all_reduce(nodes.group("world"))
    return Prediction(
        series=f"{row.gpus} GPUs",
        label=f"{row.location}, {row.gpus} GPUs",
        row=row,
        predicted=loads.duration_s(nodes, schedule, float(row.batch_per_gpu)),
        measured=row.value / 1e6,
    )
