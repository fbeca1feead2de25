"""The command `simnet`: finds the module of a subcommand when it is called, so that each starts fast."""

import importlib
import sys
from collections.abc import Sequence
from typing import IO, Any

import click

from simnet.errors import SimnetError, nearest

COMMANDS: dict[str, str] = {
    "simulate": "Simulate one scenario: iteration time, breakdown, speedup.",
    "sweep": "Simulate a grid of scenarios, resumable.",
    "crossover": "Find where two strategies take the same time.",
    "plot": "Draw the figures of a sweep.",
    "validate": "Compare predictions with published and measured times.",
    "list": "List the shipped clusters, workloads, calibrations and experiments.",
    "show": "Print a part, or an experiment with its parts filled in.",
    "check": "Check files without simulating.",
}
INTERRUPTED = 130


class Failure(click.ClickException):
    """A mistake of the user, told in one line."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line on stderr."""
        click.echo(f"simnet: {self.message}", file=file or sys.stderr)


class LazyGroup(click.Group):
    """A group whose commands are the objects `command` of modules in this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command by its name."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"simnet.commands.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name.

        Raises:
            SimnetError: there is none of this name.
        """
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise SimnetError(f"{args[0]!r}: unknown command.{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a mistake of the user becomes one line and exit code 2.

        Raises:
            Failure: the user made a mistake.
        """
        try:
            return super().invoke(ctx)
        except SimnetError as error:
            raise Failure(str(error)) from error
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else ctx.command_path
            raise Failure(f"{error.format_message()} See: {path} --help") from error
        except KeyboardInterrupt:
            click.echo("simnet: interrupted; nothing was written", err=True)
            ctx.exit(INTERRUPTED)


def _print_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from simnet.simulate import version

        click.echo(f"simnet {version()}")
        ctx.exit()


@click.group(cls=LazyGroup, epilog="\b\nExample:\n  simnet simulate bert_base_10gbit --set cluster.num_nodes=16")
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
def cli() -> None:
    """Simulate distributed training: would 1-bit communication make it faster here, and by how much?"""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    cli(args=args, prog_name="simnet")
