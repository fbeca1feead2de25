"""What every answer can do: text as the command prints it, HTML for notebooks, a data frame, a figure."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from simnet.core.arguments import File, checked
from simnet.core.errors import SimnetError
from simnet.report.table import Page

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from simnet.report.chart import Chart
    from simnet.report.rows import Field

SIZE_IN = (6.4, 3.6)
"""Of a figure that nobody has given axes for."""


class Shown(Struct, frozen=True, kw_only=True):
    """How an answer is shown, each a function of the answer.

    Attributes:
        line: in one line.
        page: as the command prints it.
        rows: of its data frame.
        chart: what is drawn of it.
        fields: which the command prints as JSON.
        legend: options of the chart's legend.
    """

    line: Callable[[Any], str]
    page: Callable[[Any], Page]
    rows: Callable[[Any], Iterable[Mapping[str, object]]]
    chart: "Callable[[Any], Chart]"
    fields: "Iterable[Field]" = ()
    legend: Mapping[str, object] = {}


class Answer:
    """The answer to one question.

    `print(answer)` shows what the command of the same name prints, and a notebook shows the same as HTML.
    """

    __slots__ = ()

    def _shown(self) -> Shown:
        """Return how an answer of this kind is shown; what draws and writes is loaded here, not with the answer."""
        raise NotImplementedError

    def page(self) -> Page:
        """Return what the command prints: lines of text, and tables."""
        return self._shown().page(self)

    def to_frame(self) -> "pandas.DataFrame":
        """Return the numbers as a pandas data frame, with units in the names of columns."""
        from simnet.report.frame import frame_of

        return frame_of(self._shown().rows(self))

    @checked
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the answer.

        Args:
            ax: axes to draw into; new ones, of a figure of their own, if it is not given.

        Returns:
            The axes that were drawn into.

        Raises:
            SimnetError: there is nothing to draw, or matplotlib is missing.
        """
        shown = self._shown()
        return _drawn(ax, shown.chart(self), shown.legend)

    def to_json(self) -> str:
        """Return what the command prints with `--format json`."""
        from simnet.report.rows import json_text, row_of

        return json_text(row_of(self._shown().fields, self))

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

    def __repr__(self) -> str:
        """Return the answer in one line."""
        return f"{type(self).__name__}({self._shown().line(self)})"

    def _repr_html_(self) -> str:
        """Return the answer for a notebook."""
        from simnet.report.answer_html import page_html

        return page_html(self.page())


def _drawn(ax: "Axes | None", chart: "Chart", legend: Mapping[str, object]) -> "Axes":
    """Draw a chart into axes, which are made in the project's look where none are given."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise SimnetError("plot: matplotlib is missing: a figure needs it; pip install matplotlib") from error
    from simnet.report.chart_matplotlib import add_legend, draw
    from simnet.report.figure import styled

    # Loads the backend, which in a notebook turns interactive on: inside of `styled` that would be undone at its end,
    # and no further figure would be shown.
    pyplot.draw_if_interactive()  # type: ignore[no-untyped-call]
    with styled():
        axes = pyplot.subplots(figsize=SIZE_IN, layout="constrained")[1] if ax is None else ax
        draw(axes, chart)
        add_legend(axes, [chart], **legend)
    return axes
