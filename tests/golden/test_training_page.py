"""BinSGDM against Adam in training: the page says what the files say."""

import inspect

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")

import binsgdm
from benchmarks.regions import filled
from studies import margins, rounding
from studies.margins import DEFAULT_SETTINGS, MarginStudy
from studies.page import data_differs
from studies.rounding import RoundingStudy


@pytest.fixture(scope="module")
def study() -> MarginStudy:
    return MarginStudy()


def test_the_page_says_what_the_files_say(study: MarginStudy) -> None:
    text = margins.PAGE.read_text(encoding="utf-8")
    assert filled(text, margins.regions(study)) == text
    assert data_differs(margins.data(study)) == []


def test_the_page_of_single_changes_says_what_its_file_says() -> None:
    study, text = RoundingStudy(), rounding.PAGE.read_text(encoding="utf-8")
    assert filled(text, rounding.regions(study)) == text
    assert data_differs(rounding.data(study)) == []


def test_what_was_run_as_defaults_are_the_defaults() -> None:
    signature = inspect.signature(binsgdm.BinSGDM).parameters
    settings = {name: value for name, value in DEFAULT_SETTINGS.items() if name != "optimizer"}
    assert settings == {name: signature[name].default for name in settings}
    assert {*settings, "lr", "weight_decay", "maximize", "seed", "kernels"} == {*signature} - {"params"}
