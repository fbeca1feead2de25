"""Run the commands of the page of figures, and look at what they draw: `python docs/gallery.py [--write]`.

They run in order in an empty folder; `figures/run/breakdown.png` there is `figures/run_breakdown.png` beside the page.
Without --write, figures must have the pixels' number of those that are there: their last pixels differ between versions
of matplotlib.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import shown  # noqa: E402 - found by the line above

PAGE = ROOT / "docs/how-to/figures.md"
_IMAGE = re.compile(r"!\[[^\]]+\]\((figures/\w+\.png)\)")
PNG_SIZE = slice(16, 24)
"""Bytes of width and height in a PNG (ISO/IEC 15948, 11.2.2)."""


def figures() -> list[Path]:
    """Return the figures of the page, in its order."""
    return [PAGE.parent / name for name in _IMAGE.findall(PAGE.read_text(encoding="utf-8"))]


def drawn(folder: Path) -> dict[Path, Path]:
    """Run the page's commands in a folder, and return what was drawn for each figure.

    Raises:
        ValueError: a command fails.
    """
    shown.prepare(folder)
    for block in shown.blocks(PAGE.read_text(encoding="utf-8"), "console"):
        for command in shown.commands(block):
            shown.printed(command, folder)
    made = {path.relative_to(folder / "figures"): path for path in (folder / "figures").rglob("*.png")}
    named = {"_".join(name.parts): path for name, path in made.items()}
    return {figure: named[figure.name] for figure in figures()}


def main(arguments: list[str]) -> int:
    """Write the figures, or compare them; return how many differ."""
    with tempfile.TemporaryDirectory() as name:
        images = drawn(Path(name))
        if "--write" in arguments:
            for figure, path in images.items():
                figure.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, figure)
            return 0
        different = [
            figure.name
            for figure, path in images.items()
            if not figure.exists() or figure.read_bytes()[PNG_SIZE] != path.read_bytes()[PNG_SIZE]
        ]
    for figure in different:
        sys.stdout.write(f"{figure}: differs; python docs/gallery.py --write\n")
    return len(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
