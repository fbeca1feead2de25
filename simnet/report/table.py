"""The output of a command: a page of lines and tables; a table for a terminal, Markdown, CSV or HTML."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, Literal

from msgspec import Struct

from simnet.report.text import WIDTH, printable

Align = Literal["left", "right"]
Row = tuple[str, ...]
GAP, EDGES = 3, 2
"""Characters between two columns of a drawn table, and at its sides."""
FOLDED = 16
"""Characters to which a longer cell may be folded."""
VERDICT_STYLES = {
    "pays": "green", "within uncertainty": "yellow", "kernels not timed": "yellow", "convergence unknown": "yellow",
    "misses or": "red", "does not pay": "red",
}  # fmt: skip
"""By how a verdict begins, the first that fits."""


class Column(Struct, frozen=True):
    """What stands above a column and how its cells are laid out.

    Attributes:
        title: several lines where it has line breaks.
        align: side at which the cells stand.
        unit: of all cells; shown behind the title in brackets.
        width: characters in plain text; 0 takes those of the longest cell.
        gap: spaces before the column in plain text; the first column has none.
        cell: how it is written of what a row is about, of columns that `Table.of` fills.
    """

    title: str
    align: Align = "left"
    unit: str = ""
    width: int = 0
    gap: int = 2
    cell: Callable[[Any], str] = str

    @property
    def head(self) -> str:
        """Title with unit, such as "time [ms]"."""
        return f"{self.title} [{self.unit}]" if self.unit else self.title

    def padded(self, cell: str, longest: int) -> str:
        """Return a cell as wide as the column; one longer than a fixed width pushes the rest of its line."""
        return f"{cell:{'>' if self.align == 'right' else '<'}{self.width or longest}}"


class Table:
    """Columns, and rows with one cell each; numbers come formatted, by `simnet.core.units` and `simnet.report.text`.

    Example:
        >>> table = Table([Column("nodes", "right"), Column("speedup", "right")], [("2", "1.50x"), ("16", "3.00x")])
        >>> print(table.terminal())
        nodes  speedup
            2    1.50x
           16    3.00x
        >>> print(table.markdown())
        | nodes | speedup |
        |---:|---:|
        | 2 | 1.50x |
        | 16 | 3.00x |
    """

    def __init__(self, columns: Iterable[Column | str], rows: Iterable[Iterable[str]], indent: int = 0) -> None:
        """Make a table.

        Args:
            columns: a mere title stands for a column of text.
            rows: each with a cell for each column.
            indent: spaces before each line of plain text.

        Raises:
            ValueError: a row has more or fewer cells than there are columns.
        """
        made = tuple(Column(column) if isinstance(column, str) else column for column in columns)
        cells = tuple(tuple(row) for row in rows)
        if wrong := [row for row in cells if len(row) != len(made)]:
            raise ValueError(f"rows: {wrong[0]!r}: must have {len(made)} cells, one for each column")
        self.columns: Final[tuple[Column, ...]] = made
        self.rows: Final[tuple[Row, ...]] = cells
        self.indent: Final = indent

    @classmethod
    def of(cls, columns: Iterable[Column], about: Iterable[Any], indent: int = 0) -> "Table":
        """Return a table with a row for each of these, whose cells the columns write.

        Example:
            >>> columns = Column("number"), Column("square", "right", cell=lambda one: str(one**2))
            >>> print(Table.of(columns, [2, 12]).terminal())
            number  square
            2            4
            12         144
        """
        made = tuple(columns)
        return cls(made, ([column.cell(thing) for column in made] for thing in about), indent)

    def terminal(self, width: int = WIDTH, *, rich: bool = False) -> str:
        """Return the table as plain text, or drawn with rich for a terminal of this width."""
        return self._drawn(width) if rich else "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines of plain text, without spaces at their ends."""
        heads = [column.head.split("\n") for column in self.columns]
        above = [row for row in zip_longest(*heads, fillvalue="") if any(row)]
        grid = [[printable(cell) for cell in row] for row in (*above, *self.rows)]
        longest = [max(map(len, column)) for column in zip(*grid, strict=True)]
        for row in grid:
            cells = [column.padded(cell, most) for column, cell, most in zip(self.columns, row, longest, strict=True)]
            gaps = [self.indent, *(column.gap for column in self.columns[1:])]
            yield "".join(" " * gap + cell for gap, cell in zip(gaps, cells, strict=True)).rstrip()

    def within(self, width: int) -> "Iterator[Table | str]":
        """Yield tables of plain text no wider than this where columns allow it, each with the first column."""
        cells = zip((column.head for column in self.columns), *self.rows, strict=True)
        longest = [max(map(len, column)) for column in cells]
        for chosen in _blocks(longest, [0, *(column.gap for column in self.columns[1:])], width):
            yield from (self._of(chosen), "")

    def _of(self, chosen: list[int]) -> "Table":
        rows = (tuple(row[number] for number in chosen) for row in self.rows)
        return Table([self.columns[number] for number in chosen], rows)

    def markdown(self) -> str:
        """Return a table of GitHub's Markdown."""
        rules = "".join("---:|" if column.align == "right" else "---|" for column in self.columns)
        head, *body = (f"| {' | '.join(map(_markdown, row))} |" for row in (self._heads, *self.rows))
        return "\n".join([head, f"|{rules}", *body])

    def csv(self) -> str:
        """Return the table as CSV, its columns named in the first line."""
        import csv  # here and below: `simnet simulate` shall start fast

        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self._heads, *self.rows])
        return text.getvalue()

    def html(self) -> str:
        """Return an HTML table with everything escaped."""
        head, *body = (
            "".join(self._html(row, tag)) for row, tag in ((self._heads, "th"), *((r, "td") for r in self.rows))
        )
        rows = "\n".join(f"<tr>{row}</tr>" for row in body)
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"

    @property
    def _heads(self) -> Row:
        return tuple(column.head.replace("\n", " ") for column in self.columns)

    def _html(self, row: Row, tag: str) -> Iterator[str]:
        from html import escape

        for column, cell in zip(self.columns, row, strict=True):
            style = ' style="text-align: right"' if column.align == "right" else ""
            yield f"<{tag}{style}>{escape(printable(cell))}</{tag}>"

    def _drawn(self, width: int) -> str:
        """Return the table for a terminal; one too wide for it in several blocks, each with the first column."""
        # So that no word is broken but for one as wide as the terminal.
        widths = [self._least_width(number) for number in range(len(self.columns))]
        blocks = _blocks(widths, [GAP] * len(widths), width - EDGES)
        return "\n\n".join(self._block(chosen, width) for chosen in blocks)

    def _longest(self, number: int) -> int:
        """Return the characters of the longest cell of a column."""
        return max(len(self._heads[number]), *(len(printable(row[number])) for row in self.rows), 0)

    def _least_width(self, number: int) -> int:
        """Return the characters that a column needs: its longest cell, or if that can be folded its longest word."""
        cells = [self._heads[number], *(printable(row[number]) for row in self.rows)]
        words = max((len(word) for cell in cells for word in cell.split()), default=0)
        return min(self._longest(number), max(words, FOLDED))

    def _widths(self, chosen: list[int], width: int) -> list[int | None]:
        """Return the characters of the columns of a block: what is free goes to those that would fold.

        None leaves a width to rich: there is a word as wide as the terminal.
        """
        widths = [self._least_width(number) for number in chosen]
        free = width - EDGES - GAP * len(chosen) - sum(widths)
        if free < 0:
            return [None] * len(chosen)
        for place, number in enumerate(chosen):
            more = min(free, self._longest(number) - widths[place])
            widths[place] += more
            free -= more
        return list(widths)

    def _block(self, chosen: list[int], width: int) -> str:
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_header=any(self._heads))
        for number, characters in zip(chosen, self._widths(chosen, width), strict=True):
            column = self.columns[number]
            grid.add_column(Text(_lines(column.head)), justify=column.align, overflow="fold", width=characters)
        for row in self.rows:
            # As Text, since brackets are no markup.
            grid.add_row(*(Text(printable(row[number]), style=_style(row[number])) for number in chosen))
        console = Console(file=io.StringIO(), force_terminal=True, width=width)
        console.print(grid)
        lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
        return "\n".join(lines).strip("\n")


