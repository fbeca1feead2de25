"""Quantities survive being written and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simnet.core.units import Bandwidth, Duration, Quantity, Size

NON_NEGATIVE = st.floats(min_value=0, max_value=1e300, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("kind", [Bandwidth, Size, Duration])
@given(value=NON_NEGATIVE)
def test_text_is_read_back_as_exactly_the_same_number(kind: type[Quantity], value: float) -> None:
    quantity = kind(value)
    assert kind.parse(quantity.text()) == quantity


@pytest.mark.parametrize("kind", [Bandwidth, Size, Duration])
@given(data=st.data())
def test_what_a_user_writes_in_any_unit_survives(kind: type[Quantity], data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(kind.factors)))
    number = data.draw(st.decimals(min_value=0, max_value=9999, places=3))
    quantity = kind.parse(f"{number} {unit}")
    assert kind.parse(quantity.text()) == quantity
    assert quantity == pytest.approx(float(number) * kind.factors[unit], rel=1e-15)


@given(text=st.text(max_size=12))
def test_any_text_is_read_or_refused_with_what_was_given(text: str) -> None:
    try:
        sentence = repr(text) if Size.parse(text) >= 0 else ""
    except ValueError as error:
        sentence = str(error)
    assert repr(text) in sentence
