"""Read what nvidia-smi says of the cards (driver, clocks, temperature, power, processes), and change nothing."""

import csv
import math
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from binsgdm.errors import printable

# The name in card.json, and that of nvidia-smi's query.
FIELDS = {
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "memory_total_mib": "memory.total",
    "memory_used_mib": "memory.used",
    "utilization_percent": "utilization.gpu",
    "sm_clock_mhz": "clocks.sm",
    "max_sm_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "temperature_celsius": "temperature.gpu",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "persistence_mode": "persistence_mode",
    "mig_mode": "mig.mode.current",
}
# nvidia-smi answers nothing where it does not know one of the fields: then these are asked for alone.
OLDEST_FIELDS = ("name", "uuid", "driver", "memory_total_mib", "memory_used_mib")
TEXTS = {"name", "uuid", "driver", "persistence_mode", "mig_mode"}
READINGS = ("utilization_percent", "sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "power_w")
"""What changes while a part runs."""
TIMEOUT_S = 20  # without persistence mode the driver first wakes every card

Value = str | float | None
Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, kw_only=True)
class CardProcess:
    """A process that computes on a card.

    Attributes:
        uuid: of the card.
        pid: as the driver numbers it, which in a container may be another than the process itself sees.
        memory_mib: None where the driver does not tell.
    """

    uuid: str
    pid: int
    name: str
    memory_mib: float | None


def ask(arguments: Sequence[str]) -> str:
    """Return what nvidia-smi prints, or an empty string where it is missing or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def cards(ask: Ask = ask) -> list[dict[str, Value]]:
    """Return the fields of every card of this machine, in the order of nvidia-smi; None where it does not know one."""
    return _cards(ask, tuple(FIELDS)) or _cards(ask, OLDEST_FIELDS)


def _cards(ask: Ask, names: Sequence[str]) -> list[dict[str, Value]]:
    asked = ask([f"--query-gpu={','.join(FIELDS[name] for name in names)}", "--format=csv,noheader,nounits"])
    nothing: dict[str, Value] = {name: "" if name in TEXTS else None for name in FIELDS}
    return [
        nothing | {name: _value(name, text) for name, text in zip(names, row, strict=True)}
        for row in _rows(asked)
        if len(row) == len(names)
    ]


def processes(ask: Ask = ask) -> list[CardProcess]:
    """Return the processes that compute on any card."""
    asked = ask(["--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader,nounits"])
    return [
        CardProcess(uuid=uuid, pid=int(pid), name=name, memory_mib=_number(memory))
        for uuid, pid, name, memory in (row for row in _rows(asked) if len(row) == 4)
        if pid.isdecimal()
    ]


def visible(found: Sequence[dict[str, Value]], environment: Mapping[str, str] = os.environ) -> list[dict[str, Value]]:
    """Return the cards that CUDA_VISIBLE_DEVICES leaves to this process, in its order."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(found)
    visible: list[dict[str, Value]] = []
    for word in filter(None, (part.strip() for part in chosen.split(","))):
        matches = [
            card
            for number, card in enumerate(found)
            if word == str(number) or (word.startswith("GPU-") and str(card["uuid"]).startswith(word))
        ]
        if not matches:  # CUDA, too, ignores what follows an unknown card; a slice of MIG has no row of its own
            break
        visible += matches[:1]
    return visible


def readings(ask: Ask = ask) -> dict[str, Value]:
    """Return clocks, temperature, power and use of the first visible card now; empty where nobody tells."""
    found = visible(cards(ask))
    return {name: found[0][name] for name in READINGS} if found else {}


def _rows(text: str) -> list[list[str]]:
    rows = csv.reader(map(printable, text.splitlines()), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if row]


def _value(name: str, text: str) -> Value:
    if name in TEXTS:
        return "" if text.startswith("[") else text
    return _number(text)


def _number(text: str) -> float | None:
    """Return a number; None for "[N/A]", "[Not Supported]" and the like."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
