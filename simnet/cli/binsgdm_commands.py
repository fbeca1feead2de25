"""Commands that binsgdm has made, whose errors are shown as those of all commands."""

import importlib
from typing import Any

import click

from simnet.core.errors import SimnetError


def _invoke(ctx: click.Context, invoke: Any) -> Any:
    mistake = importlib.import_module("binsgdm.errors").BinsgdmError
    try:
        return invoke(ctx)
    except mistake as error:
        raise SimnetError(str(error)) from error


class ForeignGroup(click.Group):
    """A group of commands."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command.

        Raises:
            SimnetError: the user made a mistake.
        """
        return _invoke(ctx, super().invoke)


class ForeignCommand(click.Command):
    """A command."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it.

        Raises:
            SimnetError: the user made a mistake.
        """
        return _invoke(ctx, super().invoke)


def adopted(home: str, name: str) -> click.Command:
    """Return a command of a module, imported by name when this is called: see ARCHITECTURE.md."""
    made: click.Command = getattr(importlib.import_module(home), name)
    if isinstance(made, click.Group):
        return ForeignGroup(made.name, commands=made.commands, help=made.help, epilog=made.epilog)
    return ForeignCommand(
        made.name,
        callback=made.callback,
        params=made.params,
        help=made.help,
        epilog=made.epilog,
        context_settings=made.context_settings,
    )
