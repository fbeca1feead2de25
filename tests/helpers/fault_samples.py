"""Training steps of which one part is all there is, so that a fault has a closed form: all compute, or all messages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from simnet.cluster.hardware import FAULTS, Calibration, Cluster, Fabric, Fault
from simnet.core.schema import build
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce
from simnet.workload.workload import Workload
from tests.helpers.topologies import link

FORWARD_S, BACKWARD_S, OPTIMIZER_S = 0.04, 0.08, 0.005
COMPUTE_S = FORWARD_S + BACKWARD_S + OPTIMIZER_S
NIC_BYTES_PER_S, ALPHA_S = 1.25e9, 1e-5
MESSAGE_BYTES = 100e6
INSTANT = 1e-12
"""Of a second: what takes so long takes no time beside the rest."""


def fault(kind: str, **keys: Any) -> Fault:
    """Return a fault from what a file says of it, checked as a file is."""
    found: Fault = build(FAULTS.find(kind), {"kind": kind, **keys}, "x")
    return found


def cluster(
    *faults: Fault,
    num_nodes: int = 4,
    ranks_per_node: int = 1,
    bytes_per_s: float = NIC_BYTES_PER_S,
    alpha_s: float = ALPHA_S,
    fabric: Fabric | None = None,
    gpu: str = "",
) -> Cluster:
    return Cluster(
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        intra_node=link(1e15, 0.0),
        inter_node=link(bytes_per_s, alpha_s),
        fabric=fabric,
        gpu=gpu,
        faults=faults,
    )


def computing(
    *faults: Fault, iterations: int | None = None, seed: int = 0, optimizer_s: float = OPTIMIZER_S, **shape: Any
) -> StrategyResult:
    """Return steps whose messages take no time: ranks meet before the optimizer."""
    workload = Workload(
        gradient_bytes=Size(4e3),
        forward_s=Duration(FORWARD_S),
        backward_s=Duration(BACKWARD_S),
        optimizer_s=Duration(optimizer_s),
    )
    return _result(cluster(*faults, bytes_per_s=1e15, alpha_s=0.0, **shape), workload, iterations, seed)


def sending(*faults: Fault, iterations: int | None = None, seed: int = 0, **shape: Any) -> StrategyResult:
    """Return steps that are one ring all-reduce of `MESSAGE_BYTES` and nothing else."""
    workload = Workload(
        gradient_bytes=Size(MESSAGE_BYTES),
        forward_s=Duration(INSTANT),
        backward_s=Duration(INSTANT),
        optimizer_s=Duration(0),
    )
    return _result(cluster(*faults, **shape), workload, iterations, seed)


def ring_s(num_nodes: int = 4, bytes_per_s: float = NIC_BYTES_PER_S, alpha_s: float = ALPHA_S) -> float:
    """Return what a ring all-reduce of `MESSAGE_BYTES` takes on nodes of one rank: 2 (n - 1) rounds of a chunk [s]."""
    return 2 * (num_nodes - 1) * (MESSAGE_BYTES / num_nodes / bytes_per_s + alpha_s)


def _result(cluster: Cluster, workload: Workload, iterations: int | None, seed: int) -> StrategyResult:
    strategy = DenseAllReduce(bucketing="fused", overlap=False, algorithm="ring")
    run = RunSettings(iterations=iterations, seed=seed)
    calibration = Calibration(memory_bytes_per_s=Bandwidth(1e18))
    parts: Mapping[str, Any] = {"workload": workload, "strategy": strategy, "run": run, "calibration": calibration}
    return simulate(Scenario(cluster=cluster, **parts)).result


def changed(given: Fault, **keys: Any) -> Fault:
    """Return a fault with other numbers, not checked again."""
    return msgspec.structs.replace(given, **keys)
