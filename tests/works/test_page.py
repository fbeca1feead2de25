"""The page says what the rows say, and every row is shown by a test that exists."""

import ast
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from tests.works import page
from tests.works.rows import ROWS

TESTS = {
    node.name
    for path in Path(__file__).parent.glob("test_*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}


def test_the_page_has_the_table_of_the_rows() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.filled(), "run: python -m tests.works.page"


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_shown_by_a_function_or_by_a_test_of_its_own(name: str) -> None:
    row = ROWS[name]
    assert (row.show is None) == (row.test in TESTS)
    assert row.module.rpartition(".")[2] in page.PARTS
