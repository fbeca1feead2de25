"""BinSGDM by rounding: shaped kernels in the place of those that draw, and the same bytes on the wire."""

import pytest
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.cluster.topology import build
from simnet.core.units import Duration
from simnet.engine.simulation import simulate
from simnet.strategies import QSGD, BinSGDM
from simnet.strategies.base import train_alike
from simnet.strategies.program import Communicate
from simnet.workload.buckets import Bucket
from simnet.workload.training_step import Step
from tests.helpers.refusals import refused
from tests.helpers.step_samples import scenario
from tests.helpers.topologies import cluster

STEP = Step(
    tensors=(), num_elements=1.0, bytes_per_element=4, forward_s=1.0, backward_s=1.0, optimizer_s=0.0, samples=1
)
SCHEMES = [BinSGDM(), BinSGDM(intra_node_dtype="one_bit"), BinSGDM(average="gradients"), BinSGDM(topology="flat")]


def messages(strategy):
    bucket = Bucket(index=0, num_elements=6400.0, backward_fraction=1.0)
    sent = strategy.exchange(bucket, STEP, build(cluster(4, 8), Calibration())).operations
    return [operation for operation in sent if isinstance(operation, Communicate)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_both_roundings_send_the_same_messages(scheme):
    assert messages(replace(scheme, rounding="random")) == messages(replace(scheme, rounding="shaped"))


@pytest.mark.parametrize("num_nodes", [2, 64])
def test_a_merge_that_was_timed_has_a_time_of_each_sign_and_one_of_each_result(num_nodes):
    strategy = BinSGDM(topology="flat", bucketing="fused", overlap=False, rounding="shaped")
    timed = {
        "binsgdm_update_shape": KernelTime(s_per_element=Duration(0)),
        "merge_shaped": KernelTime(s_per_element=Duration(1e-11), s_per_result=Duration(8e-10)),
    }
    asked = scenario(strategy, num_nodes, 1, calibration=Calibration(kernels=timed))
    run = simulate(asked)
    expected_s = (1e-11 + 8e-10 / num_nodes) * asked.workload.gradient_bytes / 4
    assert run.result.breakdown.encode_s == pytest.approx(expected_s)
    assert not any("was not timed" in note for note in run.notes)
    wrong = {"merge": KernelTime(s_per_element=Duration(1e-9), s_per_result=Duration(1e-9))}
    with refused("kernels.merge.time_per_result: '1 ns': has no effect on this kernel"):
        simulate(scenario(strategy, num_nodes, 1, calibration=Calibration(kernels=wrong)))


def test_a_training_with_another_rounding_or_topology_says_nothing_of_this_one():
    drawn, shaped = (BinSGDM(rounding=rounding) for rounding in ("random", "shaped"))
    assert train_alike(drawn, replace(drawn, intra_node_dtype="bf16"))
    assert not train_alike(drawn, shaped)
    assert not train_alike(drawn, replace(drawn, intra_node_dtype="one_bit"))
    for other in ({"topology": "flat"}, {"average": "gradients"}):
        assert not train_alike(drawn, replace(drawn, **other))
        assert train_alike(replace(drawn, **other), replace(drawn, **other))
    assert not train_alike(drawn, QSGD())
