"""The one look of all figures, and the one way from a figure to a file."""

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from simnet.errors import SimnetError
from simnet.files import write_file
from simnet.show.text import clipped, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Format = Literal["png", "pdf", "svg"]

# Colours of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, YELLOW = "#E69F00", "#56B4E9", "#F0E442"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKERS = "osD^vP"
# Parts of a step in the order of time, each with what tables and figures call it and its colour.
STEP_PARTS = {
    "forward_s": ("forward", SKY),
    "backward_s": ("backward", BLUE),
    "encode_s": ("encode", YELLOW),
    "decode_s": ("decode", GREEN),
    "exposed_comm_s": ("exposed communication", VERMILION),
    "optimizer_s": ("optimizer", "#999999"),
}
BAND_COLOUR = "#DDDDDD"
# A figure is as wide as it is printed, one or two columns of a page, so that 8 pt stay 8 pt.
COLUMN_IN, PAGE_IN = 3.5, 7.16
BAND = 0.1
LABEL_CHARACTERS = 36
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "legend.frameon": False,
    "figure.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    # Text of users may hold a dollar sign.
    "text.parse_math": False,
    "svg.hashsalt": "simnet",
}
# No dates and no versions in the files: the same data give the same bytes, up to the last digits of the layout solver.
METADATA: dict[Format, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}


def format_of(path: Path) -> Format:
    """Return the format of a figure's file by its ending.

    Raises:
        SimnetError: it has another.
    """
    found: Format | None = next((form for form in get_args(Format) if path.suffix.lower() == f".{form}"), None)
    if found is None:
        raise SimnetError(f"{path}: {path.suffix!r}: a figure is a .png, .pdf or .svg file; name one")
    return found


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of this project; modules that import matplotlib are best imported in here, too."""
    with _quiet_matplotlib():
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            yield


@contextmanager
def _quiet_matplotlib() -> Iterator[None]:
    """Keep from the user what matplotlib says at import and while it draws: of a home without a cache, of glyphs."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        logger.setLevel(level)


def new(width_in: float, height_in: float) -> "Figure":
    """Return an empty figure whose parts make room for each other [inches]."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def image(figure: "Figure", file_format: Format = "png") -> bytes:
    """Return a figure as the contents of a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, metadata=METADATA[file_format])
    return _numbered(buffer.getvalue()) if file_format == "svg" else buffer.getvalue()


def _numbered(svg: bytes) -> bytes:
    """Name clip paths by their order: matplotlib hashes their places, whose last bits differ between two layouts."""
    names = list(dict.fromkeys(re.findall(rb'clipPath id="(p[0-9a-f]{10})"', svg)))
    numbers = {name: b"clip%d" % number for number, name in enumerate(names, start=1)}
    return re.sub(rb"(?<=[\"#])p[0-9a-f]{10}(?=[\")])", lambda found: numbers.get(found[0], found[0]), svg)


def write(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of the file's ending.

    Raises:
        SimnetError: it cannot be written, or is no figure by its ending.
    """
    write_file(path, image(figure, format_of(path)))


def label(text: str, characters: int = LABEL_CHARACTERS) -> str:
    """Return text of a user, shortened for an axis or a legend."""
    return clipped(printable(text), characters)


def plain_numbers(axis: "Axis") -> None:
    """Write the numbers of an axis as people do, also on a logarithmic one: "0.5", "20"."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def log_numbers(axis: "Axis", subs: tuple[float, ...] = (1.0,)) -> None:
    """Put plain numbers on a logarithmic axis, at these multiples of the powers of ten and nowhere between."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=subs))
    plain_numbers(axis)
    axis.set_minor_formatter(NullFormatter())


def diagonal(axes: "Axes", low: float, high: float, band: float = BAND) -> None:
    """Draw the line on which predicted equals measured, with a band on both sides, and end both axes at its ends."""
    ends = [low, high]
    below, above = [end * (1 - band) for end in ends], [end * (1 + band) for end in ends]
    axes.fill_between(ends, below, above, color=BAND_COLOUR, linewidth=0, label=f"±{band * 100:g} %", zorder=0)
    axes.plot(ends, ends, color="black", linewidth=0.8, label="predicted = measured", zorder=1)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
