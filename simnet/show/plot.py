"""Draw the results of a sweep and write the figures to files."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from simnet.errors import SimnetError
from simnet.files import write_file
from simnet.show.document import read_document

Format = Literal["png", "pdf", "svg"]
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


def plot(results: Path, directory: Path, file_format: Format = "png") -> list[Path]:
    """Draw every figure for which the results have the axes.

    Args:
        results: The `results.json` of a sweep, or the sweep's folder.
        directory: Where the figures go; made if it is not there.
        file_format: What the figures are written as.

    Returns:
        The files written.

    Raises:
        SimnetError: the results are damaged, empty, of another format, or of one point; or a figure cannot be
            written.
    """
    document = read_document(results)
    if not document.varied:
        raise SimnetError(f"{results}: {len(document.points)} point: figures need at least two values of some key")
    with styled():
        from simnet.show.layout import images

        drawn = images(document, file_format, where=str(results))
    paths = {directory / f"{name}.{file_format}": image for name, image in drawn.items()}
    for path, image in paths.items():
        write_file(path, image)
    return list(paths)


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
    """Draw in the style of this project."""
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
