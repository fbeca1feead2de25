"""The command line as a whole: help, unknown commands and options, version, interrupts."""

import re

import pytest

from simnet.cli.main import COMMANDS
from simnet.engine import simulation
from simnet.engine.result import RunResult
from tests.helpers.cli import assert_refused, run


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("validate", "plot")])
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Examples?:\n    simnet {name}", result.stdout)


def test_an_unknown_command_is_refused_with_the_nearest_one() -> None:
    assert_refused(run("simulat"), "'simulat': unknown command. Did you mean 'simulate'?")


def test_a_missing_argument_is_one_line() -> None:
    assert_refused(run("simulate"), "Missing argument 'SCENARIO'. See: simnet simulate --help")


def test_an_unknown_option_is_one_line(file: str) -> None:
    assert_refused(run("simulate", file, "--fromat", "json"), "--format")


@pytest.mark.parametrize("depth", [51, 2_700])
@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--set", "KEY=1"),
        ("sweep", "--set", "KEY=1,2"),
        ("advise", "--set", "cluster.KEY=1"),
        ("crossover", "--over", "KEY", "--from", "1", "--to", "2"),
    ],
    ids=lambda words: words[0],
)
def test_a_key_of_too_many_levels_is_refused(file: str, words: tuple[str, ...], depth: int) -> None:
    key = ".".join("a" * depth)
    result = run(words[0], file, *(word.replace("KEY", key) for word in words[1:]))
    assert_refused(result, "nested deeper than 50 levels; write fewer levels")


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"simnet \d+\.\d+\.\d+( \(commit [0-9a-f]{12}(-dirty)?\))?\n", run("--version").stdout)


def test_an_interrupt_exits_130_with_one_sentence(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> RunResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "simulate", interrupted)
    result = run("simulate", file)
    assert (result.exit_code, result.stderr) == (130, "simnet: interrupted; nothing was written\n")
