"""`python -m binsgdm measure ...` is `simnet measure ...`, so that ranks can be launched where only binsgdm is."""

import sys

try:
    import click
except ImportError as missing:  # where a GPU is, there may be torch alone
    sys.stderr.write(f"binsgdm: needs click ({missing}): pip install click, or put it on PYTHONPATH\n")
    sys.exit(2)

from binsgdm.bench.command import INTERRUPTED, MISTAKE, measure
from binsgdm.errors import BinsgdmError, printable

NAME = "python -m binsgdm"
commands = click.Group(
    "binsgdm",
    commands={"measure": measure},
    help="What binsgdm does without a script of yours.",
    epilog="\b\nExample:\n  torchrun --nproc-per-node 2 -m binsgdm measure collectives -o collectives.json",
)


def main() -> None:
    """Run the command line and exit: 0, 2 for a mistake, reported in one line, 130 after Ctrl-C."""
    try:
        sys.exit(commands(prog_name=NAME, standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the help, whose lines stay lines
        sys.exit(MISTAKE)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else NAME
        _fail(f"{error.format_message()} See: {path} --help")
    except (click.ClickException, BinsgdmError) as error:
        _fail(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("binsgdm: interrupted; nothing was written", err=True)
        sys.exit(INTERRUPTED)


def _fail(line: str) -> None:
    click.echo(f"binsgdm: {printable(line)}", err=True)
    sys.exit(MISTAKE)


if __name__ == "__main__":
    main()
