"""The page of the systems has them all, and the page of what they lose is filled by regions."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from benchmarks import regions
from binsgdm.compressors.registry import SYSTEMS
from docs import systems


@pytest.mark.parametrize("table", [systems.overview, systems.authors_forms, systems.bytes_sent, systems.options])
def test_every_system_has_a_row(table) -> None:
    made = table()
    assert [name for name in (*SYSTEMS, "one_bit_adam") if f"| `{name}` |" not in made] == []


def test_every_system_says_what_differs_from_its_paper() -> None:
    made = systems.differences()
    assert [name for name in (*SYSTEMS, "one_bit_adam", "binsgdm") if f"- **`{name}`** " not in made] == ["dense"]


def test_a_region_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    filled = regions.filled(page, {"x": "new\nlines"})
    assert filled == "a\n<!-- x -->\nnew\nlines\n<!-- end of x -->\nb\n"
    assert regions.region(filled, "x") == "new\nlines"
    with pytest.raises(AssertionError, match="no region 'y'"):
        regions.filled(page, {"y": ""})
