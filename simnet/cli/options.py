"""The options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from simnet.cli import completing


class _Output(click.Path):
    """A path to write to; empty text is refused, since `pathlib` would take it for the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("'': is empty; name a file or a directory.", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within bounds; "nan" is within any bounds for click, and no comparison with it holds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        found = super().convert(value, param, ctx)
        if found != found:  # noqa: PLR0124 - only nan differs from itself
            self.fail(f"{value!r} is no number.", param, ctx)
        return found


Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)

INPUT_PATH = click.Path(path_type=Path)
OUTPUT_PATH = _Output(path_type=Path)

SCENARIO = click.argument("scenario", shell_complete=completing.names_of("experiments"))
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completing.keys,
    help="Replace a value, such as cluster.num_nodes=16; repeatable.",
)
OUTPUT = click.option("-o", "--output", type=OUTPUT_PATH, help="Write to this file instead of the terminal.")
DRAWS = click.option(
    "--draws",
    type=click.IntRange(0, 10_000),
    help="Draws from the intervals of calibration and workload, for 90 % intervals of the results; 0 for none, else at "
    "least 20.  [default: 50]",
)
STYLE = click.option(
    "--style",
    default="screen",
    show_default=True,
    metavar="[screen|paper|slides|dark]",
    help="Look of the figures: for pages, for a paper's columns of 3.3 and 7 inches, for slides, for dark slides.",
)
JOBS = click.option(
    "--jobs", type=click.IntRange(1, 1024), help="Largest number of processes.  [default: one per core]"
)
BOOTSTRAP_DRAWS = click.option(
    "--draws", type=click.IntRange(20, 10_000), default=200, show_default=True, help="Bootstrap fits for the intervals."
)
MEAN = click.option("--mean", type=Number(0), help="Largest mean error [%]; above it, the exit code is 1.")
WORST = click.option("--worst", type=Number(0), help="Largest error of one point [%]; above it, the exit code is 1.")


def form(*names: str, of: str = "the output") -> Callable[[Command], Command]:
    """Return the option `--format` with these choices, the first of them as default."""
    return click.option(
        "--format", "form", type=click.Choice(names), default=names[0], show_default=True, help=f"Format of {of}."
    )


def plot(what: str) -> Callable[[Command], Command]:
    """Return the option `--plot`, which draws something to a file."""
    return click.option("--plot", type=OUTPUT_PATH, help=f"Draw {what} to this .png, .pdf or .svg file.")


def directory(what: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return the option `-o` of a command that writes several files."""
    return click.option("-o", "--output", type=OUTPUT_PATH, required=required, help=what)
