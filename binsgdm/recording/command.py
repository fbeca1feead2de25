"""`simnet record`: records a script in processes of their own, and imports no torch itself."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from binsgdm.errors import INSTALL_TORCH, BinsgdmError, shown
from binsgdm.options import rare
from binsgdm.recording import tape

MOST_RANKS = 1_000_000
SIGNALLED = 128
"""What a shell adds to the number of the signal that has killed a process."""
SHOWN_AFTER_S, RARELY_S = 2.0, 60.0
"""When progress is shown first, and how rarely at last where nobody watches."""
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "torchrun")


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
@rare(
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
@rare("--device", type=click.Choice(["cpu", "cuda"]), help="Where the script computes.  [default: cuda if there]")
@rare(
    "--runs-on", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True,
    help="Where the step is to run: work of side streams overlaps on a GPU; on a CPU calls wait.",
)  # fmt: skip
def record(
    words: tuple[str, ...], output: Path, force: bool, nodes: tuple[int, ...], ranks_per_node: int, **chosen: Any
) -> None:
    """Run `simnet record`."""
    if output.exists() and not force:
        raise BinsgdmError(f"{output}: exists: name another file with -o, or replace it with --force")
    if not output.parent.is_dir():
        raise BinsgdmError(f"{output}: no folder {str(output.parent)!r}: make it, or name another file with -o")
    # Every process group is a list of its ranks, which this one process makes for all.
    if max(nodes) * ranks_per_node > MOST_RANKS:
        raise BinsgdmError(
            f"--nodes {max(nodes)} --ranks-per-node {ranks_per_node}: at most {MOST_RANKS} ranks: record fewer nodes, "
            "and simulate more"
        )
    script = script_of(words)
    # Looked for and not imported: this process needs none of it, and it takes seconds.
    if importlib.util.find_spec("torch") is None:
        raise BinsgdmError(f"record: needs torch: {INSTALL_TORCH}")
    recordings, statuses = [], []
    for number in nodes:
        click.echo(f"recording as rank 0 of {number} nodes", err=True)
        recording, status = _recorded({**script, **chosen, "num_nodes": number, "ranks_per_node": ranks_per_node})
        recordings.append(recording)
        statuses.append(status)
    tape.write(output, recordings, command=" ".join([script["script"], *script["arguments"]]))
    click.echo(f"{output}: {tape.summary(recordings)}")
    if failed := next(filter(None, statuses), 0):
        click.echo(
            f"simnet: {script['script']}: {_how_it_ended(failed)} after its recorded steps: {output} is "
            "written, this command ends with that status; correct what the script does then",
            err=True,
        )
        click.get_current_context().exit(failed)


def _recorded(settings: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Record in a process of its own, since torch has one world a process.

    Returns:
        What the process has found, and the status that a shell gives to its end: that of the script.
    """
    with tempfile.TemporaryDirectory(prefix="simnet-record-") as folder:
        path, steps = Path(folder) / "found.json", Path(folder) / "steps"
        asked = settings["warm_up"] + settings["steps"]
        arguments = json.dumps(settings | {"found": str(path), "steps_done": str(steps)})
        command = [sys.executable, "-m", "binsgdm.recording.isolated_process", arguments]
        # Shown by this process: what the script prints is its own, and torch may be silent for minutes.
        with _progress(steps, asked):
            # What the script prints is not our result.
            output = subprocess.DEVNULL if sys.stderr is None else sys.stderr
            ended = subprocess.run(command, stdout=output, env=_environment(), check=False)
        # As a shell says it: Python gives a signal as a negative number.
        status = ended.returncode if ended.returncode >= 0 else SIGNALLED - ended.returncode
        if not path.exists():
            done = _num_steps(steps)
            why = "before a step was recorded: correct what the script does there"
            if done > settings["warm_up"]:
                why = f"after {done} of {asked} steps, and takes the recorded ones along: ask for fewer --steps"
            # SIGKILL is what Linux sends to a process that has taken all memory.
            memory = ", or let it need less memory (--fake)" if status == SIGNALLED + signal.SIGKILL else ""
            raise BinsgdmError(f"{settings['script']}: its process {_how_it_ended(status)} {why}{memory}")
        recording: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "mistake" in recording:
        raise BinsgdmError(recording["mistake"])
    return recording, status


def _how_it_ended(status: int) -> str:
    """Say it in words: "ended with 3", "was killed by SIGKILL"."""
    if status > SIGNALLED and status - SIGNALLED in {known.value for known in signal.Signals}:
        return f"was killed by {signal.Signals(status - SIGNALLED).name}"
    return f"ended with {status}"


@contextmanager
def _progress(steps: Path, asked: int) -> Iterator[None]:
    """Say on stderr how many steps are done, if it takes more than two seconds.

    Args:
        steps: file to which a byte is added at the end of each step.
        asked: steps to do, with those to warm up.
    """
    is_over, begin_s = threading.Event(), time.monotonic()
    is_terminal = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def show() -> None:
        next_s = SHOWN_AFTER_S
        while not is_over.wait(max(0.0, begin_s + next_s - time.monotonic())):
            line = f"{_num_steps(steps)} of {asked} steps, {next_s:.0f} s"
            # A terminal has one line, that is written anew; what else reads it gets fewer and fewer.
            click.echo(f"\r{line}\x1b[K" if is_terminal else line, err=True, nl=not is_terminal)
            next_s += 1.0 if is_terminal else min(next_s, RARELY_S)
        if is_terminal and next_s > SHOWN_AFTER_S:
            click.echo("\r\x1b[K", err=True, nl=False)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _num_steps(steps: Path) -> int:
    return steps.stat().st_size if steps.exists() else 0


def _environment() -> dict[str, str]:
    """Return the environment with this package in the path, wherever the script's process starts."""
    home = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))}


def script_of(words: Sequence[str]) -> dict[str, Any]:
    """Return what a command line runs: `python train.py ...`, `train.py ...`, `python -m package.train ...`.

    Returns:
        "script", a path or the name of a module; "is_module"; "arguments".
    """
    rest = list(words)
    is_python = Path(rest[0]).name.startswith("python") if rest else False
    if is_python:
        rest = rest[1:]
        while rest and rest[0] in ("-u", "-O", "-B"):  # options of Python that change nothing of a step
            rest = rest[1:]
    is_module = len(rest) > 1 and rest[0] == "-m"
    if is_module:
        rest = rest[1:]
    # What a launcher starts would be recorded once a rank, each as rank 0 of a world of its own.
    if rest and (rest[0] in LAUNCHER_MODULES if is_module else Path(rest[0]).name in LAUNCHERS):
        started = next((index for index, word in enumerate(rest) if word.endswith(".py")), None)
        repair = "train.py" if started is None else " ".join(rest[started:])
        raise BinsgdmError(f"{shown(' '.join(words[:3]))}: starts processes: one is enough: simnet record -- {repair}")
    if not rest or rest[0].startswith("-"):
        raise BinsgdmError(
            f"{shown(' '.join(words))}: must be a script: simnet record -- python train.py --its-options"
        )
    if not is_module and not Path(rest[0]).is_file():
        raise BinsgdmError(f"{shown(rest[0])}: no such file: give the path of a script, or -m and a module")
    return {"script": rest[0], "is_module": is_module, "arguments": rest[1:]}
