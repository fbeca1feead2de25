"""Real nodes on this machine: `python -m evidence.lab run|report|clean`."""

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from simnet.cli import options
from simnet.cli.main import INTERRUPTED, ReportingGroup, main
from simnet.cli.output import say, tell
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration, Quantity
from simnet.report.progress_bar import watched

if TYPE_CHECKING:
    from evidence.lab.ranks import LaunchResult

CAMPAIGN = "campaign.toml"
AnyQuantity = TypeVar("AnyQuantity", bound=Quantity)


@click.group(
    cls=ReportingGroup,
    help="Run a program on virtual nodes of this machine, joined by a network of a set bandwidth.\n\n"
    "Needs Linux, root and iproute2.",
    epilog="\b\nExample:\n  python -m evidence.lab run --nodes 4 --bandwidth '1 Gbit/s' -- python train.py",
)
def command() -> None:
    """Run `python -m evidence.lab`."""


@command.command(
    "run",
    help="Run a program or a campaign on nodes that are made for it and then removed.\n\n"
    "-- COMMAND... with --nodes: every rank runs COMMAND with the environment of torchrun. The output of rank 0 is "
    "shown, and the last lines of a rank that fails. The first rank that fails ends the others and sets the exit code; "
    "after --timeout, the exit code is 124.\n\n"
    "CAMPAIGN.toml with -o: measures links, kernels and models, then trains over the campaign's grid of nodes, ranks, "
    "bandwidths and strategies; a stopped campaign resumes with the same command. `report` then calibrates, predicts, "
    "and compares.",
    epilog="\b\nExamples:\n  python -m evidence.lab run --nodes 4 --bandwidth '200 Mbit/s' -- python train.py\n"
    "  python -m evidence.lab run evidence/campaigns/campaign.toml -o out/lab",
)
@click.option("--nodes", type=int, metavar="N", help="Number of nodes.")
@click.option("--ranks-per-node", type=int, default=1, show_default=True, metavar="N", help="Processes on each node.")
@click.option("--bandwidth", metavar="B", help="Bandwidth of each node's NIC, each direction.  [default: no limit]")
@click.option("--latency", metavar="TIME", help="Latency of each node's NIC, one way.  [default: that of the kernel]")
@click.option("--threads", type=int, default=1, show_default=True, metavar="N", help="OMP_NUM_THREADS of a rank.")
@click.option("--timeout", metavar="TIME", help="Stop all ranks after this time, such as '10 min'.")
@options.directory("Directory for the measurements of a campaign.")
@click.option(
    "--patience",
    metavar="TIME",
    help="Longest wait of a campaign for an idle machine before each launch.  [default: 5 min]",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[CAMPAIGN.toml | -- COMMAND...]")
@click.pass_context
def run(  # noqa: PLR0913, PLR0917 - one argument an option
    context: click.Context,
    nodes: int | None,
    ranks_per_node: int,
    bandwidth: str | None,
    latency: str | None,
    threads: int,
    timeout: str | None,
    output: Path | None,
    patience: str | None,
    program: tuple[str, ...],
) -> None:
    """Run `python -m evidence.lab run`."""
    from evidence.lab.lab import Lab, check_command
    from evidence.lab.plan import LabSpec

    if nodes is None:
        max_wait_s = _read(Duration, "--patience", patience)
        _campaign(context, program, output, max_wait_s)
        return
    if output is not None or patience is not None:
        raise SimnetError("-o, --patience: need a campaign; drop them, or name CAMPAIGN.toml instead of --nodes")
    spec = LabSpec(
        num_nodes=nodes,
        ranks_per_node=ranks_per_node,
        bandwidth=_read(Bandwidth, "--bandwidth", bandwidth),
        latency=_read(Duration, "--latency", latency) or Duration(0),
        threads_per_rank=threads,
    )
    timeout_s = _read(Duration, "--timeout", timeout)
    if timeout_s is not None and timeout_s <= 0:
        raise SimnetError(f"--timeout: {timeout!r}: must be above zero; drop it to wait without a limit")
    check_command(program)
    try:
        with Lab(spec) as lab:
            if lab.removed:
                tell(f"removed {_labs(len(lab.removed))} whose process had ended")
            outcome = lab.launch(program, timeout_s=timeout_s, show_rank_0=True)
    except KeyboardInterrupt:
        tell("simnet: lab: interrupted; every rank was stopped, and the nodes were removed")
        context.exit(INTERRUPTED)
    if outcome.exit_code:
        _fail(context, outcome)


def _campaign(context: click.Context, program: tuple[str, ...], output: Path | None, max_wait_s: float | None) -> None:
    """Measure a campaign."""
    from evidence.lab import campaign as campaigns
    from evidence.lab import machine, run_campaign
    from simnet.core.files import read_text

    if len(program) != 1 or not program[0].endswith(".toml"):
        raise SimnetError("lab: nothing to run: give --nodes N and -- COMMAND..., or CAMPAIGN.toml and -o")
    if output is None:
        raise SimnetError(f"lab: {program[0]}: -o: missing; name a directory for the measurements")
    path = Path(program[0])
    campaign = campaigns.load(path)
    machine.check()
    run_campaign.check_folder(output, read_text(path), CAMPAIGN)
    try:
        max_wait_s = run_campaign.MAX_WAIT_S if max_wait_s is None else max_wait_s
        run_campaign.run(campaigns.launches(campaign), output, tell, max_wait_s)
    except KeyboardInterrupt:
        tell(f"simnet: lab: interrupted; {output} keeps the measurements, and the same command resumes")
        context.exit(INTERRUPTED)
    tell(f"measured in {output}; compare with: python -m evidence.lab report {output}")


@command.command(
    "report",
    help="Calibrate on the measurements of the campaign in DIRECTORY, predict its trainings, and compare.\n\n"
    "Needs no root.",
    epilog="\b\nExample:\n  python -m evidence.lab report out/lab --mean 6 --worst 15 -o out/lab-report",
)
@click.argument("folder", type=options.INPUT_PATH, metavar="DIRECTORY")
@options.MEAN
@options.WORST
@options.BOOTSTRAP_DRAWS
@options.directory("Write data, figures and calibrations to this directory.")
@click.pass_context
def report(  # noqa: PLR0913, PLR0917 - one argument an option
    context: click.Context, folder: Path, mean: float | None, worst: float | None, draws: int, output: Path | None
) -> None:
    """Run `python -m evidence.lab report`."""
    from evidence.lab import campaign as campaigns
    from evidence.lab import page, prediction
    from simnet.calibration.comparison import within

    result = prediction.evaluate(campaigns.load(folder / CAMPAIGN), folder, draws, watched)
    say(page.summary(result))
    if output is not None:
        for path in page.write(result, output):
            tell(f"wrote {path}")
    if not within(result.points, mean, worst):
        context.exit(1)


@command.command(
    "clean",
    help="Remove the network namespaces that killed labs have left; a lab that still runs is kept.",
    epilog="\b\nExample:\n  python -m evidence.lab clean",
)
def clean() -> None:
    """Run `python -m evidence.lab clean`."""
    from evidence.lab import machine

    machine.check()
    removed = machine.remove_abandoned()
    say(f"removed {_labs(len(removed))} whose process had ended" if removed else "nothing to remove")
    for owner in machine.namespaces():
        say(f"left the lab of process {owner.pid}, which still runs")


def _read(kind: type[AnyQuantity], option: str, text: str | None) -> AnyQuantity | None:
    """Read a quantity, or nothing."""
    try:
        return None if text is None else kind.parse(text)
    except ValueError as error:
        raise SimnetError(f"{option}: {error}") from error


def _labs(number: int) -> str:
    return f"{number} lab" if number == 1 else f"{number} labs"


def _fail(context: click.Context, outcome: "LaunchResult") -> NoReturn:
    """Print the last lines and the failure of a launch, and exit with its exit code."""
    for line in outcome.last_lines():
        tell(line)
    tell(f"simnet: {outcome.failure()}")
    context.exit(outcome.exit_code)


if __name__ == "__main__":
    main(group=command, name="python -m evidence.lab")
