"""Who owns which tensor under ZeRO-1, and which of its forms are tried."""

from hypothesis import given
from hypothesis import strategies as st

from simnet.strategies.zero1 import Zero1, partition
from simnet.workload.training_step import Tensor


def tensors(shapes):
    return tuple(
        Tensor(
            num_elements=float(rows * columns), backward_fraction=0.0, shape=(rows, columns) if columns > 1 else (rows,)
        )
        for rows, columns in shapes
    )


SHAPES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=30)


@given(shapes=SHAPES, world_size=st.integers(1, 9), param_groups=st.sampled_from(["one", "by_dimensions"]))
def test_every_tensor_has_one_owner_and_none_owns_much_more(shapes, world_size, param_groups):
    model = tensors(shapes)
    owned = partition(model, world_size, param_groups)
    assert len(owned) == world_size
    assert sorted(one for of_rank in owned for group in of_rank for one in group) == sorted(
        one.num_elements for one in model
    )
    totals = [sum(map(sum, of_rank)) for of_rank in owned]
    assert max(totals) - min(totals) <= max(one.num_elements for one in model)


def test_the_largest_goes_first_to_the_rank_with_the_fewest_elements():
    model = tensors([(5, 1), (3, 1), (4, 2), (2, 1)])
    assert partition(model, 2, "one") == (((8.0, 2.0),), ((5.0, 3.0),))
    assert partition(model, 2, "by_dimensions") == (((8.0,), (2.0,)), ((), (5.0, 3.0)))


def test_both_ways_to_hand_out_are_tried():
    gathers, broadcasts = Zero1(wire_dtype="bf16", overlap_param_gather=True).topology_variants()
    assert (gathers.form, broadcasts.form) == ("all-gather", "broadcast")
    assert (broadcasts.parameters_as_bucket_view, broadcasts.algorithm, broadcasts.wire_dtype) == (True, "auto", "bf16")
    early = [one.overlap_param_gather for one in gathers.bucketing_variants((None,))]
    assert early == [False, True, False]
    assert broadcasts.topology_variants() == (broadcasts,)
    assert not any(one.overlap_param_gather for one in broadcasts.bucketing_variants((None,)))
