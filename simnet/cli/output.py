"""Write the output of a command: to the terminal, or to a file that is whole or not there."""

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from simnet.cli.terminal import say, tell
from simnet.core.errors import SimnetError
from simnet.core.files import file_stamp, is_special, refuse_input, write_error, write_file, write_target

if TYPE_CHECKING:
    from simnet.engine.scenario import Experiment
    from simnet.report.table import Page


def tell_of_axes(experiment: "Experiment") -> None:
    """Say on stderr that the axes of an experiment do not matter to a command that takes one point."""
    if experiment.swept_keys:
        keys = ", ".join(experiment.swept_keys)
        tell(f"note: this is one point, without the sweep over {keys}; choose another with --set")


def count_as_read(paths: Iterable[str | Path]) -> None:
    """Let no output replace these files, which are yet to be read."""
    for path in paths:
        file_stamp(Path(path))


def check_file(path: Path | None, option: str = "-o") -> None:
    """Check that a single file can be written into a directory that is there, before anything is computed."""
    if path is None:
        return
    with _system_errors_explained(path, option):
        is_there = path.absolute().parent.exists()
    if not is_there:
        raise SimnetError(
            f"{path}: {str(path.parent)!r}: no such directory; make it, or name another file with {option}"
        )
    check_writable(path, option)


def check_writable(path: Path, option: str = "-o", inside: Path | None = None) -> None:
    """Check that a file can be written, before anything is computed; nothing is left behind, no directory is made.

    Args:
        path: of the file.
        option: that named it.
        inside: the folder that no symbolic link in the path may leave; None allows any.
    """
    import tempfile  # only here: it imports much

    with _system_errors_explained(path, option):
        refuse_input(path)
        whole = write_target(path, inside)
        if whole.is_dir():
            raise SimnetError(f"{path}: is a directory; name a file with {option}")
        if is_special(whole):
            if not os.access(whole, os.W_OK):  # a pipe is not opened: its reader would see the end when it is closed
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        if whole.exists():
            whole.open("ab").close()
        folder = next(parent for parent in whole.parents if parent.exists())
        tempfile.TemporaryFile(dir=folder).close()


def check_replaceable(path: Path, inside: Path | None) -> None:
    """Check that a file of a folder can be written or replaced, and is no pipe or device."""
    check_writable(path, inside=inside)
    if is_special(path):
        raise SimnetError(f"{path}: not a regular file; remove it, or name another with -o")


def check_different(path: Path | None, other: Path | None, first: str, second: str) -> None:
    """Check that two outputs, named by two options, do not overwrite each other."""
    if path and other and path.resolve() == other.resolve():
        raise SimnetError(f"{other}: is named by {first} and by {second}; name two files")


def check_files(**paths: Path | None) -> None:
    """Check single files, named by their options (`output` is `-o`), as `check_file` does, and that they differ."""
    options = {"-o" if name == "output" else f"--{name}": path for name, path in paths.items()}
    for option, path in options.items():
        check_file(path, option)
    for (first, path), (second, other) in combinations(options.items(), 2):
        check_different(path, other, first, second)


def check_figure(path: Path | None, output: Path | None, style: str) -> None:
    """Check that a figure of a style can be written to the path of `--plot`, which must differ from the output."""
    from simnet.report.figure import SCREEN, style_named

    wanted = style_named(style)
    if path is None:
        if wanted is not SCREEN:
            raise SimnetError(f"--style: {style!r}: needs a figure; add --plot, or drop it")
        return
    check_format(path)
    check_file(path, "--plot")
    check_different(output, path, "-o", "--plot")


def check_format(path: Path | None) -> None:
    """Check that a path ends as a figure does."""
    from simnet.report.figure import format_of

    if path is not None:
        format_of(path)


def emit(text: "str | Page", path: Path | None, inside: Path | None = None) -> None:
    """Print text or a page, or write it to a file; it ends with a newline."""
    if path is None:
        say(text)
    else:
        whole = str(text)
        write_file(path, (whole if whole.endswith("\n") else whole + "\n").encode(), inside)


@contextmanager
def _system_errors_explained(path: Path, option: str) -> Iterator[None]:
    """Turn an error of the operating system about a path into one sentence."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error, option) from error
    except RuntimeError as error:  # Python 3.11 and 3.12 report links that lead in a circle so
        raise SimnetError(f"{path}: links lead in a circle; name another with {option}") from error
