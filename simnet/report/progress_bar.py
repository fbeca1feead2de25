"""The one progress bar: on a terminal, and in a notebook."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Progress = bool | Callable[[int], object]
"""True: a bar on a terminal or in a notebook; a function: called with the number of items done; False: nothing."""


@contextmanager
def progress(total: int, label: str, wanted: Progress = True) -> Iterator[Callable[[int], object]]:
    """Show a bar where a person sees it: on stderr, in a notebook below the cell.

    Args:
        total: at which the bar is full; nothing is shown for 0.
        label: the work, such as "simulating".
        wanted: whether a bar is shown, or a function that is called in its place.

    Yields:
        A function of the number of further items that are done.
    """
    if callable(wanted):
        yield wanted
        return
    is_notebook = _is_notebook()
    if not wanted or not total or not (is_notebook or (sys.stderr is not None and sys.stderr.isatty())):
        yield lambda _: None
        return
    from rich.console import Console  # only here: a command in a pipe does not pay for it
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console() if is_notebook else Console(file=sys.stderr)
    # Commands and cells print their own output meanwhile: rich must not catch it.
    with Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


def watched(items: Sequence[Item], label: str = "predicting", wanted: Progress = True) -> Iterator[Item]:
    """Yield items, with a bar of how many are done."""
    with progress(len(items), label, wanted) as advance:
        for item in items:
            yield item
            advance(1)


def _is_notebook() -> bool:
    """Return whether a notebook runs this code that can show a bar, which takes ipywidgets."""
    from importlib.util import find_spec

    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None
