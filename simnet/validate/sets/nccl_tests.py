"""nccl-tests on Azure: large all-reduces on 32 GPUs from those on 16."""

from simnet import files
from simnet.calibrate import nccl_log
from simnet.collectives import loads, ring
from simnet.errors import SimnetError
from simnet.hardware import Calibration
from simnet.network import topology
from simnet.validate import shipped
from simnet.validate.outcome import Limit, Outcome
from simnet.validate.published_rows import PublishedRow
from simnet.validate.study import Fit, Study

ORDER = 13
CLUSTER = CALIBRATION = "azure_nd_a100_v4"
SOURCE = "NetX-lab/Echo nccl-test-log (arXiv 2412.12487)"
RANKS_PER_NODE = 8
CALIBRATION_GPUS, PREDICTED_GPUS = 16, 32
NODE_GBYTES_PER_S = 200
"""Nominal rate of a node: 8 NICs of 200 Gbit/s."""
MIN_BYTES = 64 * 1024**2
"""For smaller messages NCCL changes protocol and algorithm by size, which one efficiency cannot follow."""


def evaluate() -> Outcome:
    """Calibrate on 16 GPUs, predict 32."""
    fit = Fit(
        key="inter_node.efficiency",
        how="least squares",
        rows=log_rows(CALIBRATION_GPUS),
        text=lambda part: f"{part:.4f} ({part * NODE_GBYTES_PER_S:.1f} GB/s a node)",
    )
    study = Study(
        initial=shipped.calibration(CALIBRATION),
        fits=(fit,),
        predict=_ring_s,
        measured=lambda row: row.value / 1e6,
        series=lambda row: f"{row.gpus} GPUs",
        label=lambda row: f"{row.location}, {row.gpus} GPUs",
        held_out=log_rows(PREDICTED_GPUS),
    )
    return Outcome(
        title="nccl-tests: large all-reduces",
        unit="ms",
        bound=Limit(mean=0.06, worst=0.12),
        parameters=study.parameters,
        predictions=study.predictions,
    )


def log_rows(gpus: int) -> tuple[PublishedRow, ...]:
    """Return the large messages of a log as rows: `value` is the time [us], `batch_per_gpu` the message [B].

    Raises:
        SimnetError: the log cannot be read.
    """
    path = files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")
    try:
        rows = nccl_log.read(path).rows
    except SimnetError as error:
        raise SimnetError(f"{error}: restore the shipped file") from error
    return tuple(
        _row(f"{path.name}:{row.line}", gpus, row.message_bytes, row.times_us[0])
        for row in rows
        if row.message_bytes >= MIN_BYTES and row.times_us[0] is not None
    )


def _row(key: str, gpus: int, message_bytes: int, time_us: float) -> PublishedRow:
    return PublishedRow(
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


def _ring_s(calibration: Calibration, row: PublishedRow) -> float:
    nodes = topology.build(shipped.cluster(CLUSTER, row.nodes), calibration)
    return loads.duration_s(nodes, ring.all_reduce(nodes.group("world")), float(row.batch_per_gpu))
