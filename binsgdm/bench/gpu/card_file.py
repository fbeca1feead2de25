"""card.json: what a folder of measurements was measured on, and how far each part has come."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from binsgdm.bench.gpu.preflight import Preflight
from binsgdm.errors import BinsgdmError

NAME = "card.json"
WHAT = "simnet card"
FORMAT = 1
# What must be equal for a run to go on with what a folder holds.
SAME = ("device", "quick")
SAME_CARD = ("name", "compute_capability")
SAME_SOFTWARE = ("torch", "triton", "driver")
TWO_DRIVERS = "parts were measured with two versions of the driver"


class CardFile:
    """The content of card.json, written whole after every change.

    Attributes:
        content: as written.
    """

    def __init__(self, folder: Path, found: Preflight, *, device: str, quick: bool) -> None:
        from binsgdm.bench.record import command

        self._path = folder / NAME
        self.content: dict[str, Any] = {
            "what": WHAT,
            "format": FORMAT,
            "created": _now(),
            "command": command(),
            "device": device,
            "quick": quick,
            "card": found.card,
            "software": found.software,
            "is_shared": found.is_shared,
            "other_processes": [asdict(process) for process in found.others],
            "notes": list(found.notes),
            "parts": {},
        }

    def go_on_from(self, former: dict[str, Any]) -> None:
        """Take over the parts of a former run; a note says if its driver was another of the same major version.

        Raises:
            BinsgdmError: it was of another card, other versions, or another device.
        """
        drivers = [content["software"].get("driver") or "" for content in (former, self.content)]
        for names, tables in ((SAME, ()), (SAME_CARD, ("card",)), (SAME_SOFTWARE, ("software",))):
            before, now = former, self.content
            for table in tables:
                before, now = before[table], now[table]
            for name in names:
                is_near = name == "driver" and _major(drivers[0]) == _major(drivers[1]) != ""
                if before.get(name) != now.get(name) and not is_near:
                    raise BinsgdmError(
                        f"{self._path}: {name}: was measured with {before.get(name)!r}, and here is {now.get(name)!r}: "
                        "all parts of a folder are of one card: name another folder with -o, or add --force"
                    )
        self.content["notes"] += [note for note in former.get("notes") or () if note.startswith(TWO_DRIVERS)]
        if drivers[0] != drivers[1]:
            self.content["notes"].append(f"{TWO_DRIVERS}: {drivers[0]} before, {drivers[1]} from {_now()} on")
        self.content["created"] = former["created"]
        self.content["parts"] = former["parts"]

    def set_part(self, name: str, **state: Any) -> None:
        """Note how far a part is, and write the file."""
        self.content["parts"][name] = state
        self.write()

    def write(self) -> None:
        """Write the file; a reader sees what was there before, or all of it.

        Raises:
            BinsgdmError: it cannot be written.
        """
        from binsgdm.files import write_file

        write_file(self._path, json.dumps(self.content, indent=1) + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _major(driver: str) -> str:
    """Return the major version of a driver; an empty string where it is unknown."""
    return driver.partition(".")[0]


def read(folder: Path) -> dict[str, Any] | None:
    """Return the content of card.json; None where there is none.

    Raises:
        BinsgdmError: it is damaged, or of a newer version.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_known = content["what"] == WHAT and all(
            isinstance(content[key], dict) for key in ("card", "software", "parts")
        )
        is_known = is_known and "created" in content and isinstance(content["format"], int)
    except (OSError, ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        raise BinsgdmError(f"{path}: is no card.json of simnet measure gpu: name another folder with -o, or remove it")
    found: dict[str, Any] = content
    if found["format"] > FORMAT:
        raise BinsgdmError(f"{path}: format: {found['format']}: this version reads up to {FORMAT}: update binsgdm")
    return found
