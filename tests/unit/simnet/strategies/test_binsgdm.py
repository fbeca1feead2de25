"""BinSGDM by rounding: shaped kernels in the place of those that draw, and the same bytes on the wire."""

import pytest
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.cluster.topology import build
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.engine.simulation import simulate
from simnet.strategies import QSGD, BinSGDM, choices
from simnet.strategies.program import Communicate, Kernel
from simnet.workload.buckets import Bucket
from simnet.workload.training_step import Step
from tests.helpers.step_samples import scenario
from tests.helpers.topologies import cluster

STEP = Step(
    tensors=(), num_elements=1.0, bytes_per_element=4, forward_s=1.0, backward_s=1.0, optimizer_s=0.0, samples=1
)
D = 6400.0
NODES, LOCAL = 4, 8
SHAPED = {
    BinSGDM(): [("binsgdm_update", D), ("mean", D, LOCAL), ("shape", D / LOCAL), ("merge_shaped", D / LOCAL, NODES)],
    BinSGDM(intra_node_dtype="one_bit"): [
        ("binsgdm_update_shape", D),
        ("merge_shaped", D, LOCAL),
        ("merge_shaped", D / LOCAL, NODES),
    ],
    BinSGDM(average="gradients"): [
        ("gather_gradients", D),
        ("mean", D, LOCAL),
        ("binsgdm_update_shape", D / LOCAL),
        ("merge_shaped", D / LOCAL, NODES),
    ],
    BinSGDM(topology="flat"): [("binsgdm_update_shape", D), ("merge_shaped", D, NODES * LOCAL)],
}


def operations(strategy):
    bucket = Bucket(index=0, num_elements=D, backward_fraction=1.0)
    return strategy.exchange(bucket, STEP, build(cluster(NODES, LOCAL), Calibration())).operations


def kernels(strategy):
    return [one for one in operations(strategy) if isinstance(one, Kernel)]


@pytest.mark.parametrize("scheme", SHAPED, ids=str)
def test_both_roundings_send_the_same_messages(scheme):
    drawn, shaped = (
        [one for one in operations(replace(scheme, rounding=rounding)) if isinstance(one, Communicate)]
        for rounding in ("random", "shaped")
    )
    assert drawn == shaped


class TestTimes:
    """Times of a calibration from before there were shaped kernels, and of one that has them."""

    STRATEGY = BinSGDM(topology="flat", bucketing="fused", overlap=False, rounding="shaped")

    def encode(self, kernels, num_nodes=2, **keys):
        given = scenario(self.STRATEGY, num_nodes, 1, calibration=Calibration(kernels=kernels, **keys))
        found = simulate(given)
        return found.result.breakdown.encode_s, given.workload.gradient_bytes / 4, found.notes

    @pytest.mark.parametrize("num_nodes", [2, 64])
    def test_a_merge_that_was_timed_has_a_time_of_each_sign_and_one_of_each_result(self, num_nodes):
        timed = {
            "binsgdm_update_shape": KernelTime(s_per_element=Duration(0)),
            "merge_shaped": KernelTime(s_per_element=Duration(1e-11), s_per_result=Duration(8e-10)),
        }
        encode_s, d, notes = self.encode(timed, num_nodes)
        assert encode_s == pytest.approx((1e-11 + 8e-10 / num_nodes) * d)
        assert not any("was not timed" in note for note in notes)

    def test_a_time_of_each_result_of_a_kernel_that_has_none_is_refused(self):
        timed = {"merge": KernelTime(s_per_element=Duration(1e-9), s_per_result=Duration(1e-9))}
        with pytest.raises(SimnetError, match=r"kernels\.merge\.time_per_result: '1 ns': has no effect on this kernel"):
            self.encode(timed)


class TestTrainings:
    def test_a_training_with_another_rounding_or_topology_says_nothing_of_this_one(self):
        drawn, shaped = (BinSGDM(rounding=one) for one in ("random", "shaped"))
        assert choices.train_alike(drawn, replace(drawn, intra_node_dtype="bf16"))
        assert not choices.train_alike(drawn, shaped)
        assert not choices.train_alike(drawn, replace(drawn, intra_node_dtype="one_bit"))
        for other in ({"topology": "flat"}, {"average": "gradients"}):
            assert not choices.train_alike(drawn, replace(drawn, **other))
            assert choices.train_alike(replace(drawn, **other), replace(drawn, **other))
        assert not choices.train_alike(drawn, QSGD())
