"""What tests of the evidence start from beside the product's `tests.conftest`."""

from pathlib import Path

import pytest

IN_THE_LAB = Path(__file__).parent / "in_the_lab"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need a lab by their folder, before pytest chooses by marks."""
    for item in items:
        if item.path.is_relative_to(IN_THE_LAB):
            item.add_marker(pytest.mark.lab)
