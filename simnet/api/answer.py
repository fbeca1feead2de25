"""What every answer can do: text as the command prints it, HTML for notebooks, a data frame, a figure."""

from pathlib import Path
from typing import TYPE_CHECKING

from simnet.core.arguments import File, checked
from simnet.report.page import Page

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


class Answer:
    """The answer to one question.

    `print(answer)` shows what the command of the same name prints, and a notebook shows the same as HTML.
    """

    __slots__ = ()

    def page(self) -> Page:
        """Return what the command prints: lines of text, and tables."""
        raise NotImplementedError

    def to_frame(self) -> "pandas.DataFrame":
        """Return the numbers as a pandas data frame, with units in the names of columns."""
        raise NotImplementedError

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the answer.

        Args:
            ax: axes to draw into; new ones, of a figure of their own, if it is not given.

        Returns:
            The axes that were drawn into.

        Raises:
            SimnetError: there is nothing to draw, or matplotlib is missing.
        """
        raise NotImplementedError

    def to_json(self) -> str:
        """Return what the command prints with `--format json`."""
        raise NotImplementedError

    @checked
    def write_json(self, path: File) -> None:
        """Write `to_json` to a file.

        Raises:
            SimnetError: it cannot be written.
        """
        from simnet.core.files import write_file

        write_file(Path(path), f"{self.to_json()}\n".encode())

    def __str__(self) -> str:
        """Return what the command prints in a pipe."""
        return str(self.page())

    def _repr_html_(self) -> str:
        """Return the answer for a notebook."""
        from simnet.report.answer_html import page_html

        return page_html(self.page())
