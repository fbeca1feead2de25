"""Plain data as TOML."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from simnet.toml_text import to_toml

CHARACTERS = st.characters(exclude_categories=["Cs"])
SCALARS = st.text(CHARACTERS, max_size=8) | st.integers(-(2**60), 2**60) | st.booleans() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(CHARACTERS, max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(CHARACTERS, max_size=5), VALUES, max_size=5))
def test_a_table_is_read_back_as_it_was(table: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(table)) == table


def test_a_long_list_has_a_line_for_each_item() -> None:
    text = to_toml({"rows": [{"name": "tensor", "count": number} for number in range(9)]})
    assert text.count("\n") == 11
    assert tomllib.loads(text)["rows"][8] == {"name": "tensor", "count": 8}
