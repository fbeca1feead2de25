"""`simnet doctor`: what works on this machine, and what is missing for what."""

import importlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, field

from simnet.analysis.workers import num_cores
from simnet.cli import options
from simnet.cli.output import check_file, emit
from simnet.cli.terminal import say
from simnet.core import version
from simnet.core.errors import SimnetError, install
from simnet.core.parsing import parse_json
from simnet.report.rows import json_text
from simnet.report.table import Page, Table
from simnet.report.text import count_text

INSTALL_TORCH = importlib.import_module("binsgdm.errors").INSTALL_TORCH
PACKAGES = {
    "click": "8.2", "jinja2": "3.1", "matplotlib": "3.8", "msgspec": "0.19", "numpy": "1.26", "pandas": "2.1",
    "rich": "13.7", "scipy": "1.11", "simpy": "4.1", "tomli-w": "1.0",
}  # fmt: skip
"""What the simulator needs, and the least version of each, as pyproject.toml has them."""
EXTRAS = (
    ("torch", "2.4", "model, record, measure, and training with binsgdm", INSTALL_TORCH),
    ("numba", "0.60", "binsgdm's fast kernels on a CPU", INSTALL_TORCH),
    ("transformers", "4.48", "models of transformers in simnet model and measure", install("models")),
    ("plotly", "6.0", "report", install("report")),
    ("distributed", "2025.1", "sweep --scheduler and --dask-local", install("dask")),
    ("tensorboard", "2.18", "advise --time-to-target of event files", install("tensorboard")),
    ("pyarrow", "18.0", "sweep --format parquet", install("dask")),
)
"""What some commands need: package, least version, for what, and how to get it."""
PROBE = "binsgdm.bench.gpu.card"
PROBE_S = 120.0
MISSING = "-"
SHELLS = ("bash", "zsh", "fish")
NAME, VARIABLE = "simnet", "_SIMNET_COMPLETE"
"""Of the program, and of the environment's variable by which click knows that a shell asks."""


class Finding(Struct, frozen=True):
    """One thing that was looked for.

    Attributes:
        part: what it belongs to.
        name: of the thing.
        present: its version or what there is of it; "" where it is missing.
        needed_for: what needs it.
        repair: what to do where it is missing or too old; "" where it is well.
    """

    part: str
    name: str
    present: str = field(name="found")
    needed_for: str
    repair: str = ""


class Findings(Struct, frozen=True):
    """What `simnet doctor --format json` prints."""

    version: str
    findings: list[Finding]


@options.command(
    "doctor",
    help="Say what works on this machine: versions, GPUs, NCCL; and what is missing for what, "
    "with the repair. Nothing is changed. Missing extras are no mistake: the exit code is 0.",
    epilog="\b\nExamples:\n  simnet doctor\n  simnet doctor --format json -o about_this_machine.json",
)
@options.mode(
    "--completion",
    of="doctor.completion",
    metavar="SHELL",
    help="Print the script by which bash, zsh or fish completes words.",
)
@options.form("table", "json")
@options.OUTPUT
def command(form: str, output: Path | None) -> None:
    """Run `simnet doctor`."""
    check_file(output)
    rows = list(findings())
    emit(json_text(Findings(version.text(), rows)) if form == "json" else _page(rows), output)


def findings() -> Iterator[Finding]:
    """Look for everything, in the order of the page."""
    with ThreadPoolExecutor(max_workers=1) as meanwhile:
        asked = meanwhile.submit(lambda: list(_gpu()))  # importing torch takes longer than all else together
        yield from _machine()
        for name, least in PACKAGES.items():
            yield _package("simulator", name, least, "all commands", install())
        for name, least, needed_for, repair in EXTRAS:
            yield _package("extras", name, least, needed_for, repair)
        yield from asked.result()


