"""Packing round trips, and agrees with numpy."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import packed_numel


@given(st.lists(st.booleans(), max_size=3000))
def test_unpacking_gives_back_what_was_packed(positive: list[bool]) -> None:
    packed = pack_signs(torch.tensor(positive, dtype=torch.bool))
    assert packed.numel() == packed_numel(len(positive))
    assert (unpack_signs(packed, len(positive)) > 0).tolist() == positive


@given(st.lists(st.booleans(), max_size=3000))
def test_packing_is_that_of_numpy(positive: list[bool]) -> None:
    packed = pack_signs(torch.tensor(positive, dtype=torch.bool))
    assert packed.tolist() == np.packbits(np.array(positive, dtype=bool)).tolist()
