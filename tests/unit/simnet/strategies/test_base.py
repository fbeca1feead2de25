"""What a strategy does to the mathematics of training."""

import pytest

from simnet.strategies.named import strategy_from_text


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
