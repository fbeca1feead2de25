"""Settings on the command line: values, axes, and what is no setting."""

from collections.abc import Sequence

import pytest

from simnet.cli.options import read_settings, read_value, read_values
from tests.helpers.refusals import refused


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5", 1.5),
        ("true", True),
        ('"16"', "16"),
        ("{use = 'a', num_nodes = 2}", {"use": "a", "num_nodes": 2}),
        ("2024-01-01", "2024-01-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_value_is_toml_where_it_can_be(text: str, value: object) -> None:
    assert read_value(text) == value


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1, 2,4", (1, 2, 4)),
        ("10 Gbit/s,25 Gbit/s", ("10 Gbit/s", "25 Gbit/s")),
        ("[1, [2]],[3]", ([1, [2]], [3])),
        ('"a,b",c', ("a,b", "c")),
        ("{use = 'a', n = {b = 1}},c", ({"use": "a", "n": {"b": 1}}, "c")),
    ],
)
def test_commas_part_values_outside_quotes_and_brackets(text: str, values: Sequence[object]) -> None:
    assert read_values(text) == values


@pytest.mark.parametrize("text", ["", "a", "=1", "a..b=1", "a=", ".a=1"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with refused(f"--set: '{text}': write KEY=VALUE, such as"):
        read_settings([text])
