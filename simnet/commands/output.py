"""Write what a command returns: to the terminal, or to a file that is whole or not there."""

import tempfile
from pathlib import Path

import click

from simnet.errors import SimnetError


def check_writable(path: Path | None) -> None:
    """Check that a file can be written, before anything is computed; nothing is left behind.

    Raises:
        SimnetError: it cannot.
    """
    if path is None:
        return
    if path.is_dir():
        raise SimnetError(f"{path}: is a directory; name a file with -o")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        if path.exists():
            path.open("ab").close()
        if _is_plain(path):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _unwritable(path, error) from error


def emit(text: str, path: Path | None) -> None:
    """Print text, or write it to a file; it ends with a newline.

    Raises:
        SimnetError: the disk is full.
    """
    try:
        _emit(text if text.endswith("\n") else text + "\n", path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(path or Path("standard output"), error) from error


def _emit(whole: str, path: Path | None) -> None:
    if path is None:
        click.echo(whole, nl=False)
    elif _is_plain(path):
        from simnet.report.files import write_file

        write_file(path.resolve(), whole.encode())
    else:
        path.write_text(whole)


def _unwritable(path: Path, error: OSError) -> SimnetError:
    return SimnetError(f"{path}: cannot be written ({error.strerror}): choose another place with -o")


def _is_plain(path: Path) -> bool:
    """Tell a file, or a place for one, from a device or a pipe, which must not be replaced."""
    return path.is_file() or not path.exists()
