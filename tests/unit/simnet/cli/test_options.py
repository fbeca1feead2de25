"""Options that are declared on the public function: types, bounds, defaults and help come from there."""

import inspect
from collections.abc import Callable
from typing import Any

import click
import pytest

from simnet.api import measurements, questions
from simnet.cli import advise, calibrate, options, simulate, sweep, time_to_target, validate
from simnet.core.arguments import Files, Names

SHARED = {"scenario", "settings", "draws", "jobs", "progress", "executor"}
"""Arguments that are declared once for all commands, or have no option."""
PAIRS: list[tuple[Callable[..., Any], click.Command, set[str]]] = [
    (questions.simulate, simulate.command, SHARED),
    (questions.crossover, sweep.crossover, SHARED),
    (questions.advise, advise.command, SHARED),
    (questions.time_to_target, time_to_target.command, SHARED | {"at"}),  # "rates", and RATES as its text
    # `workload` names a file in the command; intervals are asked for with --draws.
    (measurements.calibrate, calibrate.command, SHARED | {"bootstrap_draws"}),
    (measurements.validate, validate.command, SHARED | {"sets", "measurements"}),
]


@pytest.mark.parametrize(("function", "command", "apart"), PAIRS, ids=lambda one: getattr(one, "__name__", ""))
def test_every_argument_is_an_option_of_the_command(
    function: Callable[..., Any], command: click.Command, apart: set[str]
) -> None:
    given = set(inspect.signature(function).parameters) - apart
    assert given <= {param.name for param in command.params}


def a_question(
    *,
    is_loud: bool = False,
    count: "int | None" = None,
    names: Names = (),
    files: Files = (),
    share: float = 0.5,
) -> None:
    """Ask.

    Args:
        is_loud: whether to shout.
        count: how many, beside `share`; by default all.
        names: of things to
            ask for.
        files: to read.
        share: of them.

    Raises:
        SimnetError: nothing.
    """
    raise NotImplementedError((is_loud, count, names, files, share))


def test_types_defaults_and_help_are_those_of_the_function() -> None:
    looks: dict[str, dict[str, Any]] = {"is_loud": {}, "names": {"name": "name"}, "files": {}, "share": {}}
    made = options.command("ask")(options.of(a_question, "files", **looks)(lambda **_: None))
    loud, names, files, share = made.params
    assert isinstance(loud, click.Option)
    assert (loud.opts, loud.is_flag, loud.help) == (["--is-loud"], True, "Whether to shout.")
    assert isinstance(names, click.Option)
    assert (names.opts, names.multiple, names.help) == (["--name"], True, "Of things to ask for; repeatable.")
    assert isinstance(files, options.Rare)
    assert (share.default, share.type.name) == (0.5, "float")
