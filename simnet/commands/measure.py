"""`simnet measure`: the commands of `binsgdm.measure`, whose errors are shown as those of all commands."""

import importlib
from typing import Any

import click

from simnet.errors import SimnetError

_HOME = "binsgdm.measure.command"
"""Imported by name, when this module is, which is when the command is called: see ARCHITECTURE.md."""


class _Measure(click.Group):
    """The group that binsgdm has made."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command.

        Raises:
            SimnetError: the user made a mistake.
        """
        mistake = importlib.import_module("binsgdm.errors").BinsgdmError
        try:
            return super().invoke(ctx)
        except mistake as error:
            raise SimnetError(str(error)) from error


def _group() -> _Measure:
    made: click.Group = importlib.import_module(_HOME).measure
    return _Measure(made.name, commands=made.commands, help=made.help, epilog=made.epilog)


command = _group()
