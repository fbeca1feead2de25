"""`simnet lab`: real nodes on this machine."""

from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from simnet.commands.main import INTERRUPTED, tell
from simnet.errors import SimnetError
from simnet.units import Bandwidth, Duration, Quantity

if TYPE_CHECKING:
    from simnet.lab.ranks import Outcome

AnyQuantity = TypeVar("AnyQuantity", bound=Quantity)


@click.group(
    "lab",
    help="Run a program on several nodes of this one machine, joined by a network of a set bandwidth.\n\n"
    "Needs Linux, root and iproute2.",
    epilog="\b\nExample:\n  simnet lab run --nodes 4 --bandwidth '1 Gbit/s' -- python train.py",
)
def command() -> None:
    """Run `simnet lab`."""


@command.command(
    "run",
    help="Make the nodes, run COMMAND as every rank with the environment that torchrun gives, and remove the nodes.\n\n"
    "Shows what rank 0 writes, and of another only its last lines, if it fails. The first rank that fails ends the "
    "others and gives the exit code; a timeout gives 124.",
    epilog="\b\nExample:\n  simnet lab run --nodes 4 --ranks-per-node 2 --bandwidth '200 Mbit/s' -- python train.py",
)
@click.option("--nodes", type=int, required=True, metavar="N", help="Number of nodes.")
@click.option("--ranks-per-node", type=int, default=1, show_default=True, metavar="N", help="Processes on each node.")
@click.option("--bandwidth", metavar="B", help="Of each node's NIC in each direction.  [default: unshaped]")
@click.option("--threads", type=int, default=1, show_default=True, metavar="N", help="OMP_NUM_THREADS of a rank.")
@click.option("--timeout", metavar="TIME", help="Stop all ranks after this time, such as '10 min'.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def run(  # noqa: PLR0913, PLR0917 - one argument an option
    context: click.Context,
    nodes: int,
    ranks_per_node: int,
    bandwidth: str | None,
    threads: int,
    timeout: str | None,
    program: tuple[str, ...],
) -> None:
    """Run `simnet lab run`."""
    from simnet.lab.lab import Lab, check_command
    from simnet.lab.plan import LabSpec

    spec = LabSpec(
        num_nodes=nodes,
        ranks_per_node=ranks_per_node,
        bandwidth=_read(Bandwidth, "--bandwidth", bandwidth),
        threads_per_rank=threads,
    )
    timeout_s = _read(Duration, "--timeout", timeout)
    if timeout_s is not None and timeout_s <= 0:
        raise SimnetError(f"--timeout: {timeout!r}: must be above zero; leave it out to wait for ever")
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


@command.command("clean", help="Remove what killed labs have left; one that still runs is left alone.")
def clean() -> None:
    """Run `simnet lab clean`."""
    from simnet.lab import machine

    machine.check()
    removed = machine.remove_abandoned()
    click.echo(f"removed {_labs(len(removed))} whose process had ended" if removed else "nothing to remove")
    for owner in machine.namespaces():
        click.echo(f"left the lab of process {owner.pid}, which still runs")


def _read(kind: type[AnyQuantity], option: str, text: str | None) -> AnyQuantity | None:
    """Read a quantity, or nothing.

    Raises:
        SimnetError: it is not one.
    """
    try:
        return None if text is None else kind.parse(text)
    except ValueError as error:
        raise SimnetError(f"{option}: {error}") from error


def _labs(number: int) -> str:
    return f"{number} lab" if number == 1 else f"{number} labs"


def _fail(context: click.Context, outcome: "Outcome") -> NoReturn:
    """Tell what went wrong, and leave with the exit code of the run."""
    for line in outcome.tail():
        tell(line)
    tell(f"simnet: {outcome.sentence()}")
    context.exit(outcome.exit_code)
