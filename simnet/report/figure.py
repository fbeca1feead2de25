"""The one look of all figures, and the one way from a figure to a file."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from msgspec import Struct, structs

from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["png", "pdf", "svg"]

# Colours of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, YELLOW = "#E69F00", "#56B4E9", "#F0E442"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
SERIES_COLOURS = (*COLOURS, "#332288", "#882255", "#999933", "#661100", "#666666", "#44AA99")
"""Of as many series as have a marker each: those above, and of Tol's muted colours what is unlike them."""
ON_DARK = (
    SKY, ORANGE, "#2FC79A", "#E59BC5", YELLOW, "#FF8A3D", "#9D92F0", "#E0709F", "#C9C95A", "#C77B66", "#AAAAAA",
    "#8FE0D0",
)  # fmt: skip
"""The same hues, light enough for a dark ground."""
TEXT_PT = 8
# Of a page's two columns, as IEEE prints them.
COLUMN_IN, PAGE_IN = 3.5, 7.16
MARKERS = "osD^vPX<>*ph"
# Parts of a step in the order of time, each with what tables and figures call it and its colour.
STEP_PARTS = {
    "forward_s": ("forward", SKY),
    "backward_s": ("backward", BLUE),
    "encode_s": ("encode", YELLOW),
    "decode_s": ("decode", GREEN),
    "exposed_comm_s": ("exposed communication", VERMILION),
    "optimizer_s": ("optimizer", "#999999"),
}
# No dates and no versions in the files: the same data give the same bytes, up to the last digits of the layout solver.
METADATA: dict[Format, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}


