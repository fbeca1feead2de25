"""A model's parts: its blocks by names or by size, and the rest."""

import math

import pytest

from simnet.core.units import Size
from simnet.workload.blocks import block_of, parts_of
from simnet.workload.training_step import Tensor
from tests.helpers.refusals import refused


def tensor(name: str, *shape: int, fraction: float = 0.0) -> Tensor:
    return Tensor(num_elements=float(math.prod(shape)), backward_fraction=fraction, shape=shape, name=name)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("layers.23.attention.wq.weight", "layers.23"),
        ("bert.encoder.layer.11.attention.self.query.weight", "bert.encoder.layer.11"),
        ("encoder.layers.encoder_layer_3.ln_1.weight", "encoder.layers.encoder_layer_3"),
        ("layer1.0.conv1.weight", "layer1.0"),
        ("conv1.weight", ""),
        ("output.weight", ""),
        ("7", ""),
        ("", ""),
    ],
)
def test_a_block_has_a_number_in_its_name(name, block):
    assert block_of(name) == block


def test_the_root_is_what_no_block_has_and_may_be_in_several_places():
    tensors = (
        tensor("head.weight", 8, 4, fraction=0.1),
        tensor("blocks.1.b", 3, fraction=0.2),
        tensor("blocks.1.a", 3, 2, fraction=0.3),
        tensor("between.weight", 4, fraction=0.05),
        tensor("blocks.0.a", 3, 2, fraction=0.25),
        tensor("first.weight", 8, 4, fraction=0.1),
    )
    model = parts_of(tensors, None, 4)
    assert [part.name for part in model.parts] == ["", "blocks.1", "blocks.0"]
    assert model.root == 0
    assert [segment.part for segment in model.segments] == [0, 1, 0, 2, 0]
    assert [segment.fraction for segment in model.segments] == pytest.approx([0.1, 0.5, 0.05, 0.25, 0.1])


def test_every_tensor_is_cut_in_whole_rows_of_its_own():
    (_, block) = parts_of((tensor("a.w", 5), tensor("b.0.w", 33, 33), tensor("b.0.b", 33)), None, 4).parts
    assert block.padded_elements(1) == 33 * 34
    assert block.padded_elements(4) == 36 * 34
    assert block.padded_elements(64) == 64 * 34


def test_parts_of_a_size_need_no_names():
    tensors = tuple(tensor("", 10, fraction=0.25) for _ in range(4))
    model = parts_of(tensors, Size(70), 4)
    assert [len(part.tensors) for part in model.parts] == [2, 2]
    assert model.root is None


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ((), "needs the shapes"),
        ((tensor("a.0.w", 4, fraction=0.5), Tensor(num_elements=4.0, backward_fraction=0.5)), "needs the shapes"),
        ((tensor("weight", 4, fraction=1.0),), "no name has the number of a block"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(tensors, sentence):
    with refused(sentence):
        parts_of(tensors, None, 4)
