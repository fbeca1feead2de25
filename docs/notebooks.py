"""Run the notebooks of `examples/notebooks` and compare what they show: `python docs/notebooks.py [--write]`.

Each runs in an empty folder, as a user's would. Text must be equal; figures must be there, since their last pixels
differ between versions of matplotlib. Notebooks may be named; else all run.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples/notebooks"
SECONDS = 300


def paths() -> list[Path]:
    """Return the notebooks, in the order of reading."""
    return sorted(FOLDER.glob("*.ipynb"))


def run(path: Path) -> Any:
    """Return a notebook with what its cells show now.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    before = dict(os.environ)
    # No window, no colours of a terminal, and this checkout.
    os.environ |= {"PYTHONPATH": str(ROOT), "PYDEVD_DISABLE_FILE_VALIDATION": "1", "NO_COLOR": "1"}
    try:
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", record_timing=False)
            client.execute(cwd=folder)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return _plain(notebook)


def _plain(notebook: Any) -> Any:
    """Return a notebook without what differs from machine to machine."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        for output in cell.get("outputs", ()):
            output.pop("metadata", None)
            if "data" in output:
                output.metadata = {}
                output.data.pop("image/svg+xml", None)
    return notebook


def shown(notebook: Any) -> Iterator[tuple[int, str, str]]:
    """Yield what a notebook shows: number of the cell, kind, and text; of a figure that there is one."""
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if "text" in output:
                yield number, output.name, output.text
            for kind, text in sorted(output.get("data", {}).items()):
                yield number, kind, "" if kind.startswith("image/") else text


def main(arguments: list[str]) -> int:
    """Compare or write the notebooks that are named, or all; return the exit code."""
    import nbformat

    writes = "--write" in arguments
    named = [Path(argument).resolve() for argument in arguments if argument != "--write"]
    stale = []
    for path in named or paths():
        renewed = run(path)
        if list(shown(renewed)) != list(shown(nbformat.read(path, as_version=4))):
            stale.append(path)
        if writes:
            nbformat.write(renewed, path)
    for path in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'written anew' if writes else 'shows something else now'}\n")
    return 0 if writes else int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
