"""One recording in a process of its own: `python -m binsgdm.recording.isolated_process SETTINGS`, in JSON."""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from binsgdm.errors import BinsgdmError
from binsgdm.recording.launched_script import LaunchedScript
from binsgdm.recording.recording import Recording, RecordingIsDone, usual_settings
from binsgdm.recording.single_process_world import World

FAILED, MISTAKE = 1, 2


def main(settings: dict[str, Any]) -> int:
    """Record a script, and write what was found, or the sentence that says why not, to the file that the settings name.

    Returns:
        The exit code.
    """
    world = World(num_nodes=settings["num_nodes"], ranks_per_node=settings["ranks_per_node"])
    script = LaunchedScript(settings["script"], settings["is_module"], tuple(settings["arguments"]))
    chosen = {key: settings[key] for key in ("steps", "warm_up", "runs_on", "compute", "device", "fake")}
    recording = Recording(world, usual_settings(**chosen, stops_script=True))
    found = Path(settings["found"])
    try:
        _run(recording, script)
        content = {"source": recording.source(), "recording": recording.document()}
        found.write_text(json.dumps(content), encoding="utf-8")
    except BinsgdmError as error:
        found.write_text(json.dumps({"mistake": str(error)}), encoding="utf-8")
        return MISTAKE
    except Exception as error:
        mistake = _mistake_in(error)
        if mistake is None:
            traceback.print_exc()
            mistake = f"{script.name}: failed as rank 0 of {world.size} (its error is above); correct it"
        found.write_text(json.dumps({"mistake": mistake}), encoding="utf-8")
        return FAILED
    return 0


def _run(recording: Recording, script: LaunchedScript) -> None:
    with recording.running():
        try:
            script.run()
        except (RecordingIsDone, SystemExit) as end:
            if isinstance(end, SystemExit) and end.code not in (None, 0):
                raise BinsgdmError(f"{script.name}: ended with exit code {end.code}; correct it") from end


def _mistake_in(error: BaseException | None) -> str | None:
    """Return the sentence of a mistake that torch or the script has wrapped in an error of its own."""
    while error is not None:
        if isinstance(error, BinsgdmError):
            return str(error)
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
