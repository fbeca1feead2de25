"""Examples in docstrings: each prints what it shows."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.helpers.needs import needs

ROOT = Path(__file__).parents[2]
MODULES = [
    path.relative_to(ROOT).with_suffix("")
    for package in ("simnet", "binsgdm")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.parametrize("path", MODULES, ids=str)
def test_the_examples_of_a_module_print_what_they_show(path: Path) -> None:
    if path.parts[0] == "binsgdm":
        needs("torch")
    module = importlib.import_module(".".join(path.parts).removesuffix(".__init__"))
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert outcome.attempted
    assert not outcome.failed
