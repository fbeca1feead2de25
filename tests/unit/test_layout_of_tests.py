"""Tests of a module stand where the module stands; what tests share is no test module."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
# What no single module is: the walls between modules, the tests themselves.
OF_ALL = {"test_imports.py", "test_names.py", "test_doctests.py", "test_layout_of_tests.py"}
MAX_LINES = 400


def modules() -> list[Path]:
    return sorted(path.relative_to(TESTS) for path in TESTS.rglob("*.py"))


def names_in(package: Path) -> set[str]:
    """Return the names of a package and of what is in it, underscores apart."""
    return {package.name, *(path.stem for path in package.iterdir())}


@pytest.mark.parametrize("path", [path for path in modules() if path.parts[0] == "unit"], ids=str)
def test_a_unit_test_is_named_for_a_module_and_stands_in_its_package(path: Path) -> None:
    package = ROOT / Path(*path.parts[1:-1])
    if path.name in OF_ALL or path.name == "conftest.py":
        return
    assert package.is_dir(), f"no package {package.relative_to(ROOT)}"
    words = path.stem.removeprefix("test_").split("_")
    beginnings = {"_".join(words[:end]) for end in range(1, len(words) + 1)}
    assert beginnings & names_in(package), (
        f"{package.relative_to(ROOT)} has no module {path.stem.removeprefix('test_')}"
    )


def test_no_test_module_is_imported_by_another() -> None:
    imported = {
        f"{path}: {node.module}"
        for path in modules()
        if ".test_" in (text := (TESTS / path).read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and ".test_" in f".{node.module}"
    }
    assert imported == set()


def test_helpers_are_no_test_modules() -> None:
    assert [path for path in modules() if path.parts[0] == "helpers" and path.name.startswith("test_")] == []


def test_no_module_is_longer_than_a_reader_keeps_in_mind() -> None:
    long = {str(path): n for path in modules() if (n := len((TESTS / path).read_text().splitlines())) > MAX_LINES}
    assert long == {}
