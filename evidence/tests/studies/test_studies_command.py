"""`python -m evidence.studies`: what is done, and the tables of the pages."""

import runpy
import sys

import pytest

from tests.helpers.needs import needs

needs("torch", "sklearn")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs `python -m evidence.studies` in this process, and returns what it prints."""

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["studies", *words])
        runpy.run_module("evidence.studies", run_name="__main__")
        return capsys.readouterr().out

    return run


def test_the_status_says_what_is_done_of_each_task(run) -> None:
    names = [line.split(":")[0].strip() for line in run("status").splitlines()]
    assert names == [
        *("margins", "characters_300", "characters_1000", "characters_2000", "digits", "mnist", "gpt"),
        *("systems", "characters", "mnist_5k", "digits"),
        *("local_steps", "characters", "mnist_5k", "digits"),
    ]
