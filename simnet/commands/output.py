"""Write what a command returns: to the terminal, or to a file that is whole or not there."""

import tempfile
from pathlib import Path

import click

from simnet.errors import SimnetError
from simnet.report.files import is_special, write_file


def check_file(path: Path | None, option: str = "-o") -> None:
    """Check that a single file can be written into a directory that is there, before anything is computed.

    Raises:
        SimnetError: it cannot.
    """
    if path is not None and not path.absolute().parent.exists():
        raise SimnetError(
            f"{path}: {str(path.parent)!r}: no such directory; make it, or name another file with {option}"
        )
    check_writable(path, option)


def check_writable(path: Path | None, option: str = "-o") -> None:
    """Check that a file can be written, before anything is computed; nothing is left behind, no directory is made.

    Raises:
        SimnetError: it cannot.
    """
    if path is None:
        return
    if path.is_dir():
        raise SimnetError(f"{path}: is a directory; name a file with {option}")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        if path.exists():
            path.open("ab").close()
        if not is_special(path):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _unwritable(path, error, option) from error


def emit(text: str, path: Path | None) -> None:
    """Print text, or write it to a file; it ends with a newline.

    Raises:
        SimnetError: it cannot be written, as on a full disk.
    """
    whole = text if text.endswith("\n") else text + "\n"
    if path is not None:
        write_file(path, whole.encode())
        return
    try:
        click.echo(whole, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable(Path("standard output"), error) from error


def _unwritable(path: Path, error: OSError, option: str = "-o") -> SimnetError:
    return SimnetError(f"{path}: cannot be written ({error.strerror}): choose another place with {option}")
