"""Bit order, padding and the meaning of a bit."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import packed_numel


@pytest.mark.parametrize(("numel", "num_bytes"), [(0, 0), (1, 1), (8, 1), (9, 2), (800, 100)])
def test_eight_signs_take_a_byte(numel: int, num_bytes: int) -> None:
    assert packed_numel(numel) == num_bytes
    assert pack_signs(torch.ones(numel, dtype=torch.bool)).numel() == num_bytes


def test_the_first_sign_is_the_most_significant_bit() -> None:
    positive = torch.zeros(16, dtype=torch.bool)
    positive[0] = positive[9] = True
    assert pack_signs(positive).tolist() == [0b1000_0000, 0b0100_0000]


def test_bits_after_the_last_sign_are_zero() -> None:
    assert pack_signs(torch.ones(11, dtype=torch.bool)).tolist() == [0xFF, 0b1110_0000]


def test_a_set_bit_is_plus_one() -> None:
    assert unpack_signs(torch.tensor([0b1010_0000], dtype=torch.uint8), 4).tolist() == [1, -1, 1, -1]
