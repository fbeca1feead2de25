"""Layouts of saved states: what a state may say of the buckets of its run."""

from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.errors import BinsgdmError
from binsgdm.parallel.ddp_hook import checked_layout


def test_a_layout_of_all_parameters_of_the_model_is_taken() -> None:
    assert checked_layout([[2, 1], (0,)], 3) == ((2, 1), (0,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "3: must be lists of parameters; load what state_dict() returned"),
        ([[0], []], "[[0], []]: must be lists of parameters; load what state_dict() returned"),
        ([[0, 3]], "3: must be a whole number from 0 to 2"),
        ([[-1]], "-1: must be a whole number from 0 to 2"),
        ([[0.0]], "0.0: must be a whole number from 0 to 2"),
        ([[0, 1], [2, 1]], "parameter 1 twice: each is in one bucket; load what state_dict() returned"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused(given: Any, said: str) -> None:
    with pytest.raises(BinsgdmError) as refused:
        checked_layout(given, 3)
    assert str(refused.value).startswith(f"compress_gradients: layout of the state: {said}")
