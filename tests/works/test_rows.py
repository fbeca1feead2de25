"""What works with binsgdm: every row is shown on two gloo ranks in every way to train, and the page says the same."""

import ast
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from tests.helpers.launch import launch, once
from tests.works import page, ranks
from tests.works.rows import ROWS
from tests.works.table import WAYS

SECONDS = 80
"""Far above what a row takes: a rank that waits for one that refused would take longer."""
SHOWN = [(name, way) for name, row in ROWS.items() for way in WAYS if row.show is not None]


TESTS = {
    node.name
    for path in Path(__file__).parent.glob("test_*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(folder: Path) -> None:
        launch(ranks.work, str(folder), nprocs=ranks.WORLD_SIZE)

    return torch.load(once(tmp_path_factory, "works", make) / "results.pt", weights_only=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), SHOWN, ids=str)
def test_a_cell_of_the_table_is_true(results, name, way):
    cell = ROWS[name].cells[way.column]
    for rank, (kind, said, seconds) in enumerate(results[name, str(way)]):
        assert seconds < SECONDS
        if cell.verdict == "works":
            assert (kind, said) == ("", ""), f"rank {rank}"
        else:
            assert kind == "BinsgdmError", f"rank {rank}: {said or 'nothing was said'}"
            assert cell.note in said, f"rank {rank}"
            assert "\n" not in said


def test_the_page_has_the_table_of_the_rows() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.filled(), "run: python -m tests.works.page"


def test_every_row_is_shown_by_a_function_or_by_a_test_of_its_own() -> None:
    assert [name for name, row in ROWS.items() if (row.show is None) != (row.test in TESTS)] == []
    assert {row.module.rpartition(".")[2] for row in ROWS.values()} <= set(page.PARTS)
