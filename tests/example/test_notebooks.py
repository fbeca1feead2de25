"""The notebooks run, and show what they say they show."""

from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("nbclient", "nbformat")
import nbformat

needs("ipykernel")

from docs import notebooks


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("path", notebooks.paths(), ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_shows_now(path: Path) -> None:
    answers = notebooks.run(path)
    assert list(notebooks.shown(answers)) == list(notebooks.shown(nbformat.read(path, as_version=4)))
    figures = [kind for _, kind, _ in notebooks.shown(answers) if kind == "image/png"]
    plots = [cell for cell in answers.cells if cell.cell_type == "code" and ".plot()" in cell.source]
    assert len(figures) == len(plots) >= 1