class Page:
    """Lines of text and tables, in order.

    Example:
        >>> print(Page(["All times:", "", Table(["step", "time"], [("forward", "1 ms")])]))
        All times:
        <BLANKLINE>
        step     time
        forward  1 ms
    """

    def __init__(self, blocks: Iterable[str | Table]) -> None:
        """Take tables, and text line by line."""
        self.blocks = tuple(blocks)

    def __str__(self) -> str:
        """Return plain text that steers no terminal, without empty lines at its ends."""
        return self._text(WIDTH, rich=False)

    def drawn(self, width: int) -> str:
        """Return the page for a terminal of this width [characters], its tables drawn with rich."""
        return self._text(width, rich=True)

    def _text(self, width: int, *, rich: bool) -> str:
        texts = (
            block.terminal(width, rich=rich) if isinstance(block, Table) else printable(block).rstrip()
            for block in self.blocks
        )
        return "\n".join(texts).strip("\n")


def _blocks(widths: Sequence[int], gaps: Sequence[int], width: int) -> list[list[int]]:
    """Return the numbers of the columns that stand side by side in a width, the first column in every block."""
    blocks = [[0]]
    for number in range(1, len(widths)):
        if sum(widths[place] + gaps[place] for place in (*blocks[-1], number)) > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(number)
    return blocks


def _style(cell: str) -> str:
    """Return the colour of a cell in a terminal: that of a verdict, which says the same in words."""
    return next((style for start, style in VERDICT_STYLES.items() if cell.startswith(start)), "")


def _lines(text: str) -> str:
    """Return text fit for a terminal, its line breaks kept."""
    return "\n".join(map(printable, text.split("\n")))


def _markdown(cell: str) -> str:
    return printable(cell).replace("|", "\\|")
