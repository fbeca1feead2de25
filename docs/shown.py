"""Run the commands that pages show and compare what they print: `python docs/shown.py [--write] [PAGES...]`.

A page is run if it shows output, which is a `text` block right after a `console` block. Its commands run in order, in
an empty folder in which `scenarios` is that of this checkout. A `toml` or `python` block that begins with a
comment `# NAME.toml` or `# NAME.py` is that file.
"""

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_RUN = ("git ", "make ", "python3 -m venv ", ". .venv/", "pip ", "python -m pip ")
_BLOCK = re.compile(r"^```(console|text|toml|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.(?:toml|py))\n")


def pages() -> list[Path]:
    """Return the pages that show output."""
    written = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in written if re.search(r"^```\n+```text$", page.read_text(encoding="utf-8"), re.MULTILINE)]


def blocks(text: str, kind: str) -> list[str]:
    """Return the blocks of a kind, such as "console", of a page."""
    return [body for found, body in _BLOCK.findall(text) if found == kind]


def commands(block: str) -> list[str]:
    """Return the commands of a `console` block, without those that install."""
    lines = re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
    return [line for line in lines if not line.startswith(NOT_RUN)]


def printed(command: str, folder: Path) -> str:
    """Run a command in a folder and return what it prints.

    Raises:
        ValueError: it fails.
    """
    environment = {**os.environ, "PATH": f"{folder}/.venv/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(f"{command}: ended with {done.returncode}: {done.stderr}")
    return done.stdout


def current(text: str, folder: Path) -> str:
    """Return a page with the output that its commands print now."""
    prepare(folder)
    # `end`: where the copied part of the page ends; `after`: where the last console block ends.
    pieces, end, output, after = [], 0, "", 0
    for block in _BLOCK.finditer(text):
        kind, body = block.groups()
        if kind in ("toml", "python") and (name := _FILE.match(body)):
            (folder / name[1]).write_text(body, encoding="utf-8")
        elif kind == "console":
            output = "".join(printed(command, folder) for command in commands(body))
            after = block.end()
        elif kind == "text" and not text[after : block.start()].strip():
            pieces += [text[end : block.start(2)], output]
            end = block.end(2)
    return "".join([*pieces, text[end:]])


def prepare(folder: Path) -> None:
    """Put `simnet` and the shipped scenarios of this checkout into a folder."""
    (folder / "scenarios").symlink_to(ROOT / "scenarios")
    simnet = folder / ".venv" / "bin" / "simnet"
    simnet.parent.mkdir(parents=True)
    simnet.write_text(f'#!/bin/sh\nexec {sys.executable} -m simnet "$@"\n', encoding="utf-8")
    simnet.chmod(simnet.stat().st_mode | stat.S_IXUSR)


def main(arguments: list[str]) -> int:
    """Print the pages whose output is stale, or with --write renew it; return how many were stale."""
    stale = []
    for page in [Path(name) for name in arguments if name != "--write"] or pages():
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            renewed = current(text, Path(folder))
        if renewed != text:
            stale.append(page)
            sys.stdout.write(f"{page}\n")
            if "--write" in arguments:
                page.write_text(renewed, encoding="utf-8")
    return 0 if "--write" in arguments else len(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
