"""The rows of the page "What works with binsgdm": what each promises in each way to train, and what shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Column = Literal["binsgdm", "overlap", "adam", "hook"]
COLUMNS: dict[Column, str] = {
    "binsgdm": "BinSGDM",
    "overlap": "`overlap=True`",
    "adam": "1-bit Adam",
    "hook": "`compress_gradients`",
}


class Way(NamedTuple):
    """One way to train, which stands in a column of the table; the hook's has two systems."""

    column: Column
    system: str = ""

    def __str__(self) -> str:
        return f"{self.column} {self.system}".strip()


# One that keeps residuals and factors, one that draws.
WAYS = (Way("binsgdm"), Way("overlap"), Way("adam"), Way("hook", "power_sgd"), Way("hook", "qsgd"))


@dataclass(frozen=True)
class Cell:
    """What a row promises in one column.

    Attributes:
        verdict: of the test, on both ranks.
        note: for the page; of a refusal the sentence, which the message must contain.
    """

    verdict: Literal["works", "refused"]
    note: str = ""


WORKS = Cell("works")


def works(note: str) -> Cell:
    """Return a cell for what works under a condition that users have to know."""
    return Cell("works", note)


def refused(sentence: str) -> Cell:
    """Return a cell for what raises a BinsgdmError with this in its message, on all ranks."""
    return Cell("refused", sentence)


class Row(NamedTuple):
    feature: str
    cells: dict[Column, Cell]
    show: Callable[[Way], None] | None
    """Do it on every rank, and raise what is not as it should be; or a refusal."""
    test: str = ""
    """That shows the row, where `show` does not."""
    module: str = ""
    """In which it stands, a part of the page."""


ROWS: dict[str, Row] = {}


def row(feature: str, **cells: Cell) -> Callable[[Callable[[Way], None]], Callable[[Way], None]]:
    """Make a function a row of the table; what is not said of a column is that it works."""

    def decorate(show: Callable[[Way], None]) -> Callable[[Way], None]:
        ROWS[show.__name__] = Row(feature, _of_all(cells), show, module=show.__module__)
        return show

    return decorate


def row_elsewhere(module: str, name: str, feature: str, test: str, **cells: Cell) -> None:
    """Make a row of what needs processes of its own; `test` is a function of this folder's tests."""
    ROWS[name] = Row(feature, _of_all(cells), None, test, module)


def _of_all(cells: dict[str, Cell]) -> dict[Column, Cell]:
    return {column: cells.get(column, WORKS) for column in COLUMNS}
