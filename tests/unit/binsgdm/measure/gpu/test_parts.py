"""The table of parts."""

import inspect
from importlib import import_module

import pytest

pytest.importorskip("torch")

from binsgdm.measure.gpu.parts import BUDGET_S, PARTS, Part


def test_the_parts_share_out_the_whole_budget() -> None:
    assert sum(part.seconds for part in PARTS) == BUDGET_S
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_is_measured_as_the_worker_asks(part: Part) -> None:
    measure = import_module(part.module).measure
    assert list(inspect.signature(measure).parameters) == ["bench", "quick", "seconds"]
