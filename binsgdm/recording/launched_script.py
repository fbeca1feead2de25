"""The script of a user, run in this process as `python` would."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from binsgdm.errors import BinsgdmError, shown

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun")


class LaunchedScript(NamedTuple):
    """What to run.

    Attributes:
        name: path of a script, or name of a module.
        is_module: whether it is a module.
        arguments: that it is given.
    """

    name: str
    is_module: bool
    arguments: tuple[str, ...]

    def run(self) -> None:
        """Run it."""
        before = sys.argv[:], sys.path[:]
        sys.argv = [self.name, *self.arguments]
        try:
            if self.is_module:
                sys.path.insert(0, "")
                runpy.run_module(self.name, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(self.name).resolve().parent))
                runpy.run_path(self.name, run_name="__main__")
        finally:
            sys.argv, sys.path[:] = before


def from_words(words: Sequence[str]) -> LaunchedScript:
    """Return what a command line runs: `python train.py ...`, `train.py ...`, `python -m package.train ...`.

    Raises:
        BinsgdmError: it is something else.
    """
    rest = list(words)
    first = Path(rest[0]).name if rest else ""
    if first in _LAUNCHERS:
        raise BinsgdmError(
            f"{shown(' '.join(words[:3]))}: starts processes: one is enough: simnet record -- python train.py"
        )
    if first.startswith("python"):
        rest = rest[1:]
        while rest and rest[0] in ("-u", "-O", "-B"):
            rest = rest[1:]
    if len(rest) > 1 and rest[0] == "-m":
        return LaunchedScript(rest[1], True, tuple(rest[2:]))
    if not rest or rest[0].startswith("-"):
        raise BinsgdmError(
            f"{shown(' '.join(words))}: must be a script: simnet record -- python train.py --its-options"
        )
    if not Path(rest[0]).is_file():
        raise BinsgdmError(f"{shown(rest[0])}: no such file: give the path of a script, or -m and a module")
    return LaunchedScript(rest[0], False, tuple(rest[1:]))