class FigureStyle(Struct, frozen=True, kw_only=True):
    """How figures look.

    Attributes:
        name: as users write it.
        column_in: width of a figure of one panel, before `zoom` [inches].
        page_in: width of a figure of several panels, before `zoom` [inches].
        zoom: factor on all sizes: of the figure, its text and its lines.
        has_titles: whether the title and the source stand in the figure; a paper has a caption for them.
        ink: colour of text, axes and lines that are no data.
        ground: colour behind everything.
        band: colour of a tolerance behind the data.
        others: colour of curves without a name.
        paying: colour behind the speedups that pay.
        edge_pt: width of the line between the parts of a bar [pt].
        colours: of curves, in order.
    """

    name: str
    column_in: float = COLUMN_IN
    page_in: float = PAGE_IN
    zoom: float = 1.0
    has_titles: bool = True
    ink: str = "black"
    ground: str = "white"
    band: str = "#DDDDDD"
    others: str = "#BBBBBB"
    paying: str = "#E5F3EC"
    edge_pt: float = 0.0
    colours: tuple[str, ...] = SERIES_COLOURS

    def settings(self) -> dict[Any, Any]:
        """Return matplotlib's settings."""
        text, zoom = TEXT_PT * self.zoom, self.zoom
        texts = ("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
        inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        grounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
        ticks = {"major.size": 3.5, "major.width": 0.8, "major.pad": 3.5, "minor.size": 2.0, "minor.width": 0.6}
        return {
            **dict.fromkeys(texts, text),
            **dict.fromkeys(inks, self.ink),
            **dict.fromkeys(grounds, self.ground),
            **{f"{axis}tick.{key}": size * zoom for axis in "xy" for key, size in ticks.items()},
            "axes.titlesize": text * 9 / 8,
            "axes.titleweight": "bold",
            "legend.frameon": False,
            "figure.titlesize": text * 9 / 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.linewidth": 0.8 * zoom,
            "lines.linewidth": 1.4 * zoom,
            "lines.markersize": 4.5 * zoom,
            "hatch.linewidth": 0.6 * zoom,
            "savefig.dpi": 200 if zoom == 1 else 120,
            # Text stays text of an embedded font; journals refuse fonts of type 3.
            "pdf.fonttype": 42,
            # Text of users may hold a dollar sign.
            "text.parse_math": False,
            "svg.hashsalt": "simnet",
        }


SCREEN = FigureStyle(name="screen")
PAPER = FigureStyle(name="paper", column_in=3.3, page_in=7.0, edge_pt=0.5, has_titles=False)
# A figure of several panels fills a slide of 16 by 9, with text of 18 pt.
SLIDES = FigureStyle(name="slides", column_in=4.0, page_in=6.0, zoom=13.33 / 6.0)
DARK = structs.replace(
    SLIDES, name="dark", ink="#E8E8E8", ground="#15191F", band="#3A414B", others="#6B7380", paying="#1D3A33",
    colours=ON_DARK,
)  # fmt: skip
STYLES = {style.name: style for style in (SCREEN, PAPER, SLIDES, DARK)}
_CURRENT: ContextVar[FigureStyle] = ContextVar("figure style", default=SCREEN)


def style_named(name: str) -> FigureStyle:
    """Return a style by its name."""
    if name not in STYLES:
        raise SimnetError(f"--style: {name!r}: must be one of {', '.join(STYLES)}.{did_you_mean(name, STYLES)}")
    return STYLES[name]


def current() -> FigureStyle:
    """Return the style in which figures are drawn here."""
    return _CURRENT.get()


def format_of(path: Path) -> Format:
    """Return the format of a figure's file by its ending."""
    form = path.suffix.lower().removeprefix(".")
    if form not in get_args(Format):
        raise SimnetError(f"{path}: {path.suffix!r}: a figure is a .png, .pdf or .svg file; name one")
    return cast(Format, form)


def shown(colour: str) -> str:
    """Return what a colour of the palette, or black, is in the present style."""
    style = current()
    return dict(zip((*SERIES_COLOURS, "black"), (*style.colours, style.ink), strict=True)).get(colour, colour)


@contextmanager
def styled(style: FigureStyle = SCREEN) -> Iterator[None]:
    """Draw in a style of this project; modules that import matplotlib are best imported in here, too."""
    import logging  # which tables need not load

    # At import and while it draws, matplotlib speaks of a home without a cache, and of glyphs: no concern of the user.
    logger = logging.getLogger("matplotlib")
    level, token = logger.level, _CURRENT.set(style)
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                import matplotlib as mpl
            except ImportError as error:
                raise SimnetError("figures: matplotlib is missing: figures need it; pip install matplotlib") from error
            with mpl.rc_context(style.settings()):
                yield
    finally:
        logger.setLevel(level)
        _CURRENT.reset(token)


def new(width_in: float, height_in: float) -> "Figure":
    """Return an empty figure whose parts make room for each other [inches, before the style's zoom]."""
    from matplotlib.figure import Figure

    zoom = current().zoom
    return Figure(figsize=(width_in * zoom, height_in * zoom), layout="constrained")


def thin(points: float = 0.8) -> float:
    """Return the width of a line that is no data [pt]."""
    return points * current().zoom


def image(figure: "Figure", file_format: Format = "png") -> bytes:
    """Return a figure as the contents of a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file_format, metadata=METADATA[file_format])
    return _numbered(buffer.getvalue()) if file_format == "svg" else buffer.getvalue()


def _numbered(svg: bytes) -> bytes:
    """Name clip paths by their order: matplotlib hashes their places, whose last bits differ between two layouts."""
    names = list(dict.fromkeys(re.findall(rb'clipPath id="(p[0-9a-f]{10})"', svg)))
    numbers = {name: b"clip%d" % number for number, name in enumerate(names, start=1)}
    return re.sub(rb"(?<=[\"#])p[0-9a-f]{10}(?=[\")])", lambda name: numbers.get(name[0], name[0]), svg)


def write(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of the file's ending.

    Raises:
        SimnetError: it cannot be written, or is no figure by its ending.
    """
    write_file(path, image(figure, format_of(path)))
