"""Draw the results of a sweep and write the figures to files."""

from pathlib import Path

from simnet import results_file
from simnet.errors import SimnetError
from simnet.files import write_file
from simnet.show.figure import Format, image, styled


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
    sweep = results_file.read(results)
    if not sweep.varied:
        raise SimnetError(f"{results}: {len(sweep.points)} point: figures need at least two values of some key")
    with styled():
        from simnet.show.layout import draw

        drawn = draw(sweep, where=str(results))
        images = {directory / f"{name}.{file_format}": image(figure, file_format) for name, figure in drawn.items()}
    for path, contents in images.items():
        write_file(path, contents, inside=directory)
    return list(images)
