"""The page of the systems has them all, and the page of what they lose is filled by regions."""

import re

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.compressors.registry import SYSTEMS
from docs import regions, systems


def test_the_list_has_every_system_and_what_differs_from_its_paper() -> None:
    items = systems.every().splitlines()
    names = [*SYSTEMS, "binsgdm", "one_bit_adam"]
    assert [re.match(r"- \*\*`(\w+)`\*\* ", item)[1] for item in items] == names
    assert [name for name, item in zip(names, items, strict=True) if "Differs: " not in item] == ["dense"]
    assert [name for name, item in zip(names, items, strict=True) if "so by default" in item] == [
        "byte_grad",
        "ms_top_k",
        "binsgdm",
    ]


def test_a_region_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    filled = regions.filled(page, {"x": "new\nlines"})
    assert filled == "a\n<!-- x -->\nnew\nlines\n<!-- end of x -->\nb\n"
    assert regions.region(filled, "x") == "new\nlines"
    with pytest.raises(AssertionError, match="no region 'y'"):
        regions.filled(page, {"y": ""})
