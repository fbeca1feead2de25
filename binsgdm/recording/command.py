"""The command line of `simnet record`; torch is imported in the processes that record."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from binsgdm.errors import BinsgdmError
from binsgdm.recording import step_file
from binsgdm.recording.launched_script import LaunchedScript, from_words

MOST_RANKS = 1_000_000


class _Counts(click.ParamType[tuple[int, ...]]):
    """Whole numbers above 0, separated by commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers, smallest first."""
        if isinstance(value, tuple):
            return value
        words = str(value).split(",")
        if not all(word.strip().isdecimal() and 0 < int(word) <= MOST_RANKS for word in words):
            self.fail(f"{value!r}: write whole numbers above 0, such as 4 or 4,8", param, ctx)
        return tuple(sorted({int(word) for word in words}))


@click.command(
    "record",
    help="Record the training steps of a script, run as rank 0 of a cluster that is not there, in one process.\n\n"
    "SCRIPT is run as it is. Its process group answers every collective at once, and notes it: bytes, dtype, group, "
    "and what waits for it. Work between collectives is timed on a GPU, counted in FLOPs and bytes elsewhere. What is "
    "written is a step for strategy = { kind = \"recorded\", file = \"step.json\" }.\n\n"
    "With two numbers of nodes the script runs twice, and other numbers follow from what changes between the two.",
    epilog="\b\nExamples:\n  simnet record -- python train.py --batch 16\n"
    "  simnet record --nodes 4,8 --ranks-per-node 8 -o step.json -- train.py\n"
    "  simnet record --steps 32 -- python -m package.local_sgd\n"
    "  simnet show step.json",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)  # fmt: skip
@click.argument("words", nargs=-1, required=True, metavar="-- SCRIPT [ARGUMENTS]...")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default="step.json", show_default=True, help="File for the step."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--nodes", type=_Counts(), default=(2, 4), help="Numbers of nodes to record.  [default: 2,4]")
@click.option(
    "--ranks-per-node", type=click.IntRange(1, MOST_RANKS), default=8, show_default=True, help="Ranks on each node."
)
@click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    help="Optimizer steps to record: twice as many as a period has, such as that of local SGD.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(0, 10_000),
    default=2,
    show_default=True,
    help="Steps before: DDP forms its buckets anew after the first one.",
)
@click.option(
    "--compute",
    type=click.Choice(["counted", "timed"]),
    help="Count work, or time it on this machine.  [default: timed on a GPU, else counted]",
)
@click.option(
    "--fake", is_flag=True, help="Give tensors shapes and no memory, for a model that does not fit on this machine."
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Where the script computes.  [default: cuda if there]"
)
@click.option(
    "--runs-on", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True,
    help="Where the step is to run: work of side streams overlaps on a GPU; on a CPU calls wait.",
)  # fmt: skip
def record(  # noqa: PLR0913, PLR0917 - one argument an option
    words: tuple[str, ...], output: Path, force: bool, nodes: tuple[int, ...], ranks_per_node: int, steps: int,
    warm_up: int, compute: str | None, device: str | None, fake: bool,
    runs_on: str,
) -> None:  # fmt: skip
    """Run `simnet record`."""
    if output.exists() and not force:
        raise BinsgdmError(f"{output}: exists: name another file with -o, or replace it with --force")
    if not output.parent.is_dir():
        raise BinsgdmError(f"{output}: no folder {str(output.parent)!r}: make it, or name another file with -o")
    if max(nodes) * ranks_per_node > MOST_RANKS:
        raise BinsgdmError(
            f"--nodes {max(nodes)} --ranks-per-node {ranks_per_node}: at most {MOST_RANKS} ranks: record fewer nodes, "
            "and simulate more"
        )
    script = from_words(words)
    chosen = {
        "steps": steps,
        "warm_up": warm_up,
        "runs_on": runs_on,
        "compute": compute,
        "device": device,
        "fake": fake,
    }
    found = [
        _recorded(script, {**chosen, "num_nodes": number, "ranks_per_node": ranks_per_node})
        for number in _announced(nodes)
    ]
    step_file.write(output, found, command=" ".join([script.name, *script.arguments]))
    click.echo(f"{output}: {step_file.summary(found)}")


def _announced(nodes: tuple[int, ...]) -> Iterator[int]:
    for number in nodes:
        click.echo(f"recording as rank 0 of {number} nodes", err=True)
        yield number


def _recorded(script: LaunchedScript, settings: dict[str, Any]) -> dict[str, Any]:
    """Record in a process of its own, since torch has one world a process.

    Raises:
        BinsgdmError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="simnet-record-") as folder:
        path = Path(folder) / "found.json"
        given = settings | {
            "script": script.name, "is_module": script.is_module, "arguments": script.arguments, "found": str(path)
        }  # fmt: skip
        # What the script prints is not our result.
        command = [sys.executable, "-m", "binsgdm.recording.isolated_process", json.dumps(given)]
        ended = subprocess.run(command, stdout=sys.stderr, env=_environment(), check=False)
        if not path.exists():
            raise BinsgdmError(f"{script.name}: its process ended with {ended.returncode} before a step was recorded")
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "mistake" in found:
        raise BinsgdmError(found["mistake"])
    return found


def _environment() -> dict[str, str]:
    """Return the environment with this package in the path, wherever the script's process starts."""
    home = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))}
