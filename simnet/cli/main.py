"""The command `simnet`: finds the module of a subcommand when it is called, so that each starts fast."""

import errno
import gc
import sys
from collections.abc import Sequence
from typing import IO, Any

import click

from simnet.cli import options
from simnet.cli.output import refuse, say, silence, tell
from simnet.core import files
from simnet.core.errors import SimnetError, did_you_mean

GROUPS: dict[str, dict[str, str]] = {
    "Ask": {
        "init": "Write a first scenario of your cluster and model.",
        "advise": "Rank all systems on a cluster, and say whether any pays.",
        "simulate": "Simulate one scenario: step time, breakdown, speedup.",
        "sweep": "Simulate a grid of scenarios, or find where a strategy pays.",
        "report": "Write an answer: an HTML file, figures, or a page with sliders.",
    },
    "Describe yours": {
        "model": "Count a training step of any model, for a workload of it.",
        "record": "Record the training steps of a script, or those of a trace.",
    },
    "Measure": {
        "measure": "Time kernels, models, collectives and training on your machines.",
        "calibrate": "Fit a calibration to measured times.",
        "validate": "Compare predictions with published or measured times.",
    },
    "Look": {
        "show": "List and print what is shipped, and check files of your own.",
        "doctor": "Say what works here, and what is missing for what.",
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
FORMER = {
    "crossover": ("sweep.crossover", "sweep --break-even KEY"),
    "time-to-target": ("time_to_target", "advise --time-to-target CURVES"),
    "race": ("time_to_target", "advise --time-to-target CURVES"),
    "plot": ("report.plot", "report --figures DIR"),
    "explore": ("report.explore", "report --static FILE"),
    "card": ("measure.card", "measure gpu --card DIRECTORY"),
    "step": ("record.step", "record --from, record --chakra PREFIX"),
    "list": ("show", "show, show KIND"),
    "check": ("show.check", "show --check"),
    "completion": ("doctor.completion", "doctor --completion SHELL"),
}
"""Commands that --help leaves out: where each stands, and the visible one that does the same."""
MOVED = {"lab": " It is python -m evidence.lab in a checkout."}
"""Commands that are no longer part of simnet, and where they are."""
GARBAGE_AFTER = 50_000
"""How many more objects there are before Python looks for garbage among the new ones."""
INTERRUPTED = 130
INTERRUPTION = "simnet: interrupted; nothing was written"


class Failure(click.ClickException):
    """A mistake of the user, printed in one line."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - click's signature
        """Print the line on stderr, if that can be written to."""
        refuse(self.message)


class ReportingGroup(options.CommandGroup):
    """A group that reports a mistake of the user in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a mistake of the user becomes one line and exit code 2."""
        try:
            with files.watch_inputs():
                return super().invoke(ctx)
        except SimnetError as error:
            raise Failure(str(error)) from error
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            at = error.ctx or ctx
            raise Failure(
                f"{error.format_message()}{_longer_option(error, at)} See: {at.command_path} --help"
            ) from error
        except KeyboardInterrupt:
            tell(INTERRUPTION)
            ctx.exit(INTERRUPTED)


class LazyGroup(ReportingGroup):
    """A group whose commands are the objects `command` of modules in this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help page."""
        return list(COMMANDS)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        for arg in args:
            if any("\ud800" <= letter <= "\udfff" for letter in arg):
                raise Failure(
                    f"{arg!r}: has bytes that are not {sys.getfilesystemencoding()}: must be text; rename the file"
                )
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command by its name."""
        if cmd_name not in {*COMMANDS, *FORMER}:
            return None
        return options.imported(FORMER.get(cmd_name, (cmd_name, ""))[0])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name."""
        known = {*COMMANDS, *FORMER}
        if args and args[0] not in known and not args[0].startswith("-"):
            way = MOVED.get(args[0]) or did_you_mean(args[0], known)
            raise SimnetError(f"{args[0]!r}: unknown command.{way}")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands before the options."""
        self.format_commands(ctx, formatter)
        options.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        shown = {**GROUPS}
        if options.ALL in ctx.meta:
            shown["Former names"] = {name: now for name, (_, now) in FORMER.items()}
        width = max(len(name) for group in shown.values() for name in group)
        for title, group in shown.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), about) for name, about in group.items()])


def _longer_option(error: click.UsageError, ctx: click.Context) -> str:
    """Return a question for the option that an unknown one is the beginning of, where click has no nearer one."""
    if not isinstance(error, click.NoSuchOption) or error.possibilities:
        return ""
    every = (option for param in ctx.command.get_params(ctx) for option in param.opts)
    longer = next((option for option in every if option.startswith(error.option_name)), None)
    return f" Did you mean {longer!r}?" if longer else ""


def _print_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from simnet.core import version

        say(f"simnet {version.text()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    help="Simulate distributed training: which system trains this model fastest on this cluster, and by how much?\n\n"
    "\b\n  simnet init mine.toml                   your cluster and your model, as a file\n"
    "  simnet advise mine.toml                 which system pays there, if any\n"
    "  simnet report mine.toml -o mine.html    the answer as a page to share",
    epilog="\b\nExample:\n  simnet advise bert_base_10gbit --set cluster.num_nodes=16",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print version and commit.",
)
def cli() -> None:
    """Run `simnet`."""


def main(args: Sequence[str] | None = None, group: click.Group | None = None, name: str = "simnet") -> None:
    """Run the command line, or that of another group, and exit."""
    # Most of what a command makes stays until it ends: a search for garbage finds little, and at the end costs most.
    is_alone = args is None
    if is_alone:
        gc.set_threshold(GARBAGE_AFTER)
    try:
        sys.exit((group or cli)(args=args, prog_name=name, standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        tell(INTERRUPTION)
        sys.exit(INTERRUPTED)
    except (OSError, UnicodeEncodeError) as error:
        refuse(_reason(error))
        silence(sys.stdout)
        sys.exit(Failure.exit_code)
    finally:
        if is_alone and "torch" not in sys.modules:  # libraries beneath it complain of what is not collected
            gc.freeze()


def _reason(error: OSError | UnicodeEncodeError) -> str:
    """Say what the system has refused; only the terminal has no file name."""
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[error.start]!r}: cannot be written in {error.encoding}; drop it, or set PYTHONUTF8=1"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}: raise the limit with ulimit -n, or use fewer --jobs"
    return f"{error.filename or 'standard output'}: cannot be used ({error.strerror})"
