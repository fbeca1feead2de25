"""What the tests of pages read in Markdown: links, anchors, words."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = {"out", "node_modules", "dist", "build"}
FENCED = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1\s*?$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def pages(folder: Path = ROOT) -> list[Path]:
    """Return every page of the repository, without what tools have made or installed."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        # An environment alone holds thousands of folders.
        folders[:] = [name for name in folders if not name.startswith(".") and name not in LEFT_OUT]
        found += (Path(parent, name) for name in names if name.endswith(".md") and not name.startswith("."))
    return sorted(found)


def links(text: str) -> Iterator[str]:
    """Yield the targets of the links of a page, those of code left out, and those of other sites."""
    for match in LINK.finditer(INLINE.sub("``", FENCED.sub("", text))):
        target = match[1] or match[2]
        if not re.match(r"[a-z][a-z+.-]*:", target):
            yield target


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    names = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in HEADING.findall(FENCED.sub("", text)):
        slug = slug_of(heading)
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names


def slug_of(heading: str) -> str:
    """Return GitHub's anchor of a heading: lower case, no punctuation but - and _, a hyphen for each space."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    missing = []
    for link in links(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        is_there = target.exists()
        if is_there and anchor and target.suffix == ".md":
            is_there = anchor in anchors(target.read_text(encoding="utf-8"))
        missing += [] if is_there else [link]
    return missing


def reachable(start: Path) -> set[Path]:
    """Return the pages that links lead to from a page, itself included."""
    found, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page.read_text(encoding="utf-8"))}
        new = {target for target in targets if target.suffix == ".md" and target.exists()} - found
        found |= new
        waiting += new
    return found


def first_sentence(text: str) -> str:
    """Return how a page begins after its title."""
    body = re.sub(r"\A(?:\s*<!--.*?-->)?\s*#\s[^\n]*\n", "", text, flags=re.DOTALL)
    return " ".join(body.split())[:200]


def num_words(text: str) -> int:
    """Return the words of a page without its blocks of code."""
    return len(FENCED.sub("", text).split())
