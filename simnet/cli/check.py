"""`simnet check`: files without simulating."""

from pathlib import Path

import click

from simnet.analysis import convergence
from simnet.cli import completing
from simnet.cli.main import Failure
from simnet.cli.part_kinds import find
from simnet.cli.terminal import say
from simnet.cluster.hardware import Calibration
from simnet.core.errors import SimnetError
from simnet.core.files import is_path
from simnet.engine.raw_scenario import PART_TYPES, check_part
from simnet.engine.scenario import load_experiment
from simnet.strategies import step_file
from simnet.strategies.base import check_calibration


@click.command(
    "check",
    help="Check FILES or shipped names without simulating: experiments (every point of the sweep), clusters, "
    "workloads, calibrations, GPUs, convergence, recorded steps.",
    epilog="\b\nExample:\n  simnet check my_cluster.toml my_experiment.toml",
)
@click.argument("files", nargs=-1, required=True, shell_complete=completing.names_of(*PART_TYPES, "experiments"))
@click.pass_context
def command(ctx: click.Context, files: tuple[str, ...]) -> None:
    """Run `simnet check`."""
    failed = False
    for name in files:
        try:
            say(f"{name}: ok: {_checked(name)}")
        except SimnetError as error:
            Failure(str(error)).show()
            failed = True
    ctx.exit(Failure.exit_code if failed else 0)


def _checked(name: str) -> str:
    """Check one file, and say what it is."""
    if is_path(name) and step_file.holds_step(Path(name)):
        step_file.read(Path(name))
        return "recorded step"
    kind, name = find(name)
    if kind in PART_TYPES:
        part = check_part(kind, name)
        if isinstance(part, Calibration):
            check_calibration(part)
        return kind.removesuffix("s")
    if kind == "convergence":
        convergence.load(name)
        return kind
    if kind == "gradients":
        raise SimnetError(f"{name}: gradients: checked only with a workload; name a workload that uses them")
    return _checked_experiment(name)


def _checked_experiment(name: str) -> str:
    from simnet.analysis.sweeps import expand
    from simnet.engine.simulation import check

    experiment = load_experiment(name)
    if not experiment.swept_keys:
        check(experiment.at({}))
        return "experiment"
    points = expand(experiment)
    for point in points:
        check(point.scenario)
    return f"experiment, {len(points)} points"
