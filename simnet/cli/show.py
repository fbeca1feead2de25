"""`simnet show`: what is shipped, one part or experiment as TOML, or what a recorded step holds."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from simnet.cli import completing, options
from simnet.cli.main import Failure
from simnet.cli.terminal import say
from simnet.cluster.hardware import Calibration
from simnet.core import files
from simnet.core.errors import SimnetError, did_you_mean
from simnet.engine.axes import POINTS
from simnet.engine.scenario import PART_TYPES, check_part, load_experiment
from simnet.strategies import step_file
from simnet.strategies.base import check_calibration

LISTED = (*files.KINDS, completing.STRATEGIES)


@options.command(
    "show",
    help="Print the file NAME (or KIND/NAME, or a path) as TOML, an experiment with its parts filled in; of a recorded "
    "step, what it computes and sends.\n\n"
    "Of a kind, list what is shipped: clusters, workloads, calibrations, experiments, gradients, convergence, gpus or "
    "strategies; without NAME, of all.",
    epilog="\b\nExamples:\n  simnet show clusters\n  simnet show clusters/a100_8x8_10gbit\n"
    "  simnet show --check my_cluster.toml my_experiment.toml",
)
@click.argument("name", required=False, shell_complete=completing.names_of(completing.KINDS, *files.KINDS))
@options.mode("--check", of="show.check", help="Check files instead, without simulating: simnet show --check --help.")
@click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), help="Format of a recorded step.  [default: table]"
)
def command(name: str | None, form: str | None) -> None:
    """Run `simnet show`."""
    if (name is None or name in LISTED) and form is None:
        _list([name] if name else LISTED)
        return
    if name and files.is_path(name) and step_file.holds_step(Path(name)):
        _show_step(Path(name), form or "table")
        return
    if form is not None:
        raise SimnetError(
            f"--format: {form!r}: has no effect on {name or 'a list'!r}, which is no recorded step; drop it"
        )
    assert name is not None
    _show_part(name)


def _list(kinds: Iterable[str]) -> None:
    from simnet.report.table import Page, Table

    for kind in kinds:
        rows = _strategies() if kind == completing.STRATEGIES else _parts(kind)
        say(Page([f"{kind}:", Table(["", ""], rows, indent=2)]))


def _parts(kind: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each part, and its title or its question."""
    for name in files.names(kind):
        part = files.read(kind, name)
        yield name, str(part.get("title") or part.get("question") or part.get("task") or "")


