"""The table of parts."""

import ast
import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")

from binsgdm.measure.gpu import parts
from binsgdm.measure.gpu.parts import BUDGET_S, PARTS, Part


def test_the_parts_share_out_the_whole_budget() -> None:
    assert sum(part.seconds for part in PARTS) == BUDGET_S
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_the_parts_need_torch_numpy_and_click_alone() -> None:
    found = set[str]()
    for path in Path(parts.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name.partition(".")[0] for name in names}
    assert found - sys.stdlib_module_names <= {"binsgdm", "torch", "numpy", "click"}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_is_measured_as_the_worker_asks(part: Part) -> None:
    measure = import_module(part.module).measure
    assert list(inspect.signature(measure).parameters) == ["bench", "quick", "seconds"]
