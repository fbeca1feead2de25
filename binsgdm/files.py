"""Write a file whole or not at all."""

import os
import stat
import tempfile
from pathlib import Path

from binsgdm.errors import BinsgdmError


def write_file(path: Path, text: str) -> None:
    """Write text to a new file next to `path`, and rename it to `path` when it is on the disk."""
    path = path.resolve()
    partial = ""
    try:
        handle, partial = tempfile.mkstemp(prefix=".measure-", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        # A new file may be read by all, a replaced one by those who could before; mkstemp gives 0o600.
        os.chmod(partial, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)  # noqa: PTH101 - a str
        os.replace(partial, path)  # noqa: PTH105
    except OSError as error:
        if partial:
            Path(partial).unlink(missing_ok=True)
        raise BinsgdmError(f"{path}: cannot be written ({error.strerror}); name another file with -o") from error
