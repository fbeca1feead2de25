"""Training steps to be simulated: one model, two calibrations, every kind of strategy."""

from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.scenario import Scenario
from simnet.strategies import BinSGDM, DenseAllReduce, OneBitAdam
from simnet.workload.workload import Workload
from tests.helpers.topologies import cluster

WORKLOAD = Workload(
    gradient_bytes=Size(440e6),
    forward_s=Duration(0.04),
    backward_s=Duration(0.08),
    optimizer_s=Duration(0.005),
    batch_per_rank=32,
)
CAP = Size(25e6)
COSTLY = Calibration(
    memory_bytes_per_s=Bandwidth(1.5e12),
    kernel_launch_s=Duration(10e-6),
    collective_launch_s=Duration(20e-6),
    message_s=Duration(1e-6),
    backward_slowdown=1.2,
)
STRATEGIES = [
    DenseAllReduce(bucket_cap=CAP),
    DenseAllReduce(bucket_cap=CAP, algorithm="hierarchical", wire_dtype="bf16"),
    DenseAllReduce(bucketing="fused", overlap=False),
    BinSGDM(),
    BinSGDM(topology="flat", overlap=False),
    BinSGDM(intra_node_dtype="one_bit"),
    BinSGDM(intra_node_dtype="fp16"),
    BinSGDM(average="gradients"),
    OneBitAdam(),
    OneBitAdam(topology="hierarchical", finite_check=False),
]


def scenario(strategy=STRATEGIES[0], num_nodes=8, ranks_per_node=8, **more) -> Scenario:
    cluster_keys = {key: more.pop(key) for key in ("fabric", "slow_nodes") if key in more}
    parts = {"workload": WORKLOAD, "cluster": cluster(num_nodes, ranks_per_node, **cluster_keys)}
    return Scenario(strategy=strategy, **{**parts, **more})
