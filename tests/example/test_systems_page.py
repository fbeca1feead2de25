"""The tables of docs/evidence/systems.md say what the registry says."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import systems_table
from binsgdm.systems.registry import SYSTEMS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "systems.md"


@pytest.mark.parametrize("name", ["overview", "differences"])
def test_the_page_has_the_table_that_the_registry_gives(name: str) -> None:
    made = {"overview": systems_table.overview, "differences": systems_table.differences}[name]()
    assert systems_table.region(PAGE.read_text(encoding="utf-8"), name) == made, (
        "run python -m benchmarks.quantizers --docs docs/evidence"
    )


def test_every_system_has_a_row() -> None:
    overview = systems_table.overview()
    assert [name for name in SYSTEMS if f"| `{name}` |" not in overview] == []


def test_a_region_is_replaced_and_nothing_else() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    filled = systems_table.filled(page, {"x": "new\nlines"})
    assert filled == "a\n<!-- x -->\nnew\nlines\n<!-- end of x -->\nb\n"
    assert systems_table.region(filled, "x") == "new\nlines"
    with pytest.raises(AssertionError, match="no region 'y'"):
        systems_table.filled(page, {"y": ""})
