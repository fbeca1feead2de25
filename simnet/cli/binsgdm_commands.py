"""Commands that binsgdm has made, whose errors are shown as those of all commands."""

import importlib
from typing import Any

import click

from simnet.cli import options
from simnet.core.errors import SimnetError


class _Adopted(options.Command):
    """A command of binsgdm."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except importlib.import_module("binsgdm.errors").BinsgdmError as error:
            raise SimnetError(str(error)) from error


def adopted(home: str, name: str) -> click.Command:
    """Return a command of a module, imported by name when this is called: see ARCHITECTURE.md."""
    return _adopted(getattr(importlib.import_module(home), name))


def _adopted(made: click.Command) -> click.Command:
    names = ("name", "callback", "help", "epilog", "short_help", "context_settings")
    kept = {name: getattr(made, name) for name in names} | {"params": [*made.params]}
    if isinstance(made, click.Group):
        return options.CommandGroup(**kept, commands={name: _adopted(inner) for name, inner in made.commands.items()})
    return _Adopted(**kept)
