"""Write a result file whole or not at all."""

import os
import tempfile
from pathlib import Path

from simnet.errors import SimnetError


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, making its folder; a reader sees the old file or the new one, never a part.

    A link is followed; a device or a pipe is written to as it is.

    Raises:
        SimnetError: the folder or the file cannot be written.
    """
    try:
        path = path.resolve()
        if is_special(path):
            path.write_bytes(data)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=".simnet-", dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(partial, 0o666 & ~_umask())  # noqa: PTH101 - mkstemp gives 0o600 and a str
        os.replace(partial, path)  # noqa: PTH105
    except OSError as error:
        Path(partial).unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def is_special(path: Path) -> bool:
    """Tell a device or a pipe, which must not be replaced, from a file or a place for one."""
    return path.exists() and not path.is_file()


def _unwritable(path: Path, error: OSError) -> SimnetError:
    return SimnetError(f"{path}: cannot be written ({error.strerror}): choose another place with -o")


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
