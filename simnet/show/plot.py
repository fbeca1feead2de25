"""Draw the results of a sweep and write the figures to files."""

from pathlib import Path

from simnet import results_file
from simnet.errors import SimnetError
from simnet.files import write_file
from simnet.show.figure import Format, image, styled


def plot(results: Path, directory: Path, file_format: Format = "png") -> list[Path]:
    """Draw every figure for which the results have the axes, of one run what it hangs on.

    Args:
        results: The `results.json` of a sweep, or the sweep's folder, or the JSON of one run.
        directory: Where the figures go; made if it is not there.
        file_format: What the figures are written as.

    Returns:
        The files written.

    Raises:
        SimnetError: the results are damaged, empty, of another format, or of one point; or a figure cannot be
            written.
    """
    run = results_file.read_run(results)
    sweep = None if run else results_file.read(results)
    if run is not None and not run.hangs_on:
        raise SimnetError(
            f"{results}: one run without intervals: nothing to draw; simulate it with a baseline, or with --draws 200"
        )
    if sweep is not None and not sweep.varied:
        raise SimnetError(f"{results}: {len(sweep.points)} point: figures need at least two values of some key")
    with styled():
        from simnet.show.influences import tornado
        from simnet.show.layout import draw

        drawn = {"hangs_on": tornado(run)} if run is not None else {}
        drawn |= draw(sweep, where=str(results)) if sweep is not None else {}
        images = {directory / f"{name}.{file_format}": image(figure, file_format) for name, figure in drawn.items()}
    for path, contents in images.items():
        write_file(path, contents, inside=directory)
    return list(images)
