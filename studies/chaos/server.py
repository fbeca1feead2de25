"""Run plans one after the other: ranks are forked from this process, which has torch and has started no thread.

Reads seeds, a line each, and answers each with a line of JSON.
"""

import gc
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from studies.chaos import ranks
from studies.chaos.plan import GRACE_S, Plan, plan

LONGEST_S = 60.0
"""Of a run, after which whatever is left counts as hung."""


def warm() -> None:
    """Load the kernels; no backward, which would start threads that a fork loses."""
    for make in (binsgdm.BinSGDM, lambda given: OneBitAdam(given, dense_steps=1)):
        value = torch.nn.Parameter(torch.zeros(64))
        optimizer = make([value])
        for _ in range(3):
            value.grad = torch.ones(64)
            optimizer.step()


def prepare() -> None:
    """Make this process ready to be forked into ranks."""
    warm()
    # Ranks end in a quarter of the time when they need not take apart what they never used.
    gc.collect()
    gc.freeze()


def serve() -> None:
    """Answer seeds until there are no more."""
    prepare()
    for line in sys.stdin:
        print(json.dumps(run(plan(int(line)))), flush=True)


def run(one: Plan) -> dict[str, Any]:
    """Start the ranks of a plan, wait for their end, and judge."""
    folder, port = Path(tempfile.mkdtemp(prefix="chaos")), free_port()
    store = None if one.store_at_rank_0 else fork(lambda: keep_store(port), folder / "store.log")
    children = {
        fork(lambda rank=rank: ranks.work(rank, one, folder, port), folder / f"{rank}.log"): rank
        for rank in range(one.world_size)
    }
    ended, hung = wait(children, one)
    if store is not None:
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
    found = judge(one, folder, ended, hung)
    # In no finally: the children leave through here, too.
    if os.environ.get("CHAOS_KEEP"):
        print(folder, file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def keep_store(port: int) -> None:
    """Have the store, as torchrun's agent has it: a process that no fault befalls."""
    _store = dist.TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False)
    time.sleep(10 * LONGEST_S)


def fork(work: Callable[[], None], log: Path) -> int:
    """Start a process that does the work and ends as a script does; return its id."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.setpgid(0, 0)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            sys.exit(1)
        sys.exit(0)
    return child


def wait(children: dict[int, int], one: Plan) -> tuple[dict[int, tuple[float, int]], list[int]]:
    """Wait until all ranks have ended, but a stopped one, which is killed when the others have.

    Returns:
        By rank, when it ended [s] and its exit code (negative: the signal); and the ranks that never ended.
    """
    left, ended, start = dict(children), {}, time.monotonic()
    while left and time.monotonic() - start < LONGEST_S:
        for child, rank in list(left.items()):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                ended[rank] = time.monotonic(), os.waitstatus_to_exitcode(status)
                del left[child]
        if one.kind == "stop" and list(left.values()) == [one.victim]:
            break
        time.sleep(0.005)
    hung = [rank for rank in left.values() if not (one.kind == "stop" and rank == one.victim)]
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return ended, hung


def judge(one: Plan, folder: Path, ended: dict[int, tuple[float, int]], hung: list[int]) -> dict[str, Any]:
    """Return what a run found: how each survivor ended, and whether that is as it has to be."""
    befell = json.loads((folder / "befell").read_text())["at_s"] if (folder / "befell").exists() else None
    survivors = []
    for rank in range(one.world_size):
        if rank == one.victim and one.kind != "skip":
            continue
        path = folder / f"told.{rank}"
        told = json.loads(path.read_text()) if path.exists() else {"at_s": None, "type": None, "text": None}
        times = {"told_s": told.pop("at_s"), "ended_s": ended[rank][0] if rank in ended else None}
        since = {
            name: at_s - befell if at_s is not None and befell is not None else None for name, at_s in times.items()
        }
        code = ended[rank][1] if rank in ended else None
        survivors.append({"rank": rank, "code": code, **since, **told})
    torn, unsound = checkpoints(folder)
    return {
        "seed": one.seed,
        "kind": one.kind,
        "case": one.case.name,
        "world": [one.world_size, one.ranks_per_node],
        "victim": one.victim,
        "store_at_rank_0": one.store_at_rank_0,
        "are_hosts_apart": one.are_hosts_apart,
        "survivors": survivors,
        "hung": hung,
        "torn": torn,
        "unsound": unsound,
        "faults": faults(one, survivors, hung, unsound, befell),
    }


def faults(
    one: Plan, survivors: list[dict[str, Any]], hung: list[int], unsound: list[str], befell: float | None
) -> list[str]:
    """Return what is not as it has to be."""
    found = [f"rank {rank} hangs" for rank in hung] + ["nothing befell"] * (befell is None)
    found += [f"checkpoint {name} is torn and was loaded" for name in unsound]
    of_survivors = {each["rank"]: fault_of(one, each) for each in survivors if each["rank"] not in hung}
    return found + [f"rank {rank}: {fault}" for rank, fault in of_survivors.items() if fault]


def fault_of(one: Plan, survivor: dict[str, Any]) -> str:
    """Return what is not as it has to be with one survivor; empty if nothing."""
    text, seconds = survivor["text"], survivor["told_s"]
    if text is None or survivor["code"] not in {0, 1}:
        return f"ended with {survivor['code']}, text {text!r}"
    if not text:
        return "" if one.kind == "skip" and survivor["rank"] == one.victim else "noticed nothing"
    is_sentence = survivor["type"] == "BinsgdmError" and "\n" not in text
    if not is_sentence or not text.startswith(f"{one.case.called}: ") or not names(text, one.victim):
        return f"{survivor['type']}: {text.splitlines()[0]}"
    return f"took {seconds:.1f} s" if seconds is not None and seconds > one.timeout_s + GRACE_S else ""


def names(text: str, victim: int) -> bool:
    """Tell whether a sentence says first of all that this rank is the one that is gone."""
    return re.match(rf"\w+: rank {victim}\b", text) is not None


def checkpoints(folder: Path) -> tuple[int, list[str]]:
    """Load all checkpoints; return how many are torn and refused, and the names of those torn and taken."""
    torn, unsound = 0, []
    for path in sorted(folder.glob("*.pt")):
        try:
            state = torch.load(path)
        except Exception:  # whatever torch says of half a file
            torn += 1
            continue
        if "step" not in state or state["step"] != int(path.stem.split(".")[1]):
            unsound.append(path.name)
    return torn, unsound


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    serve()