def _strategies() -> Iterator[tuple[str, str]]:
    """Yield the kind of each strategy, and what it does, with its title."""
    from simnet.core.registry import tag_of
    from simnet.strategies import STRATEGIES

    for strategy in STRATEGIES:
        what = " ".join((strategy.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")
        yield tag_of(strategy), what if strategy.title in what else f"{strategy.title}: {what}"


def _show_step(path: Path, form: str) -> None:
    from simnet.report import recorded_step
    from simnet.report.rows import json_text, row_of

    step = step_file.read(path)
    if form == "table":
        say(recorded_step.step_page(step))
    elif form == "csv":
        say(recorded_step.csv_table(step).csv())
    else:
        say(json_text(row_of(recorded_step.FIELDS, step)))


def _show_part(name: str) -> None:
    import tomli_w

    kind, name = _find(name)
    table = _experiment(name) if kind == "experiments" else files.read(kind, name)
    table.pop("curves", None)  # of trainings: thousands of numbers
    say(f"# {files.label(files.locate(kind, name))}\n{_escaped(tomli_w.dumps(_without_null(table)))}")


def _without_null(data: Any) -> Any:
    """Return data without what JSON writes as null, for which TOML has no word."""
    if isinstance(data, dict):
        return {key: _without_null(value) for key, value in data.items() if value is not None}
    return [_without_null(value) for value in data if value is not None] if isinstance(data, list) else data


def _escaped(toml: str) -> str:
    """Return TOML that says the same without a character that steers a terminal."""
    shown = (letter if letter == "\n" or letter.isprintable() else _escape(letter) for letter in toml)
    return toml if toml.replace("\n", "").isprintable() else "".join(shown)


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) <= 0xFFFF else f"\\U{ord(letter):08x}"


def _experiment(name: str) -> dict[str, object]:
    """Return an experiment with its parts filled in, as its file could hold it."""
    experiment = load_experiment(name)
    swept: dict[str, object] = {axis.key: list(axis.values) for axis in experiment.axes}
    if experiment.listed:
        swept[POINTS] = list(experiment.listed.points())
    return {**experiment.resolved, **({"sweep": swept} if swept else {})}


@options.command(
    "check",
    help="Check FILES or shipped names without simulating: experiments (every point of the sweep), clusters, "
    "workloads, calibrations, GPUs, convergence, recorded steps.",
    epilog="\b\nExample:\n  simnet show --check my_cluster.toml my_experiment.toml",
)
@click.argument(
    "names", nargs=-1, metavar="FILES...", required=True, shell_complete=completing.names_of(*PART_TYPES, "experiments")
)
@click.pass_context
def check(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Run `simnet show --check`."""
    failed = False
    for name in names:
        try:
            say(f"{name}: ok: {_checked(name)}")
        except SimnetError as error:
            Failure(str(error)).show()
            failed = True
    ctx.exit(Failure.exit_code if failed else 0)


def _checked(name: str) -> str:
    """Check one file, and say what it is."""
    if files.is_path(name) and step_file.holds_step(Path(name)):
        step_file.read(Path(name))
        return "recorded step"
    kind, name = _find(name)
    if kind in PART_TYPES:
        part = check_part(kind, name)
        if isinstance(part, Calibration):
            check_calibration(part)
        return kind.removesuffix("s")
    if kind == "convergence":
        from simnet.analysis import convergence

        convergence.load(name)
        return kind
    if kind == "gradients":
        raise SimnetError(f"{name}: gradients: checked only with a workload; name a workload that uses them")
    return _checked_experiment(name)


def _checked_experiment(name: str) -> str:
    from simnet.analysis.sweeps import expand
    from simnet.analysis.tune import names_strategy, with_any_strategy
    from simnet.engine import simulation

    experiment = load_experiment(name)
    without = "" if names_strategy(experiment) else ", without a strategy: what simnet advise would use is taken"
    experiment = with_any_strategy(experiment)
    if not experiment.swept_keys:
        simulation.check(experiment.at({}))
        return f"experiment{without}"
    points = expand(experiment)
    for point in points:
        simulation.check(point.scenario)
    return f"experiment, {len(points)} points{without}"


def _find(name: str) -> tuple[str, str]:
    """Return the kind and the name (or path) that NAME, KIND/NAME or a path stands for."""
    kind, _, rest = name.partition("/")
    if kind in files.KINDS and rest in files.names(kind):
        return kind, rest
    if files.is_path(name):
        return _kind_of(files.read("experiments", name)), name
    kinds = [kind for kind in files.KINDS if name in files.names(kind)]
    if len(kinds) > 1:
        raise SimnetError(
            f"{name!r}: several kinds have this name; write one of {', '.join(f'{kind}/{name}' for kind in kinds)}"
        )
    if not kinds:
        known = {*files.KINDS, *(known for kind in files.KINDS for known in files.names(kind))}
        raise SimnetError(f"{name!r}: unknown part.{did_you_mean(name, known)}")
    return kinds[0], name


def _kind_of(data: dict[str, object]) -> str:
    """Return the kind of part whose keys a file has most of, if it is no experiment."""
    if data.keys() & {"cluster", "workload", "scenario", "strategy", "sweep", "points"}:
        return "experiments"
    if data.get("format") == "simnet-convergence":
        return "convergence"
    if "forward_flops_per_sample" in data:
        return "gradients"
    shared = {kind: len(data.keys() & set(part.__struct_encode_fields__)) for kind, part in PART_TYPES.items()}
    return max(shared, key=lambda kind: shared[kind])
