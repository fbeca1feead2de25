"""Look at the card before anything is measured: why it cannot be, what is noted, and who else uses it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binsgdm.bench.gpu import nvidia_smi
from binsgdm.bench.gpu.nvidia_smi import CardProcess, Value
from binsgdm.bench.gpu.processes import environments
from binsgdm.errors import BinsgdmError

TIMEOUT_S = 180
REPAIR = "or measure what a CPU can with --device cpu --quick"
# The oldest drivers of a major version of CUDA, by NVIDIA's "minor version compatibility".
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
# What CUDA says where other processes have taken all memory, or a card is for one process at a time.
TAKEN = ("out of memory", "busy or unavailable")
BUSY_PERCENT = 10.0
BUSY_BYTES = 2 * 2**30  # more than the driver itself and an idle desktop hold


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What was found.

    Attributes:
        card: name, compute_capability, num_cards, memory_bytes, free_bytes and others, of the first card.
        software: versions by name, with that of the driver; empty where there is none.
        others: processes of others on the cards.
        is_shared: somebody else uses a card.
        notes: sentences for people.
    """

    card: dict[str, Any]
    software: dict[str, str]
    others: tuple[CardProcess, ...] = ()
    is_shared: bool = False
    notes: tuple[str, ...] = ()


def of_card() -> Preflight:
    """Look at the cards."""
    # nvidia-smi first: the probe is itself a process on the card.
    smi, others = nvidia_smi.visible(nvidia_smi.cards()), nvidia_smi.processes()
    probed = probe()
    if reason := refusal(probed, smi, os.environ, has_device=has_device()):
        raise BinsgdmError(f"--device cuda: {reason}")
    return judged(probed, smi, others)


def of_cpu() -> Preflight:
    """Describe the CPU, on which the parts are tried and nothing of a card is measured."""
    from binsgdm.bench.record import hardware, software

    machine = hardware()
    card = {"name": machine["processor"] or machine["machine"], "num_cards": 0, "memory_bytes": machine["memory_bytes"]}
    note = "on a CPU: nothing here is a measurement of a GPU"
    return Preflight(card=card, software=software(), notes=(note,))


def probe() -> dict[str, Any]:
    """Return what a process of its own finds; see `binsgdm.bench.gpu.probe`."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "binsgdm.bench.gpu.probe"], capture_output=True, text=True, check=False,
            errors="replace", env=environments(0)[0], timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BinsgdmError(
            f"--device cuda: the card does not answer within {TIMEOUT_S} s: look at nvidia-smi"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BinsgdmError(f"measure: torch cannot look at the card ({last}): install a torch that fits the driver")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def has_device() -> bool:
    """Tell whether a driver of NVIDIA or AMD has made a device here."""
    return any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))


def refusal(
    probed: Mapping[str, Any],
    smi: Sequence[Mapping[str, Value]],
    environment: Mapping[str, str],
    *,
    has_device: bool,
) -> str:
    """Say why no card can be measured, or return an empty string."""
    if probed["cards"] and not probed["error"]:
        return ""
    versions, error, cards = probed["versions"], probed["error"], probed["cards"]
    torch = f"torch {versions['torch']}"
    hidden = next((name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in environment), "")
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


def judged(probed: Mapping[str, Any], smi: Sequence[Mapping[str, Value]], others: Sequence[CardProcess]) -> Preflight:
    """Return what is known of cards that can be measured."""
    cards, versions = probed["cards"], probed["versions"]
    first = dict(smi[0]) if smi else {}
    mine = {card["uuid"] for card in smi}
    here = tuple(process for process in others if process.uuid in mine)
    sharing = _sharing(here, first)
    notes, names = [*sharing], {card["name"] for card in cards}
    if len(names) > 1:
        notes.append(f"the cards differ ({', '.join(sorted(names))}): the first one is measured")
    if reason := _triton_text(versions, str(cards[0]["compute_capability"])):
        notes.append(f"{reason}: BinSGDM runs its reference kernels, whose times are none of Triton's")
    if first.get("mig_mode") == "Enabled":
        notes.append("the card is in MIG mode: what is measured is a slice of it")
    limits = {
        name: first[name] for name in ("max_sm_clock_mhz", "power_limit_w", "persistence_mode", "mig_mode") if smi
    }
    software = {**versions, "driver": str(first.get("driver") or "")}
    return Preflight(
        card={**cards[0], "num_cards": len(cards), **limits},
        software=software,
        others=here,
        is_shared=bool(sharing),
        notes=tuple(notes),
    )


def _triton_text(versions: Mapping[str, str], capability: str) -> str:
    """Say why Triton's kernels cannot run, or return an empty string."""
    from binsgdm.kernels import triton_support  # which imports torch

    found = versions["triton"]
    if not found:
        return "Triton cannot be imported"
    if _numbers(found) < triton_support.LEAST_TRITON:
        return f"Triton {found} is older than {'.'.join(map(str, triton_support.LEAST_TRITON))}"
    if not versions["rocm"] and _numbers(capability) < triton_support.LEAST_CAPABILITY:
        return f"Triton needs compute capability {'.'.join(map(str, triton_support.LEAST_CAPABILITY))}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _sharing(others: Sequence[CardProcess], first: Mapping[str, Value]) -> list[str]:
    repair = "series are repeated up to 4 times as often, and what stays imprecise is noted"
    if others:
        names = ", ".join(sorted({process.name.rpartition("/")[2] or "?" for process in others}))
        memory = sum(process.memory_mib or 0.0 for process in others)
        return [f"others use the card ({len(others)} processes: {names}; {memory:,.0f} MiB): {repair}"]
    used, percent = (float(first.get(name) or 0) for name in ("memory_used_mib", "utilization_percent"))
    if used * 2**20 > BUSY_BYTES or percent > BUSY_PERCENT:
        return [f"others seem to use the card ({used:,.0f} MiB used, {percent:.0f} % busy): {repair}"]
    return []


def _driver_text(cuda: str, smi: Sequence[Mapping[str, Value]]) -> str:
    """Say that a driver is too old for a version of CUDA, or return an empty string."""
    driver = str(smi[0].get("driver") or "") if smi else ""
    major, oldest = driver.partition(".")[0], OLDEST_DRIVER.get(int(cuda.partition(".")[0] or 0), 0)
    if major.isdigit() and int(major) < oldest:
        return f"needs a driver from {oldest} on for CUDA {cuda}, and the driver here is {driver}"
    return ""
