"""The file of trainings that docs/reference/convergence.md shows is one that the command takes."""

import re
from pathlib import Path

from simnet.analysis.convergence import load

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "convergence.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_file_that_is_shown_holds_together(tmp_path):
    (text,) = blocks("json")
    path = tmp_path / "trainings.json"
    path.write_text(text)
    assert load(str(path)).rank_counts == (8,)
