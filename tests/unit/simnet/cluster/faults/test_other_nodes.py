"""Nodes of two generations: the older GPUs and the slower NICs are what the others wait for."""

from typing import Any

import pytest

from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce
from simnet.workload.workload import ComputeTime, Workload
from tests.helpers.fault_samples import COMPUTE_S, NIC_BYTES_PER_S, cluster, computing, fault, ring_s, sending
from tests.helpers.refusals import refused

NEW_S, OLD_S = 0.1, 0.25
GPU_WORKLOAD = Workload(
    gradient_bytes=Size(4e3),
    compute=tuple(
        ComputeTime(
            gpu=gpu, precision="fp32", batch=8, step_s=Duration(step_s), optimizer="adam", includes_optimizer=False,
            source="x",
        )
        for gpu, step_s in (("New", NEW_S), ("Old", OLD_S))
    ),
    batch_per_rank=8,
)  # fmt: skip

TIMED = Workload(gradient_bytes=Size(4e3), forward_s=Duration(0.1), backward_s=Duration(0.2))


def trained(*faults: Any, gpu: str = "New", workload: Workload = GPU_WORKLOAD) -> StrategyResult:
    """Return steps of GPUs by name, whose messages and optimizer take no time."""
    shape = cluster(*faults, bytes_per_s=1e15, alpha_s=0.0, gpu=gpu)
    calibration = Calibration(memory_bytes_per_s=Bandwidth(1e18))
    strategy = DenseAllReduce(bucketing="fused", overlap=False)
    return simulate(Scenario(cluster=shape, workload=workload, strategy=strategy, calibration=calibration)).result


@pytest.mark.parametrize(
    ("at_nodes", "factor", "longer"),
    [([1, 3], 0.5, 1.0), ([1, 3], 1.0, 1.0), ([1, 3], 2.5, 2.5), ([0, 1, 2, 3], 0.5, 0.5)],
)
def test_a_step_takes_as_long_as_on_the_slowest_kind(at_nodes: list[int], factor: float, longer: float) -> None:
    result = computing(fault("other_nodes", at_nodes=at_nodes, compute_slowdown=factor))
    assert result.iteration_s == pytest.approx(longer * COMPUTE_S)


def test_the_name_of_a_gpu_stands_for_how_much_longer_it_takes() -> None:
    assert trained().iteration_s == pytest.approx(NEW_S)
    assert trained(fault("other_nodes", at_nodes=[2], gpu="Old")).iteration_s == pytest.approx(OLD_S)
    assert trained(fault("other_nodes", at_nodes=[2], gpu="New"), gpu="Old").iteration_s == pytest.approx(OLD_S)


@pytest.mark.parametrize(
    ("nics", "rate"), [({"nic": "5 Gbit/s"}, 0.5), ({"nic_slowdown": 2.0}, 0.5), ({"nic": "100 Gbit/s"}, 1.0)]
)
def test_a_ring_runs_at_the_slower_nics(nics: dict[str, Any], rate: float) -> None:
    assert NIC_BYTES_PER_S == 10e9 / 8
    result = sending(fault("other_nodes", at_nodes=[0], **nics))
    assert result.iteration_s == pytest.approx(ring_s(bytes_per_s=rate * NIC_BYTES_PER_S))


def test_gpu_and_nic_of_one_node_may_be_said_by_two_faults() -> None:
    both = (
        fault("other_nodes", at_nodes=[1], compute_slowdown=2.0),
        fault("other_nodes", at_nodes=[1], nic_slowdown=3.0),
    )
    assert computing(*both).iteration_s == pytest.approx(2 * COMPUTE_S)
    assert sending(*both).iteration_s == pytest.approx(ring_s(bytes_per_s=NIC_BYTES_PER_S / 3))


@pytest.mark.parametrize(
    ("kind", "other", "what"),
    [({"compute_slowdown": 2.0}, {"gpu": "Old"}, "compute"), ({"nic_slowdown": 2.0}, {"nic": "1 Gbit/s"}, "NICs")],
)
def test_a_node_is_of_one_other_kind(kind: dict[str, Any], other: dict[str, Any], what: str) -> None:
    faults = fault("other_nodes", at_nodes=[0, 2], **kind), fault("other_nodes", at_nodes=[1, 2], **other)
    with pytest.raises(ValueError, match=f"faults: two of kind 'other_nodes' on the {what} of node 2: name each node"):
        cluster(*faults)


@pytest.mark.parametrize(
    ("gpu", "workload", "said"),
    [
        ("Odd", GPU_WORKLOAD, "'Odd'"),
        ("New", GPU_WORKLOAD, "gpu: 'New': is that of all nodes; give another, or drop it"),
        ("Old", TIMED, "gpu: 'Old': takes as long as 'New', since the workload gives its times"),
    ],
)
def test_a_gpu_that_cannot_change_anything_is_refused(gpu: str, workload: Workload, said: str) -> None:
    with refused(said):
        trained(fault("other_nodes", at_nodes=[1], gpu=gpu), workload=workload)
