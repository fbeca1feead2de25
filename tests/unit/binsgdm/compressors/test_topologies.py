"""Topologies: the mean where nothing is lost, nothing lost for good where something is, one result on all ranks."""

import pickle

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import given
from hypothesis import strategies as st

from binsgdm.compressors.base import numel_of
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.compressors.topologies import Pieces
from binsgdm.errors import BinsgdmError
from tests.helpers.gradient_buckets import NAMES, NUMEL, SHAPES, bucket, context, means_of, normal

LAYOUTS = [(1, 1), (1, 3), (3, 1), (2, 2), (3, 4)]


WITH_MOMENTUM = [
    ("ef_sign_sgd", {}), ("one_bit_sgd", {}), ("sign_sgd", {}), ("marsit", {"sync_period": 3, "residual_decay": 0.5}),
    ("top_k", {}), ("ms_top_k", {"masks_momentum": False, "clip_norm": 1.0}), ("random_k", {"warmup_steps": 3}),
]  # fmt: skip
FORMS = [
    *((name, topology, {}) for name in SYSTEMS for topology in SYSTEMS[name].topologies),
    *((name, SYSTEMS[name].topologies[0], {"momentum": 0.9, **options}) for name, options in WITH_MOMENTUM),
]


def gradients(world_size, seed=0):
    return list(normal(world_size * NUMEL, seed).view(world_size, NUMEL))


def mean_of(systems, values, layout, step=1, on_sent=None):
    return means_of(systems, values, step, ranks_per_node=layout[1], on_sent=on_sent)


def ends(name, topology, layout, **options):
    nodes, local = layout
    options = dict(SYSTEMS[name].usual_options) | options
    return [
        make(name, rank=rank, world_size=nodes * local, ranks_per_node=local, topology=topology, **options)
        for rank in range(nodes * local)
    ]


@pytest.mark.parametrize("layout", [(2, 2), (3, 1)])
@pytest.mark.parametrize("name", SYSTEMS)
def test_without_a_topology_it_is_what_the_authors_run_on_such_nodes(name, layout):
    """BAGUA's ByteGrad and HiTopKComm average in the node; all others exchange among all ranks."""
    averages_first = name in ("byte_grad", "ms_top_k") and layout[1] > 1
    default = "hierarchical" if averages_first else SYSTEMS[name].topologies[0]
    assert SYSTEMS[name].default_topology(layout[1]) == default
    assert type(ends(name, None, layout)[0]) is type(ends(name, default, layout)[0])
    means = [mean_of(ends(name, one, layout), gradients(layout[0] * layout[1]), layout) for one in (None, default)]
    assert all(map(torch.equal, *means))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "topology", "options"), FORMS, ids=str)
def test_all_ranks_get_the_same_estimate_of_the_mean(name, topology, options, layout):
    systems = ends(name, topology, layout, **options)
    for step in (1, 2):
        values = gradients(len(systems), step)
        before = [value.clone() for value in values]
        means = mean_of(systems, values, layout, step)
        assert all(torch.equal(mean, means[0]) for mean in means)
        assert means[0].shape == (NUMEL,)
        assert means[0].isfinite().all()
        assert all(map(torch.equal, values, before))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("topology", SYSTEMS["top_k"].topologies)
def test_a_compressor_that_loses_nothing_gives_the_mean(topology, layout):
    systems = ends("top_k", topology, layout, ratio=1.0)
    values = gradients(len(systems))
    wanted = torch.stack(values).to(torch.float64).mean(dim=0).to(torch.float32)
    torch.testing.assert_close(mean_of(systems, values, layout)[0], wanted, rtol=0, atol=3e-7)


def test_equal_gradients_of_a_node_change_nothing_by_being_averaged():
    """Two nodes of two equal ranks are two ranks, whose pieces are averaged."""
    first, second = gradients(2)
    mean = mean_of(ends("random_k", "hierarchical", (2, 2), ratio=1.0), [first, first, second, second], (2, 2))[0]
    torch.testing.assert_close(mean, (first + second) / 2, rtol=0, atol=3e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ef_sign_sgd", "one_bit_sgd", "top_k"])
@pytest.mark.parametrize("layout", [(3, 1), (2, 2)])
@pytest.mark.parametrize("topology", ["scatter_reduce", "hierarchical", "hierarchical_scatter_reduce"])
def test_over_many_steps_only_what_residuals_hold_is_not_delivered(name, topology, layout):
    """Over 40 steps the mean of all gradients less what was delivered stays as small as after a few."""
    systems = ends(name, topology, layout)
    missing = torch.zeros(NUMEL, dtype=torch.float64)
    largest = []
    for step in range(1, 41):
        # As much in every step, so that what is lost for good would grow by as much in every step.
        values = [gradient.abs() for gradient in gradients(len(systems), 7)]
        missing += torch.stack(values).to(torch.float64).mean(dim=0)
        missing -= mean_of(systems, values, layout, step)[0]
        largest.append(missing.norm().item())
    if name != "top_k":
        assert max(largest[20:]) < 2.5 * max(largest[:20])
    scatter = systems[0] if topology == "scatter_reduce" else getattr(systems[0], "between", None)
    if topology != "hierarchical":
        assert scatter.owner_residuals["conv"].count_nonzero()


@pytest.mark.parametrize("name", ["ef_sign_sgd", "one_bit_sgd", "top_k"])
def test_what_a_scatter_reduce_misses_is_in_the_residuals_of_both_places(name):
    systems = ends(name, "scatter_reduce", (3, 1))
    missing = torch.zeros(NUMEL, dtype=torch.float64)
    for step in range(1, 6):
        values = gradients(3, step)
        missing += torch.stack(values).to(torch.float64).mean(dim=0) - mean_of(systems, values, (3, 1), step)[0]
    kept = torch.stack([torch.cat([one.residuals[parameter] for parameter in NAMES]) for one in systems]).mean(dim=0)
    owned = [torch.cat([system.owner_residuals[parameter] for parameter in NAMES]) for system in systems]
    kept = kept + Pieces(SHAPES, 3, SYSTEMS[name].cut).join(owned)
    torch.testing.assert_close(missing.to(torch.float32), kept, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "topology", "options"), FORMS, ids=str)
