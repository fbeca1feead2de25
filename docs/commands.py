"""The pages' tables of the command line: arguments, options and examples of each command, from click."""

import inspect
import re
from collections.abc import Iterator

import click

from simnet.cli import options

HEAD = "| option | value | default | meaning |\n|---|---|---|---|"
DEFAULT = re.compile(r"\s*\[default: (.*?)\]\s*\Z")
"""How a help text says a default that click does not know."""


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command and mode below a group with the words that call it, a group before its commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        modes = {mode.of: mode for mode in reversed(command.params) if isinstance(mode, options.Mode)}
        for mode in reversed(modes.values()):
            yield f"{path} {name} {mode.opts[0]}", mode.command()


def usage(command: click.Command, path: str) -> str:
    """Return the line that shows how a command is called."""
    context = click.Context(command, info_name=path)
    return " ".join([path, *command.collect_usage_pieces(context)])


def about(command: click.Command) -> str:
    """Return the help of a command as Markdown paragraphs."""
    return inspect.cleandoc(command.help or "")


def examples(command: click.Command) -> list[str]:
    """Return the commands that a command's help shows."""
    lines = (re.sub(r"^(\x08|\s)*(Examples?:)?\s*", "", line) for line in (command.epilog or "").splitlines())
    return list(filter(None, lines))


def table(rows: list[str]) -> str:
    """Return rows of options as a Markdown table, "" if there are none."""
    return "\n".join([HEAD, *rows]) if rows else ""


def rows(command: click.Command) -> list[str]:
    """Return the rows of a command's options; of a group, the options that its commands share."""
    if not isinstance(command, click.Group):
        return [_row(param) for param in command.params if isinstance(param, click.Option)]
    shared = _shared(command)
    first = next(rows(member) for name, member in command.commands.items() if name not in apart(command))
    return [row for row in first if row in shared]


def apart(group: click.Group) -> list[str]:
    """Return the commands of a group that have none of the options that most of its commands share."""
    shared = _shared(group)
    return [name for name, member in group.commands.items() if shared and not shared & set(rows(member))]


def _shared(group: click.Group) -> set[str]:
    """Return the rows of most commands of a group: of all, or of all but one where there are more than three."""
    members = [set(rows(member)) for member in group.commands.values()]
    least = len(members) - 1 if len(members) > 3 else len(members)
    return {row for member in members for row in member if sum(row in other for other in members) >= least}


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    found = DEFAULT.search(option.help or "")
    meaning = DEFAULT.sub("", option.help or "").rstrip(".")
    if not meaning:
        raise ValueError(f"{names}: say what the option means in its help text")
    repeats = " (repeatable)" if option.multiple and "repeatable" not in meaning.lower() else ""
    cells = (names, value(option), found[1] if found else _default(option), meaning + repeats)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def value(option: click.Option) -> str:
    """Return what an option takes, in words."""
    match option.type:
        case _ if option.is_flag:
            return "flag"
        case click.Choice(choices=choices):
            return ", ".join(f"`{choice}`" for choice in choices)
        case click.IntRange() | click.FloatRange() as numbers:
            return _number(numbers) + _range(numbers)
        case click.types.IntParamType() | click.types.FloatParamType() as number:
            return _number(number)
        case click.Path():
            return "path"
    return f"`{option.metavar}`" if option.metavar else str(option.type.name)


def _number(kind: click.ParamType) -> str:  # type: ignore[type-arg]
    return "whole number" if isinstance(kind, click.types.IntParamType) else "number"


def _range(numbers: click.IntRange | click.FloatRange) -> str:
    if numbers.min is None:
        return ""
    low = f" above {numbers.min:,g}" if numbers.min_open else f" from {numbers.min:,}"
    return low if numbers.max is None else f"{low} to {numbers.max:,}"


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    default = option.to_info_dict()["default"]
    if option.is_flag or default is None or default in ((), ""):
        return "-"
    shown = ", ".join(map(str, default)) if isinstance(default, tuple | list) else default
    return f"`{shown}`"