def _page(findings: list[Finding]) -> Page:
    blocks: list[str | Table] = []
    for part in dict.fromkeys(finding.part for finding in findings):
        rows = [
            (finding.name, finding.present or MISSING, finding.needed_for, finding.repair)
            for finding in findings
            if finding.part == part
        ]
        blocks += [f"{part}:", Table(["", "found", "needed for", "what to do"], rows, indent=2), ""]
    wrong = [finding.name for finding in findings if finding.repair]
    summary = f"{count_text(len(wrong), 'thing')} missing or too old: {', '.join(wrong)}." if wrong else "All is well."
    return Page([*blocks, summary])


def _machine() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} ({platform.machine()})"
    for name, text in (("simnet", version.text()), ("Python", platform.python_version()), ("system", system)):
        yield Finding("machine", name, text, "all commands")
    yield Finding("machine", "cores", str(num_cores()), "sweeps and draws, one process a core")


def _package(part: str, name: str, least: str, needed_for: str, repair: str) -> Finding:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(part, name, "", needed_for, repair)
    if _numbers(installed) < _numbers(least):
        return Finding(part, name, installed, needed_for, f"needs {least} or newer: {repair} --upgrade")
    return Finding(part, name, installed, needed_for)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version.

    Example:
        >>> _numbers("2.13.0+cpu") > _numbers("2.4"), _numbers("0.60rc1")
        (True, (0, 60))
    """
    import re

    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


def _gpu() -> Iterator[Finding]:
    """Ask torch in a process of its own, which holds a card's memory only until it ends."""
    needed_for = "measure gpu, and training on GPUs"
    try:
        metadata.version("torch")
    except metadata.PackageNotFoundError:
        yield Finding("GPU", "GPUs", "", needed_for, "not looked for, since torch is missing")
        return
    asked = _probed()
    versions, cards = asked.get("versions", {}), asked.get("cards", [])
    if not cards:
        yield Finding("GPU", "GPUs", "", needed_for, asked.get("error") or "torch sees no GPU on this machine")
        return
    for card in cards:
        free, total = (f"{card[key] / 1e9:.1f} GB" for key in ("free_bytes", "memory_bytes"))
        about = f"{card['name']}, compute capability {card['compute_capability']}, {free} of {total} free"
        yield Finding("GPU", "GPU", about, needed_for, asked.get("error", ""))
    runtime = "rocm" if versions.get("rocm") else "cuda"
    for key, name, what, repair in (
        (runtime, "CUDA or ROCm", "all kernels on a GPU", "install torch for the GPU"),
        ("nccl", "NCCL", "communication between GPUs", "install a build of torch with NCCL"),
        ("triton", "Triton", "binsgdm's fast kernels on a GPU", "pip install triton"),
    ):
        known = str(versions.get(key, ""))
        yield Finding("GPU", name, known, what, "" if known else repair)


def _probed() -> dict[str, Any]:
    # A checkout that is run from elsewhere is on this process's path alone.
    path = os.pathsep.join(filter(None, [str(Path(version.__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", PROBE],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            check=False,
            timeout=PROBE_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"torch did not answer within {PROBE_S:.0f} s; try python -m {PROBE}"}
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"error": f"torch cannot be imported: {last[0]}"}
    about = parse_json(done.stdout, PROBE)
    assert isinstance(about, dict)
    return about


@options.command(
    "completion",
    help="Print the script by which SHELL (bash, zsh or fish) completes commands, options, scenarios and names.",
    epilog="\b\nExamples:\n  simnet doctor --completion bash >> ~/.bashrc\n"
    "  simnet doctor --completion zsh >> ~/.zshrc\n"
    "  simnet doctor --completion fish > ~/.config/fish/completions/simnet.fish",
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Run `simnet doctor --completion`."""
    from click.shell_completion import get_completion_class

    from simnet.cli.main import cli

    made = get_completion_class(shell)
    assert made is not None
    try:
        say(made(cli, {}, NAME, VARIABLE).source())
    except RuntimeError as error:
        raise SimnetError(f"completion: {shell}: {error}") from error
