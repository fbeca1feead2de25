"""`python -m binsgdm.bench ...` is `simnet measure ...`, so that ranks can be launched where only binsgdm is."""

import sys

try:
    import click
except ImportError as missing:  # where a GPU is, there may be torch alone
    sys.stderr.write(f"measure: needs click ({missing}): pip install click, or put it on PYTHONPATH\n")
    sys.exit(2)

from binsgdm.bench.command import INTERRUPTED, MISTAKE, measure
from binsgdm.errors import BinsgdmError, printable

NAME = "python -m binsgdm.bench"


def main() -> None:
    """Run the command line and exit: 0, 2 for a mistake, reported in one line, 130 after Ctrl-C."""
    try:
        sys.exit(measure(prog_name=NAME, standalone_mode=False))
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else NAME
        _fail(f"{error.format_message()} See: {path} --help")
    except (click.ClickException, BinsgdmError) as error:
        _fail(str(error))
    except (KeyboardInterrupt, click.Abort):
        click.echo("measure: interrupted; nothing was written", err=True)
        sys.exit(INTERRUPTED)


def _fail(line: str) -> None:
    click.echo(f"measure: {printable(line)}", err=True)
    sys.exit(MISTAKE)


if __name__ == "__main__":
    main()
