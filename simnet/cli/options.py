"""The options that several commands share: their help page, what a shell completes, and how their texts are read."""

import importlib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import click
from msgspec import Meta

from simnet.cli.output import say
from simnet.core import files
from simnet.core.arguments import Files, Names
from simnet.core.errors import SimnetError, shown
from simnet.core.files import MAX_TOML_BYTES, label, read_text
from simnet.core.parsing import LONG_NUMBER, check_plain, csv_rows
from simnet.engine.axes import PointList, point_list

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from msgspec import Struct
    from msgspec.inspect import Type


Completed = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
KINDS, STRATEGIES = "kinds", "strategies"
"""What is completed beside names of shipped files."""
DEEPEST = 4
LABELS = {"name", "title", "source", "kind", "question", "measured_on", "fitted_to"}
"""Keys that change no result."""


def complete_names(*kinds: str) -> Completed:
    """Return what completes the names of shipped parts, and paths of files.

    Args:
        kinds: of parts, as in `simnet show`.
    """

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        known = dict.fromkeys(name for kind in kinds for name in _names(kind))
        # The shell lists files itself; it is told first, for bash then forgets what it was told before.
        return [CompletionItem(typed, type="file"), *_items(known, typed)]

    return complete


def complete_keys(_ctx: click.Context, _param: click.Parameter, typed: str) -> "list[CompletionItem]":
    """Complete the key of a scenario; its value is the user's."""
    from simnet.engine.scenario import Scenario

    return _items((key for key in dict.fromkeys(_keys(Scenario)) if key.rpartition(".")[2] not in LABELS), typed)


def _items(known: Any, typed: str) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in known if name.startswith(typed)]


def _names(kind: str) -> Iterator[str]:
    if kind == STRATEGIES:
        from simnet.core.schema import tag_of
        from simnet.strategies import STRATEGIES as KNOWN

        yield from map(tag_of, KNOWN)
    elif kind == KINDS:
        yield from (*files.KINDS, STRATEGIES)
    else:
        yield from files.names(kind)


def _keys(struct: "type[Struct]") -> Iterator[str]:
    from simnet.core import schema

    yield from _inner(schema.type_of(struct), "", DEEPEST)


def _inner(info: "Type", above: str, depth: int) -> Iterator[str]:
    """Yield the dotted keys of the leaves of a struct, or of what a union has of structs."""
    from msgspec import inspect as types

    if isinstance(info, types.UnionType):
        for member in info.types:
            yield from _inner(member, above, depth)
    elif isinstance(info, types.StructType) and depth:
        for field in info.fields:
            key = f"{above}{field.encode_name}"
            inside = list(_inner(field.type, f"{key}.", depth - 1))
            yield from inside or [key]


COMMON = {"settings", "draws", "form", "output", "jobs", "plot", "style", "version"}
"""Parameters that mean the same in all commands, and stand in a block of their own."""
ALL = "simnet.cli.options.ALL"
"""Key of a context's `meta` that is there where a help page has every option."""


def imported(name: str) -> click.Command:
    """Return the `command` of a module of this package, or what "module.name" says."""
    module, _, attribute = name.partition(".")
    command = getattr(importlib.import_module(f"simnet.cli.{module}"), attribute or "command")
    assert isinstance(command, click.Command)
    return command


class Rare(click.Option):
    """An option that --help leaves out, and --help-all has."""

    is_rare = True


class Mode(click.Option):
    """An option that turns a command into another one, which reads all arguments: this one, too, if it has it.

    Args:
        *args: as of an option.
        of: the other command: a module of this package, and its name there, such as "step.import_step".
        **kwargs: as of an option; without a metavar it is a flag.
    """

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, **{"expose_value": False, "is_flag": "metavar" not in kwargs} | kwargs)
        self.of = of

    def command(self) -> click.Command:
        """Import the other command."""
        return imported(self.of)

    def arguments(self, args: list[str]) -> list[str]:
        """Return arguments as the other command reads them."""
        name = self.opts[0]
        if asked := [word for word in args if word in ("--help", HELP_ALL.opts[0])]:
            return asked  # which an option with a value would take for it
        if any(name in param.opts for param in self.command().params):
            return args
        return [word.removeprefix(f"{name}=") for word in args if word != name]


