"""What MkDocs asks while it builds the site: where pages stand, and what else belongs to it.

Pages are the files of docs/, of which `docs/README.md` is the index: its sections become the navigation, so that a page
is listed once. Files of the project that pages link to, notebooks and the explorer's page are added.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

from docs.site import notebook_pages  # noqa: E402 - found by the line above

PROJECT = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
EXPLORED = "bert_base_10gbit"
EXPLORER = "explorer.html"
ASSETS = {"iframe-worker.js": "iframe-worker/shim.js", "site.css": "site.css"}
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_HEADING = re.compile(r"^## (?P<title>.+)$|\]\((?P<page>[^)#]+\.md)\)", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Make the navigation."""
    config.nav = [{"Home": "README.md"}, *_rooms(), *_more()]
    return config


def _rooms() -> Iterator[dict[str, list[str]]]:
    """Yield the sections of the index, each with its pages."""
    rooms: dict[str, list[str]] = {}
    for found in _HEADING.finditer((DOCS / "README.md").read_text(encoding="utf-8")):
        if found["title"]:
            rooms[found["title"]] = []
        elif found["page"] not in rooms[next(reversed(rooms))]:
            rooms[next(reversed(rooms))].append(found["page"])
    for title, pages in rooms.items():
        yield {title: pages}


def _more() -> Iterator[dict[str, Any]]:
    yield {"Notebooks": [page for page, _ in _notebooks()]}
    yield {"Explorer": EXPLORER}
    yield {"Project": [f"project/{name}" for name in PROJECT]}


def _notebooks() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        yield f"notebooks/{path.stem}.md", path


def on_files(files: Any, config: Any) -> Any:
    """Add pages of the project, notebooks, the explorer's page, and what pages link to outside docs/."""
    from mkdocs.structure.files import File

    for name in PROJECT:
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(ROOT / name)))
    for page, path in _notebooks():
        text, figures = notebook_pages.page(path)
        files.append(File.generated(config, page, content=text))
        for name, data in figures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    files.append(File.generated(config, EXPLORER, content=_explorer()))
    for name, path in ASSETS.items():
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(DOCS / "site" / path)))
    for place, path in sorted(_linked(files)):
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def _explorer() -> str:
    from simnet.engine.scenario import load
    from simnet.report.explorer import explorer_page

    return explorer_page(load(EXPLORED), EXPLORED)


def _linked(files: Any) -> Iterator[tuple[str, Path]]:
    """Yield the place in the site and the path of each file that a page links to and that is no page."""
    for file in list(files.documentation_pages()):
        home = _home(file.src_uri)
        if home is None:
            continue
        for link in _LINK.finditer(home.read_text(encoding="utf-8")):
            path = _path(home, link["target"])
            if path is not None and path.is_file() and not _is_page(path):
                yield _place(path), path


def _home(src_uri: str) -> Path | None:
    """Return the file in the project that a page of the site is; notebooks are none."""
    if src_uri.startswith("notebooks/"):
        return None
    return ROOT / src_uri.removeprefix("project/") if src_uri.startswith("project/") else DOCS / src_uri


def _path(home: Path, target: str) -> Path | None:
    """Return the file of the project that a link leads to."""
    if ":" in target or target.startswith("/"):
        return None
    path = Path(os.path.normpath(home.parent / target))
    return path if path.exists() and path.is_relative_to(ROOT) else None


def _is_page(path: Path) -> bool:
    return path.suffix == ".md" and (path.is_relative_to(DOCS) or path.relative_to(ROOT).as_posix() in PROJECT)


def _place(path: Path) -> str:
    """Return where a file of the project stands in the site."""
    inner = path.relative_to(ROOT).as_posix()
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"project/{inner}" if inner in PROJECT else f"files/{inner}"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to where those files stand in the site."""
    home = _home(page.file.src_uri)
    if home is None:
        return markdown

    def led(link: re.Match[str]) -> str:
        path = _path(home, link["target"])
        if path is None:
            return link[0]
        if path.is_dir():
            return f"{link['before']}{link['target']}"
        place = os.path.relpath(_place(path), Path(page.file.src_uri).parent)
        return f"{link['before']}{place}{link['anchor'] or ''}"

    return _LINK.sub(led, markdown)
