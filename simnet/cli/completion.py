"""`simnet completion`: the script that lets a shell complete commands, options and names."""

import click

from simnet.cli.terminal import say
from simnet.core.errors import SimnetError

SHELLS = ("bash", "zsh", "fish")
NAME, VARIABLE = "simnet", "_SIMNET_COMPLETE"
"""Of the program, and of the environment's variable by which click knows that a shell asks."""


@click.command(
    "completion",
    help="Print the script by which SHELL (bash, zsh or fish) completes commands, options, scenarios and names.",
    epilog="\b\nExamples:\n  simnet completion bash >> ~/.bashrc\n"
    "  simnet completion zsh >> ~/.zshrc\n"
    "  simnet completion fish > ~/.config/fish/completions/simnet.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Run `simnet completion`."""
    from click.shell_completion import get_completion_class

    from simnet.cli.main import cli

    made = get_completion_class(shell)
    assert made is not None
    try:
        say(made(cli, {}, NAME, VARIABLE).source())
    except RuntimeError as error:
        raise SimnetError(f"completion: {shell}: {error}") from error
