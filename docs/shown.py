"""Run what pages show and compare what it prints: `python docs/shown.py [--write] [PAGES...]`.

A page runs in order, in an empty folder in which `scenarios` is that of this checkout:

- A block that begins with a comment `# NAME.toml` (or py, csv) is that file, and so is one of CSV or JSON right after a
  line of text that ends in `NAME.csv`: with a colon.
- Commands stand in `console` blocks, in indented lines, and in the text as code that begins with `simnet` and has an
  argument, but no placeholder such as FILE. Code of commands and options alone names them, and must name known ones.
- Other `python` blocks between two commands are one script; one with a `model` finds a new one, on a rank of gloo.
- A `text` block right after a `console` block shows what that prints.
"""

import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parents[1]
INSTALLS = "installs: .ci/newcomer does so"
BROUGHT = "reads what a reader measured or trained"
ELSEWHERE = "needs a GPU or other machines"
SERVES = "serves until it is ended"
NOT_RUN = {
    "make ": INSTALLS,
    "python3 -m venv ": INSTALLS,
    ". .venv/": INSTALLS,
    "pip ": INSTALLS,
    "simnet advise mine.toml --time-to-target all_reduce=runs/": BROUGHT,
    "simnet measure kernels --system half_precision": "needs the package of the page: examples/plugin is one",
    "import my_systems": "needs the package of the page: examples/plugin is one",
    "dask ": SERVES,
    "simnet sweep speedup --scheduler ": ELSEWHERE,
    "import simnet\nfrom dask_jobqueue ": ELSEWHERE,
    "cd proof && sbatch ": ELSEWHERE,
    "simnet validate proof": BROUGHT,
    "simnet record --from profile.json.gz ": BROUGHT,
    "simnet record --from trace.0.et ": BROUGHT,
    "import os\nimport torch.distributed ": "is part of a script: tests/distributed/slowed.py runs it",
}
"""What is not run, by how its first line begins, and why."""
TRAINING = """
import os
import binsgdm
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

os.environ["LOCAL_WORLD_SIZE"] = "1"
nodes = ranks_per_node = 1
if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
"""
"""What a script has that a page's lines on its `model` stand in, on one rank."""
_PIECE = re.compile(
    r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$"
    r"|^ {4}(?P<line>\S(?:[^\n]*\\\n)*[^\n]*)$"
    r"|(?<!`)`(?P<code>simnet [^`]+)`(?!`)",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"# ([\w-]+\.(?:toml|py|csv))\n")
_FILE_BEFORE = re.compile(r"`([\w-]+\.(?:csv|json))`:\n\n\Z")
_PLACEHOLDER = re.compile(r"\b[A-Z]{3,}\b|\.\.\.")


class Run(NamedTuple):
    """A page with the output that its commands print now, and what failed: the reason by command."""

    text: str
    failures: dict[str, str]


def pages() -> list[Path]:
    """Return README, tutorials, how-tos, and other pages that show output."""
    written = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    rooms = (ROOT, ROOT / "docs/tutorial", ROOT / "docs/how-to")
    return [
        page
        for page in written
        if page.parent in rooms or re.search(r"^```\n+```text$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


def blocks(text: str, kind: str) -> list[str]:
    """Return the blocks of a kind, such as "console", of a page."""
    return [piece["body"] for piece in _PIECE.finditer(text) if piece["kind"] == kind]


def commands(block: str) -> list[str]:
    """Return the commands of a `console` block that are run."""
    return _run(re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE))


def printed(command: str, folder: Path) -> str:
    """Run a command in a folder and return what it prints.

    Raises:
        ValueError: it fails, or prints a traceback.
    """
    programs = f"{folder}/.venv/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or "Traceback (most recent call last)" in done.stderr:
        raise ValueError(f"{command}: ended with {done.returncode}: {done.stderr}")
    return done.stdout


def run(text: str, folder: Path) -> Run:
    """Run a page in an empty folder."""
    prepare(folder)
    # `end`: where the copied part of the page ends; `after`: where the last console block ends.
    pieces, end, output, after = [], 0, "", 0
    script = ""
    failures: dict[str, str] = {}

    def attempt(command: str) -> str:
        try:
            return printed(command, folder)
        except ValueError as error:
            failures[command] = str(error)
            return ""

    for piece in _PIECE.finditer(text):
        kind, body, shown = piece["kind"], piece["body"], _commands(piece)
        if script and shown:
            attempt(f"python - << 'END'\n{script}END")
            script = ""
        if kind == "text" and not text[after : piece.start()].strip():
            pieces += [text[end : piece.start("body")], output]
            end = piece.end("body")
        elif kind and (name := _FILE.match(body) or _FILE_BEFORE.search(text, 0, piece.start())):
            (folder / name[1]).write_text(body, encoding="utf-8")
        elif kind == "python":
            script += "".join(f"{TRAINING if 'model' in body else ''}{block}" for block in _run([body]))
        else:
            output = "".join(map(attempt, shown))
            after = piece.end()
    if script:
        attempt(f"python - << 'END'\n{script}END")
    return Run("".join([*pieces, text[end:]]), failures)


def _commands(piece: re.Match[str]) -> list[str]:
    """Return the commands that a piece of a page shows and that are run."""
    if piece["kind"]:
        return commands(piece["body"]) if piece["kind"] == "console" else []
    if piece["line"]:
        return _run([piece["line"]])
    code = " ".join(piece["code"].split())
    return [] if _PLACEHOLDER.search(code) or _names_only(code) else _run([code])


def _run(shown: list[str]) -> list[str]:
    return [body for body in shown if not body.startswith(tuple(NOT_RUN))]


def _names_only(code: str) -> bool:
    """Return whether code is a known command, or one with known options, without any argument."""
    from simnet.cli.main import cli

    command: click.Command = cli
    for word in code.split()[1:]:
        context = click.Context(command)
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None and not any(word in parameter.opts for parameter in command.get_params(context)):
            return False
        command = inner or command
    return True


def prepare(folder: Path) -> None:
    """Put `simnet` and the shipped scenarios of this checkout into a folder."""
    (folder / "scenarios").symlink_to(ROOT / "scenarios")
    simnet = folder / ".venv" / "bin" / "simnet"
    simnet.parent.mkdir(parents=True)
    simnet.write_text(f'#!/bin/sh\nexec {sys.executable} -m simnet "$@"\n', encoding="utf-8")
    simnet.chmod(simnet.stat().st_mode | stat.S_IXUSR)


def main(arguments: list[str]) -> int:
    """Print what failed and the pages whose output is stale, or with --write renew it; return how many there are."""
    stale = failed = 0
    for page in [Path(name) for name in arguments if name != "--write"] or pages():
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            renewed, failures = run(text, Path(folder))
        for reason in failures.values():
            sys.stdout.write(f"{page}: {reason}\n")
        failed += len(failures)
        if renewed != text:
            stale += 1
            sys.stdout.write(f"{page}\n")
            if "--write" in arguments:
                page.write_text(renewed, encoding="utf-8")
    return failed if "--write" in arguments else failed + stale


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
