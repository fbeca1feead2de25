"""Damaged files of every kind, through the real commands: a sentence, never a traceback, and no file is lost.

SIMNET_MUTATIONS sets how many files of each kind are tried (else as many as the profile of Hypothesis has examples, but
40 at most), SIMNET_SEED where the draws begin.
"""

import json
import os
import random
import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import settings

from simnet.cli.main import cli
from simnet.cli.output import LINE
from tests.helpers.file_kinds import KINDS, NEED_MORE, Kind
from tests.helpers.mutations import VALUES, damaged_bytes
from tests.helpers.scenario_samples import pod, write

NUM = int(os.environ.get("SIMNET_MUTATIONS", min(settings.default.max_examples, 40)))
SEED = int(os.environ.get("SIMNET_SEED", "1"))
# Beyond these, a damaged file makes a command run away.
SECONDS, MEMORY = 60, 8 * 2**30


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what runs away in time or memory."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    before = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        resource.setrlimit(resource.RLIMIT_AS, before)


def ran(args: list[str]) -> Result:
    with bounded():
        return CliRunner().invoke(cli, args, prog_name="simnet")


def faults(result: Result, args: list[str]) -> Iterator[str]:
    """Yield what is wrong with the answer of a command."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        yield "".join(traceback.format_exception(result.exception))
    may_be_1 = args[0] == "validate"
    if result.exit_code not in ({0, 1, 2} if may_be_1 else {0, 2}):
        yield f"exit code {result.exit_code}"
    if not all(line.isprintable() for line in result.output.split("\n")):
        yield f"control characters: {result.output!r}"
    refusals = [line for line in result.stderr.splitlines() if line.startswith("simnet: ")]
    if (result.exit_code == 2) != (len(refusals) == 1) or any(len(line) > LINE for line in refusals):
        yield f"not one line of a refusal: {result.stderr!r}"
    if any(" - at `" in line or "Expected `" in line for line in refusals):
        yield f"words of a library: {refusals}"


def left(folder: Path, is_refused: bool) -> Iterator[str]:
    """Yield what a command has left that it should not have."""
    for path in folder.rglob("*"):
        if path.name.startswith(".simnet-"):
            yield f"half-written: {path}"
    made = [path for path in (folder / "new").rglob("*") if path.is_file() and path.name != "points.sqlite"]
    if is_refused and made:
        yield f"refused, and wrote {made}"


def laid_out(kind: Kind, data: bytes, folder: Path) -> Path:
    """Make a folder with a file and what stands beside it, go there, and return the file."""
    (folder / "new").mkdir(parents=True)
    (path := folder / kind.name).parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    for name, content in kind.others.items():
        write(folder / name, content)
    os.chdir(folder)
    return path


def tried(kind: Kind, rng: random.Random, folder: Path) -> Iterator[str]:
    """Damage a file, run a command on it, and yield what went wrong."""
    data = kind.damaged(rng)
    path = laid_out(kind, data, folder)
    args = rng.choice(kind.commands).split()
    result = ran(args)
    defects = [*faults(result, args), *left(folder, result.exit_code == 2)]
    if path.read_bytes() != data and (result.exit_code == 2 or kind.name != "out/points.sqlite"):
        defects.append("the input was changed")
    yield from (f"simnet {' '.join(args)}: {data[:3000]!r}\n{fault}" for fault in defects)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_in_a_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(NUM):
        seed = f"{kind} {SEED} {number}"
        defects = list(tried(KINDS[kind], random.Random(seed), tmp_path / str(number)))
        assert not defects, f"{seed}: {defects[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - NEED_MORE))
def test_a_whole_file_is_read_by_every_command(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, command in enumerate(KINDS[kind].commands):
        laid_out(KINDS[kind], KINDS[kind].content(), tmp_path / str(number))
        result = ran(command.split())
        assert result.exit_code == 0, f"simnet {command}: {result.output}"


def test_a_damaged_setting_is_read_or_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pod.toml", pod())
    keys = [
        "cluster", "cluster.num_nodes", "cluster.inter_node.bandwidth", "workload.forward", "strategy", "strategy.kind",
        "run.steps", "calibration", "sweep", "name", "x", "", "a..b", "cluster.slow_nodes", "baseline",
    ]  # fmt: skip
    for number in range(4 * NUM):
        rng = random.Random(f"set {SEED} {number}")
        value = rng.choice([json.dumps(rng.choice(VALUES)), str(rng.choice(VALUES))])
        text = f"{rng.choice(keys)}={value}"
        if rng.random() < 0.5:
            text = damaged_bytes(text.encode("utf-8", "replace"), rng).decode("utf-8", "replace").replace("\0", "")
        args = [rng.choice(["simulate", "sweep"]), "pod.toml", "--set", text]
        defects = list(faults(ran(args), args))
        assert not defects, f"set {SEED} {number}: {text[:2000]!r}\n{defects[0]}"