def test_a_state_goes_on_bit_for_bit(name, topology, options):
    layout = (2, 2)
    one, other = ends(name, topology, layout, **options), ends(name, topology, layout, **options)
    for step in (1, 2):
        mean_of(one, gradients(4, step), layout, step)
    for end, again in zip(one, other, strict=True):
        again.load_state_dict(pickle.loads(pickle.dumps(end.state_dict())))
    for step in (3, 4):
        values = gradients(4, step)
        assert torch.equal(mean_of(one, values, layout, step)[0], mean_of(other, values, layout, step)[0])


def test_the_state_of_another_piece_is_not_taken():
    first, second = ends("ef_sign_sgd", "hierarchical", (2, 2))[:2]
    mean_of(ends_ := ends("ef_sign_sgd", "hierarchical", (2, 2)), gradients(4), (2, 2))
    with pytest.warns(UserWarning, match="state starts anew"):
        second.load_state_dict(ends_[0].state_dict())
    first.load_state_dict(ends_[0].state_dict())
    assert len(first.between.residuals) == len(NAMES)
    assert len(second.between.residuals) == 0
    with pytest.raises(BinsgdmError, match="must be"):
        first.load_state_dict({"rank": 0})
    with pytest.raises(BinsgdmError, match="must have 'owner'"):
        ends("ef_sign_sgd", "scatter_reduce", (2, 1))[0].load_state_dict({"rank": 0})


@pytest.mark.parametrize(("name", "topology", "options"), FORMS, ids=str)
def test_a_gradient_that_is_not_finite_is_seen_on_all_ranks_and_leaves_no_trace(name, topology, options):
    layout = (2, 2)
    systems, clean = ends(name, topology, layout, **options), ends(name, topology, layout, **options)
    values = gradients(4, 1)
    for one in (systems, clean):
        mean_of(one, values, layout)
    broken = [gradient.clone() for gradient in gradients(4, 2)]
    broken[1][5] = torch.inf
    means = mean_of(systems, broken, layout, 2)
    assert all(not mean.isfinite().all() for mean in means)
    for one, other in zip(systems, clean, strict=True) if "momentum" in options else ():
        kept, wanted = (end.state_dict()["momenta"]["residuals"] for end in (one, other))
        assert all(torch.equal(kept[parameter], wanted[parameter]) for parameter in wanted)
    if SYSTEMS[name].has_feedback and name not in ("marsit", "power_sgd", "grad_zip"):  # whose factors begin anew
        values = gradients(4, 3)
        assert torch.equal(mean_of(systems, values, layout, 3)[0], mean_of(clean, values, layout, 3)[0])


def test_bf16_travels_inside_the_node_only():
    sent = []
    systems = ends("top_k", "hierarchical", (2, 2), intra_node_dtype="bf16", ratio=1.0)
    values = gradients(4)
    mean = mean_of(systems, values, (2, 2), on_sent=lambda _, message: sent.append(message))[0]
    dtypes = {(message.group, message.sent.dtype) for message in sent}
    assert dtypes == {("intra_node", torch.bfloat16), ("inter_node", torch.uint8)}
    torch.testing.assert_close(mean, torch.stack(values).mean(dim=0), rtol=2e-2, atol=2e-2)


def test_a_context_of_another_layout_is_refused():
    system = ends("qsgd", "hierarchical", (2, 2))[0]
    with pytest.raises(BinsgdmError, match="make one system per rank"):
        next(system.mean(bucket(torch.zeros(NUMEL)), context(0, 4, ranks_per_node=4)))


ANY_SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=4).map(tuple)
CUTS = st.sampled_from(["elements", "rows", "columns"])


@given(ANY_SHAPES, st.integers(1, 9), CUTS)
def test_joined_pieces_are_the_bucket(shapes, count, cut):
    values = torch.arange(float(numel_of(shapes)))
    pieces = Pieces(shapes, count, cut)
    split = pieces.split(values)
    assert [len(piece) for piece in split] == pieces.numels
    assert max(pieces.numels) == pieces.numels[0]
    assert torch.equal(pieces.join(split), values)
    assert torch.equal(pieces.join(list(pieces.padded(values))), values)


@given(ANY_SHAPES, st.integers(1, 9), CUTS)
def test_a_piece_has_the_same_elements_of_a_tensor_in_any_bucket(shapes, count, cut):
    values = torch.arange(float(numel_of(shapes)))
    whole = Pieces(shapes, count, cut)
    tensors = torch.split(values, [numel_of((shape,)) for shape in shapes])
    for position, piece in enumerate(whole.split(values)):
        alone = [
            Pieces((shape,), count, cut).split(tensor)[position] for shape, tensor in zip(shapes, tensors, strict=True)
        ]
        assert torch.equal(piece, torch.cat(alone))


def test_matrices_are_cut_along_rows_or_columns():
    values = torch.arange(12.0)
    assert Pieces(((4, 3),), 2, "rows").split(values)[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert Pieces(((4, 3),), 2, "columns").split(values)[0].tolist() == [0, 1, 3, 4, 6, 7, 9, 10]
    assert Pieces(((4, 3),), 2, "columns").shapes[1] == ((4, 1),)
    assert Pieces(((2, 2, 3),), 3, "rows").shapes[0] == ((4,),)  # fewer rows than pieces
