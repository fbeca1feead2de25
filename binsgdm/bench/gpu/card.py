"""Look at the cards and change nothing: what nvidia-smi and torch say of them, who uses them, why none can be measured.

`python -m binsgdm.bench.gpu.card` prints as JSON what torch, Triton and NCCL say: a process of its own, since one that
has looked at a card holds some of its memory until it ends.
"""

import csv
import importlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from binsgdm.bench.gpu.parts import environments
from binsgdm.errors import BinsgdmError, printable

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
"""The name in card.json, and that of nvidia-smi's query."""
# nvidia-smi answers nothing where it does not know one of the fields: then these are asked for alone.
OLDEST_FIELDS = ("name", "uuid", "driver", "memory_total_mib", "memory_used_mib")
TEXTS = {"name", "uuid", "driver", "persistence_mode", "mig_mode"}
READINGS = ("utilization_percent", "sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "power_w")
"""What changes while a part runs."""
LIMITS = ("max_sm_clock_mhz", "power_limit_w", "persistence_mode", "mig_mode")
SMI_TIMEOUT_S = 20  # without persistence mode the driver first wakes every card
PROBE_TIMEOUT_S = 180
REPAIR = "or measure what a CPU can with --device cpu --quick"
# The oldest drivers of a major version of CUDA, by NVIDIA's "minor version compatibility".
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
# What CUDA says where other processes have taken all memory, or a card is for one process at a time.
TAKEN = ("out of memory", "busy or unavailable")
BUSY_PERCENT = 10.0
BUSY_BYTES = 2 * 2**30  # more than the driver itself and an idle desktop hold

Value = str | float | None
Ask = Callable[[Sequence[str]], str]
Facts = dict[str, Any]


def ask_smi(arguments: Sequence[str]) -> str:
    """Return what nvidia-smi prints, or an empty string where it is missing or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, errors="replace", timeout=SMI_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def cards(ask: Ask = ask_smi) -> list[dict[str, Value]]:
    """Return the fields of every card of this machine, in the order of nvidia-smi; None where it does not know one."""
    for names in (tuple(FIELDS), OLDEST_FIELDS):
        if rows := _rows(ask, "gpu", [FIELDS[name] for name in names]):
            known = [dict(zip(names, row, strict=True)) for row in rows]
            return [{name: _value(name, card.get(name, "[N/A]")) for name in FIELDS} for card in known]
    return []


def processes(ask: Ask = ask_smi) -> list[Facts]:
    """Return the processes that compute on any card; the driver's pid may be another than that inside a container."""
    rows = _rows(ask, "compute-apps", ("gpu_uuid", "pid", "process_name", "used_memory"))
    return [
        {"uuid": uuid, "pid": int(pid), "name": name, "memory_mib": _value("memory_mib", memory)}
        for uuid, pid, name, memory in rows
        if pid.isdecimal()
    ]


def _rows(ask: Ask, what: str, fields: Sequence[str]) -> list[list[str]]:
    text = ask([f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = csv.reader(map(printable, text.splitlines()), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(fields)]


def _value(name: str, text: str) -> Value:
    """Return a field; nothing for "[N/A]", "[Not Supported]" and the like."""
    if name in TEXTS:
        return "" if text.startswith("[") else text
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def visible(
    all_cards: Sequence[dict[str, Value]], environment: Mapping[str, str] = os.environ
) -> list[dict[str, Value]]:
    """Return the cards that CUDA_VISIBLE_DEVICES leaves to this process, in its order."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(all_cards)
    visible: list[dict[str, Value]] = []
    for word in filter(None, (part.strip() for part in chosen.split(","))):
        matches = [
            card
            for number, card in enumerate(all_cards)
            if word == str(number) or (word.startswith("GPU-") and str(card["uuid"]).startswith(word))
        ]
        if not matches:  # CUDA, too, ignores what follows an unknown card; a slice of MIG has no row of its own
            break
        visible += matches[:1]
    return visible


def readings() -> dict[str, Value]:
    """Return clocks, temperature, power and use of the first visible card now; empty where nobody tells."""
    visible_cards = visible(cards())
    return {name: visible_cards[0][name] for name in READINGS} if visible_cards else {}


def of_card() -> Facts:
    """Look at the cards; return what card.json holds of them, see `judged`."""
    # nvidia-smi first: the probe is itself a process on the card.
    smi, others = visible(cards()), processes()
    probed = probe()
    if reason := refusal(probed, smi, os.environ, has_device=has_device()):
        raise BinsgdmError(f"--device cuda: {reason}")
    return judged(probed, smi, others)


def of_cpu() -> Facts:
    """Describe the CPU, on which the parts are tried and nothing of a card is measured."""
    from binsgdm.bench.record import hardware, software

    machine = hardware()
    card = {"name": machine["processor"] or machine["machine"], "num_cards": 0, "memory_bytes": machine["memory_bytes"]}
    notes = ["on a CPU: nothing here is a measurement of a GPU"]
    return {"card": card, "software": software(), "is_shared": False, "other_processes": [], "notes": notes}


def probe() -> Facts:
    """Return what a process of its own prints, see `probed_here`."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "binsgdm.bench.gpu.card"], capture_output=True, text=True, check=False,
            errors="replace", env=environments(0)[0], timeout=PROBE_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BinsgdmError(
            f"--device cuda: the card does not answer within {PROBE_TIMEOUT_S} s: look at nvidia-smi"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BinsgdmError(f"measure: torch cannot look at the card ({last}): install a torch that fits the driver")
    facts: Facts = json.loads(done.stdout.splitlines()[-1])
    return facts


def has_device() -> bool:
    """Tell whether a driver of NVIDIA or AMD has made a device here."""
    return any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def refusal(probed: Facts, smi: Sequence[Facts], environment: Mapping[str, str], *, has_device: bool) -> str:
    """Say why no card can be measured, or return an empty string."""
    versions, error, cards = probed["versions"], probed["error"], probed["cards"]
    if cards and not error:
        return ""
    torch = f"torch {versions['torch']}"
    hidden = next((name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in environment), "")
    # From the surest reason on: the later ones are guesses from what is missing.
    if any(words in error for words in TAKEN):
        reason = f"others hold the card ({error}): wait until they have ended"
    elif cards:
        reason = f"{torch} cannot use {cards[0]['name']} (compute capability {cards[0]['compute_capability']}): {error}"
    elif hidden and not smi and has_device:
        reason = f"{hidden}={environment[hidden]!r} hides every card: unset it"
    elif not smi and not has_device:
        reason = "no GPU: neither the driver nor torch sees one: run on a machine with a GPU"
    elif not versions["cuda"] and not versions["rocm"]:
        reason = f"{torch} is built without CUDA: install a build with CUDA"
    elif too_old := _driver_text(versions["cuda"], smi):
        reason = f"{torch} {too_old}: update the driver, or install an older build of torch"
    else:
        reason = f"{torch} sees no GPU, though a driver is there{f' ({error})' if error else ''}: look at nvidia-smi"
    return f"{reason}, {REPAIR}"


def _driver_text(cuda: str, smi: Sequence[Facts]) -> str:
    """Say that a driver is too old for a version of CUDA, or return an empty string."""
    driver = str(smi[0].get("driver") or "") if smi else ""
    major, oldest = driver.partition(".")[0], OLDEST_DRIVER.get(int(cuda.partition(".")[0] or 0), 0)
    if major.isdigit() and int(major) < oldest:
        return f"needs a driver from {oldest} on for CUDA {cuda}, and the driver here is {driver}"
    return ""


def judged(probed: Facts, smi: Sequence[Facts], others: Sequence[Facts]) -> Facts:
    """Return what is known of cards that can be measured, the first of which is described.

    With versions by name, that of the driver among them; the processes of others on these cards, and whether there
    are any; and sentences for people.
    """
    cards, versions = probed["cards"], probed["versions"]
    first = dict(smi[0]) if smi else {}
    here = [process for process in others if process["uuid"] in {card["uuid"] for card in smi}]
    sharing = _sharing(here, first)
    notes, names = [*sharing], {card["name"] for card in cards}
    if len(names) > 1:
        notes.append(f"the cards differ ({', '.join(sorted(names))}): the first one is measured")
    if reason := _triton_text(versions, str(cards[0]["compute_capability"])):
        notes.append(f"{reason}: BinSGDM runs its reference kernels, whose times are none of Triton's")
    if first.get("mig_mode") == "Enabled":
        notes.append("the card is in MIG mode: what is measured is a slice of it")
    return {
        "card": {**cards[0], "num_cards": len(cards), **({name: first[name] for name in LIMITS} if smi else {})},
        "software": {**versions, "driver": str(first.get("driver") or "")},
        "is_shared": bool(sharing),
        "other_processes": here,
        "notes": notes,
    }


def _sharing(others: Sequence[Facts], first: Facts) -> list[str]:
    repair = "series are repeated up to 4 times as often, and what stays imprecise is noted"
    if others:
        names = ", ".join(sorted({process["name"].rpartition("/")[2] or "?" for process in others}))
        memory = sum(process["memory_mib"] or 0.0 for process in others)
        return [f"others use the card ({len(others)} processes: {names}; {memory:,.0f} MiB): {repair}"]
    used, percent = (float(first.get(name) or 0) for name in ("memory_used_mib", "utilization_percent"))
    if used * 2**20 > BUSY_BYTES or percent > BUSY_PERCENT:
        return [f"others seem to use the card ({used:,.0f} MiB used, {percent:.0f} % busy): {repair}"]
    return []


def _triton_text(versions: Mapping[str, str], capability: str) -> str:
    """Say why Triton's kernels cannot run, or return an empty string."""
    from binsgdm.kernels.triton_support import LEAST_CAPABILITY, LEAST_TRITON  # which imports torch

    def is_below(version: str, least: tuple[int, ...]) -> bool:
        return tuple(map(int, re.findall(r"\d+", version)[:2])) < least

    triton = versions["triton"]
    if not triton:
        return "Triton cannot be imported"
    if is_below(triton, LEAST_TRITON):
        return f"Triton {triton} is older than {'.'.join(map(str, LEAST_TRITON))}"
    if not versions["rocm"] and is_below(capability, LEAST_CAPABILITY):
        return f"Triton needs compute capability {'.'.join(map(str, LEAST_CAPABILITY))}"
    return ""


def probed_here() -> Facts:
    """Return versions and cards as torch sees them; `error` says why it cannot use one."""
    import torch

    try:
        triton = str(importlib.import_module("triton").__version__)
    except Exception:  # a Triton that does not fit breaks in many ways
        triton = ""
    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "rocm": torch.version.hip or "",
        "triton": triton,
        "nccl": "",
    }
    answer: Facts = {"versions": versions, "cards": [], "error": ""}
    with warnings.catch_warnings(record=True) as caught:  # torch tells in a warning why it cannot use a driver
        warnings.simplefilter("always")
        if not torch.cuda.is_available():
            return answer | {"error": " ".join(str(caught[0].message).split()) if caught else ""}
    try:
        properties = list(map(torch.cuda.get_device_properties, range(torch.cuda.device_count())))
        answer["cards"] = [
            {
                "name": card.name,
                "compute_capability": f"{card.major}.{card.minor}",
                "num_multiprocessors": card.multi_processor_count,
                "l2_bytes": getattr(card, "L2_cache_size", 0),
                "memory_bytes": torch.cuda.mem_get_info(index)[1],
                "free_bytes": torch.cuda.mem_get_info(index)[0],
            }
            for index, card in enumerate(properties)
        ]
        # Builds of torch leave out old cards: only a kernel that runs shows that this card is none of them.
        torch.ones(8, device="cuda").add_(1).sum().item()
    except RuntimeError as error:
        return answer | {"error": str(error).strip().splitlines()[0]}
    from binsgdm.bench.record import nccl_version

    versions["nccl"] = nccl_version()
    return answer


if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no JSON
    print(json.dumps(probed_here()), file=out)
