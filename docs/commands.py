"""The page's lists of the command line: arguments and options of each command, from click."""

import inspect
import re
from collections.abc import Iterator

import click

from simnet.cli import options

DEFAULT = re.compile(r"\s*\[default: (.*?)\]\s*\Z")
"""How a help text says a default that click does not know."""
PLAIN = (click.types.StringParamType, click.Path)
ARGUMENT = re.compile(r"(?:-- )?[A-Z.toml]{4,}\b(?: is|\.\.\.| with)")
"""How a paragraph of help begins that says what an argument is."""


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
    """Return what a command does and what its arguments are: of its help the first paragraph and those of arguments."""
    first, *more = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join([first, *(text for text in more if ARGUMENT.match(text))])


def lines(command: click.Command) -> dict[str, str]:
    """Return a line for each option of a command, by its names; those that are needed rarely left out."""
    return {_names(param): _line(param) for param in _options(command) if not _is_rare(param)}


def rare(command: click.Command) -> list[str]:
    """Return the names of the options that only `--help-all` shows."""
    return [_names(param) for param in _options(command) if _is_rare(param)]


def _options(command: click.Command) -> list[click.Option]:
    params = command.params
    return [param for param in params if isinstance(param, click.Option) and not isinstance(param, options.Mode)]


def _is_rare(option: click.Option) -> bool:
    return getattr(option, "is_rare", False)


def _names(option: click.Option) -> str:
    return "`" + "/".join((*option.opts, *option.secondary_opts)) + "`"


def _line(option: click.Option) -> str:
    default = DEFAULT.search(option.help or "")
    meaning = DEFAULT.sub("", option.help or "").rstrip(".")
    if not meaning:
        raise ValueError(f"{_names(option)}: say what the option means in its help text")
    repeats = " (repeatable)" if option.multiple and "repeatable" not in meaning.lower() else ""
    remarks = filter(None, (value(option), f"default {default[1]}" if default else _default(option)))
    return f"- {_names(option)}" + (f" ({shown})" if (shown := "; ".join(remarks)) else "") + f": {meaning}{repeats}"


def value(option: click.Option) -> str:
    """Return what an option takes, in words."""
    match option.type:
        case _ if option.is_flag or (isinstance(option.type, PLAIN) and not option.metavar):
            return ""
        case click.Choice(choices=choices):
            return ", ".join(choices)
        case click.IntRange(max=int()) as numbers:
            return _range(numbers).strip()
        case click.IntRange() | click.FloatRange() as numbers:
            return _number(numbers) + _range(numbers)
        case click.types.IntParamType() | click.types.FloatParamType() as number:
            return _number(number)
    return option.metavar or str(option.type.name)


def _number(kind: click.ParamType) -> str:  # type: ignore[type-arg]
    return "integer" if isinstance(kind, click.types.IntParamType) else "number"


def _range(numbers: click.IntRange | click.FloatRange) -> str:
    if numbers.min is None:
        return ""
    low = f" above {numbers.min:,g}" if numbers.min_open else f" from {numbers.min:,}"
    return low if numbers.max is None else f"{low} to {_figure(numbers.max)}".replace("from ", "")


def _figure(limit: float) -> str:
    return f"{limit:,}" if limit == int(limit) < 10**6 else f"{limit:g}".replace("1e+0", "10^").replace("1e+", "10^")


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    default = option.to_info_dict()["default"]
    if option.is_flag or default is None or default in ((), ""):
        return ""
    shown = ", ".join(map(str, default)) if isinstance(default, tuple | list) else default
    return f"default {shown}"
