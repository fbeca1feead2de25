"""Elias's omega code against a scalar reference, bit for bit."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import given
from hypothesis import strategies as st

from binsgdm.compressors import elias
from binsgdm.errors import BinsgdmError


def omega_text(number: int) -> str:
    text = "0"
    while number > 1:
        binary = f"{number:b}"
        text, number = binary + text, len(binary) - 1
    return text


def block_text(levels: list[int]) -> str:
    text, last = "", -1
    for place, level in enumerate(levels):
        if level:
            text += omega_text(place - last) + ("1" if level > 0 else "0") + omega_text(abs(level))
            last = place
    return text


@given(st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=30))
def test_the_code_of_any_number_is_the_reference(numbers: list[int]) -> None:
    words, lengths = elias.omega(torch.tensor(numbers))
    found = [f"{word:0{length}b}" for word, length in zip(words.tolist(), lengths.tolist(), strict=True)]
    assert found == [omega_text(number) for number in numbers]


sparse_or_dense = st.one_of(st.just(0), st.integers(-1, 1), st.integers(-127, 127))


@given(st.integers(1, 4), st.integers(1, 40), st.data())
def test_blocks_are_the_reference_bit_for_bit_and_come_back(num_blocks: int, size: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.lists(sparse_or_dense, min_size=size, max_size=size), min_size=num_blocks, max_size=4))
    levels = torch.tensor(rows, dtype=torch.int16)
    block_bits, packed = elias.encode(levels)
    texts = [block_text(row) for row in rows]
    assert block_bits.tolist() == [len(text) for text in texts]
    whole = "".join(texts)
    assert "".join(f"{byte:08b}" for byte in packed.tolist()) == whole.ljust(-(-len(whole) // 8) * 8, "0")
    assert torch.equal(elias.decode(block_bits, packed, block_size=size, max_level=127), levels)


def test_bits_of_other_blocks_are_refused() -> None:
    block_bits, packed = elias.encode(torch.tensor([[0, 0, 5], [0, 1, 0]], dtype=torch.int16))
    with pytest.raises(BinsgdmError, match="must fill them"):
        elias.decode(block_bits, packed[:-1], block_size=3, max_level=7)
    for wrong in ({"block_size": 2, "max_level": 7}, {"block_size": 3, "max_level": 4}):
        with pytest.raises(BinsgdmError, match="must be what encode gave"):
            elias.decode(block_bits, packed, **wrong)
    with pytest.raises(BinsgdmError, match="must be what encode gave"):
        elias.decode(block_bits.flip(0), packed, block_size=3, max_level=7)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40))
def test_random_bytes_decode_to_levels_or_are_refused(numbers: list[int]) -> None:
    packed, block_bits = torch.tensor(numbers, dtype=torch.uint8), torch.tensor([8 * len(numbers)], dtype=torch.int32)
    try:
        levels = elias.decode(block_bits, packed, block_size=64, max_level=127)
    except BinsgdmError:
        return
    assert torch.equal(elias.encode(levels)[1], packed)
