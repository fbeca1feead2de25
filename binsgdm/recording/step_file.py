"""Write a step file (docs/reference/files.md#recorded-steps): recordings of one script in one or several worlds."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from binsgdm.files import write_file

FORMAT, VERSION = "simnet-step", 1


def write(path: Path, found: Sequence[dict[str, Any]], command: str) -> None:
    """Write what the processes found, whole or not at all.

    Args:
        path: to write to.
        found: one for each world: its "source" and its "recording".
        command: that was recorded.
    """
    document = {
        "format": FORMAT,
        "version": VERSION,
        "source": {"how": "record", "command": command, **found[0]["source"]},
        "recordings": [one["recording"] for one in found],
    }
    write_file(path, json.dumps(document, allow_nan=False) + "\n")


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Return what was found, in one line."""
    return "; ".join(_of_recording(one["recording"], one["steps"]) for one in found)


def _of_recording(recording: dict[str, Any], of_steps: dict[str, int]) -> str:
    operations = [one for stream in recording["streams"] for one in stream["operations"]]
    sent = [one for one in operations if one["kind"] != "compute"]
    ranks = recording["num_nodes"] * recording["ranks_per_node"]
    steps = recording["num_steps"]
    period = "a step" if steps == 1 else f"{steps} steps"
    seen = f"{of_steps['recorded']} of {of_steps['asked']} steps recorded"
    return f"{period} of {ranks} ranks with {len(sent)} collectives ({seen})"
