"""`simnet calibrate --variation`: slow ranks, jitter and pauses as faults of a scenario."""

import json
from pathlib import Path

import click

from simnet.cli.output import check_files, emit
from simnet.cli.terminal import say, tell
from simnet.core.errors import SimnetError

_TAKEN = ("variation", "files", "output", "ranks_per_node", "all_rows", "form")


def check_options(ctx: click.Context, *, variation: bool) -> None:
    """Refuse options that have no effect with `--variation`, or without it.

    Raises:
        SimnetError: one was given.
    """
    for param in ctx.command.params:
        is_given = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        if not variation and is_given and param.name == "ranks_per_node":
            raise SimnetError(f"{param.opts[0]}: has no effect without --variation; drop it")
        if variation and is_given and param.name not in _TAKEN:
            raise SimnetError(f"{param.opts[0]}: has no effect with --variation; drop it")


def fit_variation(
    files: tuple[Path, ...], output: Path | None, ranks_per_node: int | None, form: str, *, all_rows: bool
) -> None:
    """Fit the variation in files, print it, and write it as faults.

    Raises:
        SimnetError: the files do not hold the times of every rank of one run.
    """
    from simnet.calibration import variation_file, variation_files, variation_fit
    from simnet.report import rank_table

    samples = variation_files.read(files, ranks_per_node)
    # Last, since no output may replace any file that was read.
    check_files(output=output)
    found = variation_fit.fit(samples)
    text = variation_file.text(found)
    if form == "json":
        say(json.dumps(rank_table.variation_object(found), indent=2))
    else:
        say(rank_table.variation_page(found, "" if output else text, all_rows=all_rows))
    if output is not None:
        emit(text, output)
        tell(f"wrote {output}")
