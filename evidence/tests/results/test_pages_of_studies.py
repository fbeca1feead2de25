"""Every study's part of a page, and its tables, are what its committed results say."""

from importlib import import_module
from typing import Any

import pytest

from docs.regions import filled
from evidence.studies import IN_LAB, STUDIES, TRAININGS
from evidence.studies.page import data_differs
from tests.helpers.needs import needs

WITHOUT_TORCH = ("latency", "what_to_use", "uneven_questions")


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_says_what_the_files_say(name: str) -> None:
    if name not in WITHOUT_TORCH:
        needs("torch", *(("sklearn",) if name in TRAININGS else ()))
    study: Any = import_module(f"evidence.studies.{STUDIES[name]}")
    results = study.RESULTS if name in IN_LAB else study.read()
    text = study.PAGE.read_text(encoding="utf-8")
    regions, tables = (getattr(study, part, lambda _: {})(results) for part in ("regions", "data"))
    assert filled(text, regions) == text
    assert data_differs(tables) == []
    assert regions or tables
