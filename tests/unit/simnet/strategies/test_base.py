"""What a strategy does to the mathematics of training, and a strategy from a word of text."""

import pytest

from simnet.core.errors import SimnetError
from simnet.strategies import QSGD, DenseAllReduce, PowerSGD
from simnet.strategies.base import strategy_from_text


@pytest.mark.parametrize(
    ("text", "mathematics"),
    [
        ("all_reduce", "same"),
        ("all_reduce:wire_dtype=bf16", "rounding"),
        ("byte_grad", "rounding"),
        ("int8", "rounding"),
        ("fp8", "rounding"),
        ("binsgdm", "compression"),
        ("power_sgd", "compression"),
    ],
)
def test_what_a_strategy_does_to_the_mathematics(text, mathematics):
    assert strategy_from_text(text, "strategy").mathematics == mathematics


def test_a_kind_has_its_defaults_its_options_or_is_ones_own():
    own = QSGD(bits=8)
    assert strategy_from_text("qsgd", "here") == QSGD()
    assert strategy_from_text("qsgd", "here", (None, DenseAllReduce(), own)) is own
    assert strategy_from_text("qsgd:bits=2,overlap=false", "here", (own,)) == QSGD(bits=2, overlap=False)
    assert strategy_from_text("power_sgd:matrix_rank=2", "here") == PowerSGD(matrix_rank=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qsdg", "here: 'qsdg': unknown strategy. Did you mean 'qsgd'?"),
        ("qsgd:bits", "here: 'bits': write options as key=value"),
        ("qsgd:bits=77", "here: bits: 77: must be"),
        ("qsgd:bit=4", "here: unknown key 'bit'. Did you mean 'bits'?"),
    ],
)
def test_what_is_no_strategy_is_refused(text, said):
    with pytest.raises(SimnetError) as caught:
        strategy_from_text(text, "here")
    assert str(caught.value).startswith(said)
