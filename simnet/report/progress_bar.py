"""The one progress bar: on a terminal, and in a notebook."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, in a notebook below the cell.

    Yields:
        A function of the number of further items that are done.
    """
    from rich.console import Console  # only here: a command in a pipe does not pay for it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console() if in_notebook() else Console(file=sys.stderr)
    # Commands and cells print their own output meanwhile: rich must not catch it.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def is_watched() -> bool:
    """Return whether a person sees stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def in_notebook() -> bool:
    """Return whether a notebook runs this code that can show a bar, which takes ipywidgets."""
    from importlib.util import find_spec

    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None
