"""The page on results as data names every key that there is."""

import re
from pathlib import Path

from simnet.engine.result import PointResult, StrategyResult, SweepResult

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "files.md").read_text(encoding="utf-8")


def test_every_key_is_told() -> None:
    told = set(re.findall(r"`(\w+)`|\"(\w+)\"", PAGE))
    words = {word for pair in told for word in pair if word}
    structs = (PointResult, StrategyResult, SweepResult)
    assert {key for struct in structs for key in struct.__struct_fields__} - words == set()
