"""PyTorch's own DDP benchmark: iteration times on two DGX-1 nodes."""

from simnet.hardware import Calibration, Cluster, Link, LinkCalibration
from simnet.numeric import root
from simnet.scenario import Scenario
from simnet.simulate import simulate
from simnet.strategies import AllReduce
from simnet.units import Bandwidth, Duration
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Alternative, Limit, Outcome, Parameter, Prediction, alternative
from simnet.validate.sets import one_bit_adam, one_bit_table1
from simnet.workload.workload import Workload

SOURCE = "pytorch"
MODELS = {"resnet50": "resnet50", "resnet101": "resnet101", "resnext101_32x8d": "resnext101_32x8d"}
BATCH = 32
BOUND = Limit(mean=0.03, worst=0.05)

ABOUT = """\
p50 of an iteration in the README of PyTorch's DDP benchmark: DGX-1 V100, batch 32, fp32, buckets of 25 MB, NVLink \
inside a node and 4 x 100 Gbit InfiniBand between two. Compute is the 1-GPU row (a third of it forward). One number \
is fitted, on ResNet-50 with 2 GPUs: a factor on compute, for what DDP itself adds to backward (hooks, copies into \
buckets, NCCL kernels on the same GPU). NVLink is taken at the rate of the single-node all-reduce of 1-bit Adam's \
InfiniBand nodes. No target."""
MISSES = """\
On NVLink the simulated all-reduces hide behind backward almost whole, so this set says little about the network: \
what differs from the 1-GPU row is the fitted factor, and that it carries over to two larger models is the finding. \
It grows slightly with the number of GPUs, which the model has no term for."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:
    """Calibrate DDP's overhead on one row, predict the other multi-GPU rows."""
    nvlink = _nvlink_efficiency(rows)
    factor = root(
        lambda f: _predict_s(rows, _calibration_row(rows), nvlink, f) - _calibration_row(rows).value, 1.0, 1.5
    )
    return Outcome(
        name="pytorch_ddp",
        title="PyTorch DDP benchmark",
        unit="ms",
        parameters=(*_compute_parameters(rows), *_parameters(rows, nvlink, factor)),
        predictions=_predictions(rows, nvlink, factor),
        target=None,
        bound=BOUND,
        about=ABOUT,
        misses=MISSES,
        alternatives=_alternatives(rows, nvlink) if alternatives else (),
    )


def _calibration_row(rows: Measurements) -> Row:
    return rows.one(SOURCE, model="resnet50", gpus=2)


def _single(rows: Measurements, model: str) -> Row:
    return rows.one(SOURCE, model=model, gpus=1)


def _nvlink_efficiency(rows: Measurements) -> float:
    network = one_bit_adam.INFINIBAND
    found = one_bit_table1.with_single_node(rows, network, one_bit_table1.bare(network)).intra_node.efficiency
    assert isinstance(found, float)
    return found


def _predict_s(rows: Measurements, row: Row, nvlink: float, factor: float) -> float:
    compute_s = factor * _single(rows, row.model).value
    cluster = Cluster(
        num_nodes=row.nodes,
        ranks_per_node=row.gpus // row.nodes,
        nics_per_node=4,
        intra_node=Link(bytes_per_s=Bandwidth(150e9), alpha_s=Duration(3.4e-6)),
        inter_node=Link(bytes_per_s=Bandwidth(100e9 / 8), alpha_s=Duration(14e-6)),
    )
    workload = Workload(
        gradients=MODELS[row.model],
        forward_s=Duration(compute_s / 3),
        backward_s=Duration(2 * compute_s / 3),
        batch_per_rank=BATCH,
    )
    calibration = Calibration(intra_node=LinkCalibration(efficiency=nvlink))
    return simulate(
        Scenario(cluster=cluster, workload=workload, calibration=calibration, strategy=AllReduce())
    ).result.iteration_s


def _predictions(rows: Measurements, nvlink: float, factor: float) -> tuple[Prediction, ...]:
    wanted = (row for row in rows.select(SOURCE) if row.gpus > 1 and row != _calibration_row(rows))
    return tuple(
        Prediction(
            series=row.model,
            label=f"{row.model}, {row.gpus} GPUs",
            row=row,
            predicted=_predict_s(rows, row, nvlink, factor),
            measured=row.value,
        )
        for row in wanted
    )


def _compute_parameters(rows: Measurements) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            part="workload",
            key=f"forward + backward, {model}",
            value=_single(rows, model).value,
            text=f"{1e3 * _single(rows, model).value:.0f} ms",
            how="1 GPU; a third of it forward",
            rows=(_single(rows, model),),
        )
        for model in MODELS
    )


def _parameters(rows: Measurements, nvlink: float, factor: float) -> tuple[Parameter, Parameter]:
    inner = Parameter(
        part="this set only",
        key="intra_node.efficiency",
        value=nvlink,
        text=f"{nvlink:.4f} ({nvlink * 1200:.0f} Gbit/s)",
        how="meets the row",
        rows=(one_bit_table1.single_node_row(rows, one_bit_adam.INFINIBAND),),
    )
    overhead = Parameter(
        part="this set only",
        key="factor on compute under DDP",
        value=factor,
        text=f"{factor:.4f}",
        how="meets the row",
        rows=(_calibration_row(rows),),
    )
    return inner, overhead


def _alternatives(rows: Measurements, nvlink: float) -> tuple[Alternative, ...]:
    return (alternative("no overhead of DDP", "1-GPU rows only", _predictions(rows, nvlink, 1.0)),)
