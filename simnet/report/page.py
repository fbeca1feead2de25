"""The output of a command: lines and tables, plain in a pipe or a file, drawn in a terminal."""

from collections.abc import Iterable

from simnet.report.table import Table
from simnet.report.text import WIDTH, printable


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
