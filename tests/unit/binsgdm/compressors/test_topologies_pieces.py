"""Pieces of a bucket: together they are the bucket, and each is the same tensors whatever the bucket."""

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import given
from hypothesis import strategies as st

from binsgdm.compressors.base import numel_of
from binsgdm.compressors.topologies import Pieces

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=4).map(tuple)
CUTS = st.sampled_from(["elements", "rows", "columns"])


@given(SHAPES, st.integers(1, 9), CUTS)
def test_joined_pieces_are_the_bucket(shapes, count, cut):
    values = torch.arange(float(numel_of(shapes)))
    pieces = Pieces(shapes, count, cut)
    split = pieces.split(values)
    assert [len(piece) for piece in split] == pieces.numels
    assert max(pieces.numels) == pieces.numels[0]
    assert torch.equal(pieces.join(split), values)
    assert torch.equal(pieces.join(list(pieces.padded(values))), values)


@given(SHAPES, st.integers(1, 9), CUTS)
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
