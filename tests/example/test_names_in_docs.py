"""What the pages call by its path or its dotted name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "simnet|binsgdm|evidence|examples|tests|scenarios|docs"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
DOTTED = re.compile(r"`((?:simnet|binsgdm)(?:\.\w+)+)`")
ENTRY_POINTS = {"simnet.strategies", "simnet.faults", "binsgdm.systems"}
MADE = {"simnet/_scenarios", "simnet/_templates"}
"""There only in a wheel."""


def missing(text: str) -> list[str]:
    """Return what a page calls that is not there."""
    paths = [name for name in PATH.findall(text) if name not in MADE and not (ROOT / name).exists()]
    return paths + [name for name in DOTTED.findall(text) if name not in ENTRY_POINTS and not is_there(name)]


def is_there(name: str) -> bool:
    """Tell whether a dotted name is a module, or is written in the module that it leads into."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        file = base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py"
        if file.exists():
            rest = parts[length : length + 1]
            return not rest or bool(re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")))
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_what_is_there(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []
