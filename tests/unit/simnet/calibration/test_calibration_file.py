"""A calibration as it is written."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from simnet.calibration import calibration_file

CHARACTERS = st.characters(exclude_categories=["Cs"])
SCALARS = st.text(CHARACTERS, max_size=8) | st.integers(-(2**60), 2**60) | st.booleans() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(CHARACTERS, max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(CHARACTERS, max_size=5), VALUES, max_size=5), st.text(CHARACTERS, max_size=9))
def test_a_calibration_is_read_back_as_it_was_whatever_names_are_in_its_comment(
    table: dict[str, object], comment: str
) -> None:
    assert tomllib.loads(calibration_file.text(table, [f"Fitted to {comment}"])) == table