class Command(click.Command):
    """A command with modes, and with two help pages: `--help` and `--help-all`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments, by the command of a mode if one is among them."""
        is_free = self.context_settings.get("allow_interspersed_args", True)
        # Words behind "--", or behind the first one that is no option, belong to a program that the command runs.
        words = list(takewhile(lambda word: word != "--", args)) if is_free else args[:1]
        names = {word.partition("=")[0] for word in words}
        modes = [mode for mode in self.params if isinstance(mode, Mode) and names & {*mode.opts}]
        if not modes:
            return super().make_context(info_name, args, parent, **extra)
        if len(modes) > 1 and not extra.get("resilient_parsing"):
            first, second = (mode.opts[0] for mode in modes[:2])
            here = click.Context(self, parent, info_name)
            raise click.UsageError(f"{first}: has no effect with {second}; drop one of the two.", here)
        mode = modes[0]
        return mode.command().make_context(f"{info_name} {mode.opts[0]}", mode.arguments(args), parent, **extra)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, and the options that print help."""
        return [*super().get_params(ctx), HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, those needed rarely if all are asked for, and the common ones."""
        blocks: dict[str, list[tuple[str, str]]] = {"Options": [], "Options needed rarely": [], "Common": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            is_useless = param is HELP_ALL and ctx.parent is not None and not any(map(_is_rare, self.params))
            if record is None or is_useless:
                continue
            is_common = param.name in COMMON or param not in self.params
            blocks["Common" if is_common else "Options needed rarely" if _is_rare(param) else "Options"].append(record)
        if ALL not in ctx.meta:
            del blocks["Options needed rarely"]
        for title, records in blocks.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CommandGroup(click.Group, Command):
    """A group of such commands."""

    command_class = Command


def _is_rare(param: click.Parameter) -> bool:
    return getattr(param, "is_rare", False)  # also of what binsgdm has marked


def _print_all(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[ALL] = True
        say(ctx.get_help())
        ctx.exit()


HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_print_all, help="Show rare options, too."
)
command = partial(click.command, cls=Command)
rare, mode = partial(click.option, cls=Rare), partial(click.option, cls=Mode)


class _Output(click.Path):
    """A path to write to; empty text is refused, since `pathlib` would take it for the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("'': is empty; name a file or a directory.", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number within bounds; "nan" is within any bounds for click, and no comparison with it holds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124 - only nan differs from itself
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


Result = TypeVar("Result")
Decorated = TypeVar("Decorated", bound=Callable[..., Any] | click.Command)

INPUT_PATH = click.Path(path_type=Path)
OUTPUT_PATH = _Output(path_type=Path)

SCENARIO = click.argument("scenario", shell_complete=complete_names("experiments"))
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_keys,
    help="Replace a value, such as cluster.num_nodes=16; repeatable.",
)
OUTPUT = click.option("-o", "--output", type=OUTPUT_PATH, help="Write to this file instead of the terminal.")
DRAWS = click.option(
    "--draws",
    type=click.IntRange(0, 10_000),
    help="Draws from the intervals of calibration and workload, for 90 % intervals of the results; 0 for none, else at "
    "least 20.  [default: 50]",
)
STYLE = click.option(
    "--style",
    default="screen",
    show_default=True,
    metavar="[screen|paper|slides|dark]",
    help="Look of the figures: for pages, for a paper's columns of 3.3 and 7 inches, for slides, for dark slides.",
)
JOBS = click.option(
    "--jobs", type=click.IntRange(1, 1024), help="Largest number of processes.  [default: one per core]"
)
BOOTSTRAP_DRAWS = click.option(
    "--draws", type=click.IntRange(20, 10_000), default=200, show_default=True, help="Bootstrap fits for the intervals."
)
MEAN = click.option("--mean", type=Number(0), help="Largest mean error [%]; above it, the exit code is 1.")
WORST = click.option("--worst", type=Number(0), help="Largest error of one point [%]; above it, the exit code is 1.")


def form(*names: str, of: str = "the output") -> Callable[[Decorated], Decorated]:
    """Return the option `--format` with these choices, the first of them as default."""
    return click.option(
        "--format", "form", type=click.Choice(names), default=names[0], show_default=True, help=f"Format of {of}."
    )


def plot(what: str) -> Callable[[Decorated], Decorated]:
    """Return the option `--plot`, which draws something to a file."""
    return click.option("--plot", type=OUTPUT_PATH, help=f"Draw {what} to this .png, .pdf or .svg file.")


def directory(what: str, *names: str, required: bool = False) -> Callable[[Decorated], Decorated]:
    """Return the option `-o` of a command that writes several files."""
    return click.option("-o", "--output", *names, "output", type=OUTPUT_PATH, required=required, help=what)


def of(function: Callable[..., Any], *rare_ones: str, **looks: dict[str, Any]) -> Callable[[Decorated], Decorated]:
    """Return the options of a command that are arguments of a public function: what they take and mean stands there.

    Args:
        function: of `simnet.api`; its annotations give types and bounds, its docstring the help.
        *rare_ones: options that --help leaves out, by argument.
        **looks: what an option has beside that, such as a metavar, in the order of the options; "name" is what it is
            called where that is not the argument's name.
    """
    parameters, helps = inspect.signature(function).parameters, _helps(inspect.getdoc(function) or "")

    def decorate(command_: Decorated) -> Decorated:
        for key, look in reversed(looks.items()):
            more = _typed(parameters[key]) | look
            name = more.pop("name", key)
            make = rare if key in rare_ones else click.option
            text = helps.get(key, "")  # which is missing where Python runs with -OO
            text = re.sub(r"\.(?=  \[|$)", "; repeatable.", text, count=1) if "multiple" in more else text
            command_ = make(f"--{name.replace('_', '-')}", key, **{"help": text} | more)(command_)
        return command_

    return decorate


def _helps(doc: str) -> dict[str, str]:
    """Return what a docstring says of each argument, as a sentence, its default in brackets."""
    block = doc.partition("\nArgs:\n")[2].partition("\n\n")[0]
    helps = {}
    for entry in re.split(r"\n(?=    \w+: )", f"\n{block}")[1:]:
        key, _, text = " ".join(entry.split()).partition(": ")
        text = re.sub(r"`(\w+)`", lambda name: f"--{name[1].replace('_', '-')}", text[:1].upper() + text[1:])
        helps[key] = re.sub(r"; by default (.*)\.$", r".  [default: \1]", text)
    return helps


def _typed(parameter: inspect.Parameter) -> dict[str, Any]:
    """Return what an annotation and a default mean for an option."""
    kind: Any = parameter.annotation
    if kind is bool:
        return {"is_flag": True}
    if kind in (Names, Files):
        return {"multiple": True, **({"type": INPUT_PATH} if kind is Files else {})}
    default = parameter.default
    option = {} if default in (None, (), parameter.empty) else {"default": default, "show_default": True}
    if get_origin(kind) in (Union, UnionType):
        # An option that is left out is None already.
        kind = next(arm for arm in get_args(kind) if arm is not type(None))
    if get_origin(kind) is Literal:
        return option | {"type": click.Choice(get_args(kind))}
    if get_origin(kind) is Annotated:
        of_kind, *limits = get_args(kind)
        bound = next((limit for limit in limits if isinstance(limit, Meta)), None)
        if bound is not None and of_kind in (int, float):
            low = bound.ge if bound.ge is not None else bound.gt
            high = bound.le if bound.le is not None else bound.lt
            make: Any = click.IntRange if of_kind is int else Number
            return option | {"type": make(low, high, min_open=bound.gt is not None, max_open=bound.lt is not None)}
        return option
    return option | {"type": kind}


def asked(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a public function as commands call it: click has read its arguments, and messages name options."""
    return getattr(function, "__wrapped__", function)  # what `checked` wraps


# A quoted text, a bracketed list or table (nested once), or any other character but a comma.
_PIECE = re.compile(r"""(?:"[^"]*"|'[^']*'|\[(?:[^][]|\[[^][]*\])*\]|\{(?:[^{}]|\{[^{}]*\})*\}|[^,])+""")


def read_settings(texts: Iterable[str]) -> dict[str, object]:
    """Read "KEY=VALUE" texts, each with one value."""
    return {key: read_value(value) for key, value in _split(texts).items()}


def read_axes(texts: Iterable[str]) -> tuple[dict[str, object], dict[str, tuple[object, ...]]]:
    """Read "KEY=V1,V2,..." texts: those with one value as settings, those with several as axes."""
    values = {key: read_values(text) for key, text in _split(texts).items()}
    settings = {key: several[0] for key, several in values.items() if len(several) == 1}
    return settings, {key: several for key, several in values.items() if len(several) > 1}


def read_points(texts: Sequence[str]) -> PointList:
    """Read the "KEY=V,KEY=V,..." texts of at least one --point."""
    points = []
    for text in texts:
        pieces = [piece.strip() for piece in _PIECE.findall(text)]
        points.append({key: read_value(value) for key, value in _split(pieces, "--point").items()})
    where = [f"--point {shown(text)}" for text in texts]
    return point_list(points, where, "--point", Path())


def read_points_file(path: Path) -> PointList:
    """Read a CSV file of points: dotted keys in the head, a point in each line."""
    where = label(path)
    rows = csv_rows(read_text(path, MAX_TOML_BYTES))
    keys = next(rows, (1, []))[1]
    for key in keys:
        if not all(key.split(".")):
            raise SimnetError(f"{where}: {shown(key)}: is no key; write keys in the head, such as cluster.num_nodes")
        if keys.count(key) > 1:
            raise SimnetError(f"{where}: {shown(key)}: two columns; drop one")
    points, places = [], []
    for number, cells in rows:
        places.append(f"{where}:{number}")
        if len(cells) != len(keys) or not all(cells):
            values = len(list(filter(None, cells)))
            raise SimnetError(f"{places[-1]}: {values} values: the head has {len(keys)} keys; give a value for each")
        points.append({key: read_value(cell) for key, cell in zip(keys, cells, strict=True)})
    if not points:
        raise SimnetError(f"{where}: no points: write keys in the head, and a line of values for each point")
    return point_list(points, places, where, path.parent)


def add_draws(settings: dict[str, object], draws: int | None) -> None:
    """Add the value of `--draws` to the settings of `--set`."""
    if draws is None:
        return
    if "run.draws" in settings:
        raise SimnetError("--draws: has no effect with run.draws; drop one of the two")
    settings["run.draws"] = draws


def read_value(text: str) -> object:
    """Read one value: TOML if it is a TOML number, boolean, text, list or table, else text.

    Example:
        >>> read_value("16"), read_value("10 Gbit/s"), read_value("[1, 2]")
        (16, '10 Gbit/s', [1, 2])
    """
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    except ValueError as error:  # a number that Python does not read: more than 4,300 digits
        raise SimnetError(f"{shown(text)}: {LONG_NUMBER}") from error
    check_plain(table, shown(text))
    value = table["value"]
    return value if len(table) == 1 and isinstance(value, bool | int | float | str | list | dict) else text


def read_values(text: str) -> tuple[object, ...]:
    """Read values between commas; a comma inside quotes or brackets does not separate.

    Example:
        >>> read_values("10 Gbit/s,25 Gbit/s"), read_values("[1,2],[3]")
        (('10 Gbit/s', '25 Gbit/s'), ([1, 2], [3]))
    """
    return tuple(read_value(piece.strip()) for piece in _PIECE.findall(text))


def _split(texts: Iterable[str], option: str = "--set") -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if not all(key.split(".")) or not value:
            raise SimnetError(f"{option}: {shown(text)}: write KEY=VALUE, such as cluster.num_nodes=16")
        if key in pairs:
            raise SimnetError(f"{option}: {shown(text)}: {shown(key)} set twice; drop one")
        pairs[key] = value
    return pairs
