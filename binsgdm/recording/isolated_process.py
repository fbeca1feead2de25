"""One recording in a process of its own: `python -m binsgdm.recording.isolated_process SETTINGS`, in JSON."""

import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from binsgdm.errors import BinsgdmError
from binsgdm.files import write_file
from binsgdm.recording.recording import Recording, RecordingIsDone, usual_settings
from binsgdm.recording.single_process_world import World

MISTAKE = 2
"""Exit code where a sentence is found in place of a recording."""
SIGNALLED = 128
"""What a shell adds to the number of the signal that has ended a process."""
RUNS_ON_S = 1.0
"""How long a script may go on training after its recorded steps, so that the status of a short one is seen."""


def main(settings: dict[str, Any]) -> int:
    """Record a script, and write what was found, or the sentence that says why not, to the file that the settings name.

    What was recorded is written when the last step that is asked for has ended, whatever the script does then.

    Returns:
        The exit code: that of the script, if a step was recorded.
    """
    output = Path(settings["found"])
    try:
        return _ScriptRun(settings, output).status()
    except BinsgdmError as error:
        if not output.exists():
            output.write_text(json.dumps({"mistake": str(error)}), encoding="utf-8")
        return MISTAKE


class _ScriptRun:
    """The run of a script that is recorded."""

    def __init__(self, settings: dict[str, Any], output: Path) -> None:
        self._settings, self._output = settings, output
        world = World(num_nodes=settings["num_nodes"], ranks_per_node=settings["ranks_per_node"])
        chosen = {key: settings[key] for key in ("steps", "warm_up", "runs_on", "compute", "device", "fake")}
        self._recording = Recording(
            world,
            usual_settings(**chosen, stops_script=True),
            after_step=self._after_step,
            before_backward=self._stop_if_done,
        )
        self._completed_s = 0.0
        self._is_stopped = False

    def status(self) -> int:
        """Run the script, write the recording, and return the script's exit code."""
        with self._recording.running(), self._written_before_leaving():
            status, how = self._ended()
        if not self._output.exists():
            if how and not self._recording.num_recorded:
                raise BinsgdmError(f"{self._settings['script']}: {how}; correct it")
            self._write()
        return status

    def _ended(self) -> tuple[int, str]:
        """Run the script, and return its exit code and, if it failed, how."""
        status = 0
        try:
            run_script(self._settings["script"], self._settings["arguments"], is_module=self._settings["is_module"])
        # All that was asked for is recorded, and the script did nothing wrong.
        except RecordingIsDone:
            pass
        except SystemExit as end:
            # As Python ends itself: a text goes to stderr and means 1, and the system keeps one byte of a number.
            status = (end.code or 0) & 0xFF if end.code is None or isinstance(end.code, int) else 1
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except KeyboardInterrupt:
            status = SIGNALLED + signal.SIGINT
        except Exception as error:
            mistake = _mistake_in(error)
            if mistake is None:
                traceback.print_exc()
                return 1, f"failed as rank 0 of {self._recording.world.size} (its error is above)"
            if not self._recording.is_complete:  # else it comes after all that was asked for
                raise BinsgdmError(mistake) from error
        return status, f"ended with exit code {status}" if status else ""

    def _after_step(self) -> None:
        if "steps_done" in self._settings:
            with Path(self._settings["steps_done"]).open("ab") as file:
                file.write(b".")
        if self._recording.is_complete:
            self._write()
            self._completed_s = time.monotonic()

    def _stop_if_done(self) -> None:
        """End a script that trains on."""
        if not self._recording.is_complete or time.monotonic() - self._completed_s < RUNS_ON_S:
            return
        if self._is_stopped:  # it has caught that, and would go on for ever
            os._exit(0)
        self._is_stopped = True
        sys.stderr.write(f"{self._settings['script']}: stopped, since all steps that were asked for are recorded\n")
        raise RecordingIsDone

    @contextmanager
    def _written_before_leaving(self) -> Iterator[None]:
        """Write what was recorded before `os._exit` or SIGTERM ends this process."""
        leave, process = os._exit, os.getpid()

        def write_and_leave(status: int) -> NoReturn:
            is_own = os.getpid() == process  # and no worker that was forked
            if is_own and self._recording.num_recorded and not self._output.exists():
                self._write()
            leave(status)

        def end(number: int, _: object) -> NoReturn:
            sys.exit(SIGNALLED + number)

        before = signal.signal(signal.SIGTERM, end)
        try:
            # Scripts leave so where threads of theirs would hold up Python's own end.
            with patch.object(os, "_exit", write_and_leave):
                yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _write(self) -> None:
        """Write the recording, or why there is none, whole or not at all."""
        try:
            content = self._recording.content()
        except BinsgdmError as error:
            content = {"mistake": str(error)}
        write_file(self._output, json.dumps(content))


def run_script(script: str, arguments: Sequence[str], *, is_module: bool = False) -> None:
    """Run a script in this process as `python` would."""
    before = sys.argv[:], sys.path[:]
    sys.argv = [script, *arguments]
    try:
        if is_module:
            sys.path.insert(0, "")  # as `python -m` does
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script).resolve().parent))  # as `python script.py` does
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _mistake_in(error: BaseException | None) -> str | None:
    """Return the sentence of a mistake that torch or the script has wrapped in an error of its own."""
    while error is not None:
        if isinstance(error, BinsgdmError):
            return str(error)
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
