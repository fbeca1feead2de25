"""Buckets as current PyTorch builds them, and as the papers' schemes do."""

import pytest

from simnet.core.units import Size
from simnet.strategies import DenseAllReduce
from simnet.workload import buckets
from simnet.workload.buckets import MERGE_BELOW_ELEMENTS, MIB, LinearCost
from simnet.workload.training_step import Step, Tensor
from tests.helpers.refusals import refused

FREE = LinearCost(start_up_s=0.0, s_per_byte=0.0)


def step(*mebibytes: float, total_bytes: float = 0.0) -> Step:
    tensors = tuple(Tensor(num_elements=size * MIB / 4, backward_fraction=1 / len(mebibytes)) for size in mebibytes)
    return Step(
        tensors=tensors,
        num_elements=sum(t.num_elements for t in tensors) or total_bytes / 4,
        bytes_per_element=4,
        forward_s=1.0,
        backward_s=2.0,
        optimizer_s=0.0,
        samples=1,
    )


def sizes_mib(strategy: DenseAllReduce, of: Step, exchange_cost: LinearCost = FREE) -> list[float]:
    return [bucket.num_elements * 4 / MIB for bucket in buckets.build(strategy, of, exchange_cost)]


SIXTEEN = step(*[4.0] * 16)


@pytest.mark.parametrize(
    ("cap", "expected"),
    [  # measured on PyTorch 2.13.0, 16 layers of 4 MiB, from the second iteration on
        (None, [4, 28, 28, 4]),
        ("25 MiB", [28, 28, 8]),
        ("8 MiB", [8] * 8),
    ],
)
def test_ddp_buckets_are_those_that_pytorch_builds(cap, expected):
    strategy = DenseAllReduce(bucket_cap=Size.parse(cap) if cap else None)
    assert sizes_mib(strategy, SIXTEEN) == pytest.approx(expected)


def test_a_total_without_layers_is_cut_at_the_cap_with_equal_pieces_of_backward():
    built = buckets.build(DenseAllReduce(bucket_cap=Size.parse("25 MB")), step(total_bytes=440e6), FREE)
    assert [bucket.num_elements * 4 for bucket in built] == pytest.approx([25e6] * 17 + [15e6])
    assert [bucket.backward_fraction for bucket in built] == pytest.approx([1 / 18] * 18)


def test_per_tensor_and_fused_are_the_two_ends():
    assert len(sizes_mib(DenseAllReduce(bucketing="per_tensor"), SIXTEEN)) == 16
    assert sizes_mib(DenseAllReduce(bucketing="fused"), SIXTEEN) == [64]
    with refused("needs the model's tensors"):
        buckets.build(DenseAllReduce(bucketing="per_tensor"), step(total_bytes=1e6), FREE)
    with refused("more than 20000 buckets"):
        buckets.build(DenseAllReduce(bucket_cap=Size(1.0)), step(total_bytes=1e9), FREE)


def test_merging_goes_from_none_to_all_as_start_up_grows():
    merged = DenseAllReduce(bucketing="mg_wfbp")
    counts = [len(sizes_mib(merged, SIXTEEN, LinearCost(start_up_s=s, s_per_byte=1e-12))) for s in (0.0, 0.13, 10.0)]
    assert counts[0] == 16
    assert counts[0] > counts[1] >= counts[2] == 1


@pytest.mark.parametrize(
    ("elements", "start_up_s", "num_groups"),
    [  # the second gradient is ready 1 s after the first
        (MERGE_BELOW_ELEMENTS - 1, 0.0, 1),
        (MERGE_BELOW_ELEMENTS, 0.0, 2),
        (MERGE_BELOW_ELEMENTS, 1.0, 2),  # waiting would cost what it saves
        (MERGE_BELOW_ELEMENTS, 1.25, 1),
    ],
)
def test_a_group_waits_while_it_is_small_or_waiting_is_shorter_than_a_start_up(elements, start_up_s, num_groups):
    two = step(*[elements * 4 / MIB] * 2)
    merged = sizes_mib(DenseAllReduce(bucketing="mg_wfbp"), two, LinearCost(start_up_s=start_up_s, s_per_byte=1e-9))
    assert len(merged) == num_groups
