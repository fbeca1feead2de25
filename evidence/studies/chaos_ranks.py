"""Run plans of `chaos` one after the other: `python -m evidence.studies.chaos_ranks SEED...`; a line of JSON for each.

Ranks are forked from this process, which has torch and has started no thread. Each runs a training script as people
write it, until what befalls the victim.
"""

import gc
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from binsgdm.comm import failure
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from evidence.studies.chaos import STEPS, Case, Plan, plan

LONGEST_S = 60.0
"""Of a run, after which whatever is left counts as hung."""
GRACE_S = 4.0
"""For which a survivor may take longer than the timeout: to find out who is gone, and to end."""
SAVE_EVERY = 3


class MishapError(Exception):
    """What the victim's script raises."""


def work(rank: int, plan: Plan, folder: Path, port: int) -> None:
    """Train as one rank until something ends it; leave what that was in a file."""
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(plan.ranks_per_node)
    if not plan.store_at_rank_0:
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # as torchrun sets it
    if plan.are_hosts_apart:
        failure._host = lambda: rank + 1
    timeout = timedelta(seconds=plan.timeout_s)
    try:
        store = connect(port, has_store=plan.store_at_rank_0 and rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=plan.world_size, timeout=timeout)
        train(rank, plan, folder, timeout)
    except Exception as error:
        note(folder / f"told.{rank}", type=type(error).__name__, text=str(error))
        raise
    note(folder / f"told.{rank}", type="", text="")


def connect(port: int, *, has_store: bool) -> dist.TCPStore:
    """Return the store, which another process may still have to start."""
    starts = timedelta(seconds=30)
    while True:
        try:
            return dist.TCPStore("127.0.0.1", port, None, is_master=has_store, wait_for_workers=False, timeout=starts)
        except RuntimeError:
            if has_store:
                raise
            time.sleep(0.01)


def train(rank: int, plan: Plan, folder: Path, timeout: timedelta) -> None:
    """Take steps, and save a checkpoint after every third."""
    ddp, parts = build(plan.case, timeout)
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        befalls = Befalls(plan, folder) if rank == plan.victim and step == plan.step else None
        if befalls and befalls.now(ddp):
            continue
        samples = torch.randn(4, 12, generator=generator)
        parts["optimizer"].zero_grad()
        loss = ddp(samples).square().mean()
        loss.backward()
        if befalls:
            befalls.at("before the step")
        parts["optimizer"].step()
        if befalls:
            befalls.at("after the step")
        if (step + 1) % SAVE_EVERY == 0 or (befalls and plan.kind == "full disk"):
            state = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
            if befalls:
                befalls.fill_disk(state)
            torch.save(state, folder / f"{rank}.{step}.pt")


def build(case: Case, timeout: timedelta) -> tuple[DistributedDataParallel, dict[str, Any]]:
    """Return a small DDP model, and what a checkpoint holds."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 8)),
        bucket_cap_mb=0.003,  # several buckets, so that a rank can be lost between two exchanges of a step
    )
    return ddp, {"model": ddp, **attached(ddp, case, sgd_lr=0.01, bucket_cap_mb=0.003, timeout=timeout)}


def attached(
    ddp: DistributedDataParallel, case: Case, *, sgd_lr: float, bucket_cap_mb: float, **more: Any
) -> dict[str, Any]:
    """Let a model exchange as a case says; return the optimizer, and the exchange if it is not the optimizer's."""
    options = dict(case.options)
    if case.called == "compress_gradients":
        exchange = compress_gradients(ddp, **options, **more)
        return {"optimizer": torch.optim.SGD(ddp.parameters(), lr=sgd_lr), "exchange": exchange}
    if case.called == "OneBitAdam":
        adam = OneBitAdam(ddp.parameters(), **options)
        attach_one_bit_adam(adam, ddp, **more)
        return {"optimizer": adam}
    optimizer = binsgdm.BinSGDM(ddp.parameters(), rounding=options.pop("rounding", "random"))
    binsgdm.attach(optimizer, ddp, bucket_cap_mb=bucket_cap_mb, **options, **more)
    return {"optimizer": optimizer}


class Befalls:
    """What happens to the victim in one step."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder

    def _note(self) -> None:
        note(self._folder / "befell", pid=os.getpid())

    def now(self, ddp: DistributedDataParallel) -> bool:
        """Begin; return whether the step is to be skipped."""
        kind = self._plan.kind
        if kind in {"kill", "stop"}:
            number = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
            threading.Timer(self._plan.delay_s, self._send, [number]).start()
        if kind == "skip":
            self._note()
            return True
        self.at("before forward")
        ddp.module[-1].register_forward_hook(lambda *_: self.at("in forward"))
        ddp.module[2].weight.register_hook(lambda _: self.at("in backward"))
        return False

    def _send(self, number: int) -> None:
        self._note()
        os.kill(os.getpid(), number)

    def at(self, place: str) -> None:
        """Raise, if it is here."""
        if self._plan.kind == "raise" and self._plan.place == place:
            self._note()
            raise MishapError(place)

    def fill_disk(self, state: dict[str, Any]) -> None:
        """Let files of this process end at a share of the bytes that a checkpoint needs."""
        if self._plan.kind == "full disk":
            trial = self._folder / "trial"
            torch.save(state, trial)
            num_bytes = trial.stat().st_size
            trial.unlink()
            self._note()
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(self._plan.share * num_bytes), resource.RLIM_INFINITY))


def note(path: Path, **what: Any) -> None:
    """Leave a note with the time: monotonic, which all processes of a machine share."""
    path.write_text(json.dumps({"at_s": time.monotonic(), **what}))


# One process starts all ranks.


def prepare() -> None:
    """Make this process ready to be forked into ranks: load the kernels; no backward, which would start threads."""
    for make in (binsgdm.BinSGDM, lambda parameters: OneBitAdam(parameters, dense_steps=1)):
        value = torch.nn.Parameter(torch.zeros(64))
        optimizer = make([value])
        for _ in range(3):
            value.grad = torch.ones(64)
            optimizer.step()
    # Ranks end in a quarter of the time when they need not take apart what they never used.
    gc.collect()
    gc.freeze()


def run(plan: Plan) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="chaos"))
    store = None if plan.store_at_rank_0 else fork(lambda: keep_store(port), folder / "store.log")
    children = {
        fork(lambda rank=rank: work(rank, plan, folder, port), folder / f"{rank}.log"): rank
        for rank in range(plan.world_size)
    }
    ended, hung = wait(children, plan)
    if store is not None:
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
    outcome = judge(plan, folder, ended, hung)
    # In no finally: the children leave through here, too.
    if os.environ.get("CHAOS_KEEP"):
        print(folder, file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def keep_store(port: int) -> None:
    """Have the store, as torchrun's agent has it: a process that no fault befalls."""
    _store = dist.TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False)
    time.sleep(10 * LONGEST_S)


def fork(task: Callable[[], None], log: Path) -> int:
    """Start a process that does the work and ends as a script does; return its id."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.setpgid(0, 0)  # a Ctrl-C is for the process that judges
        try:
            task()
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            sys.exit(1)
        sys.exit(0)
    return child


def wait(children: dict[int, int], plan: Plan) -> tuple[dict[int, tuple[float, int]], list[int]]:
    """Wait until all ranks have ended, but a stopped one, which is killed when the others have.

    Returns:
        By rank, when it ended [s] and its exit code (negative: the signal); and the ranks that never ended.
    """
    left, ended, start = dict(children), {}, time.monotonic()
    while left and time.monotonic() - start < LONGEST_S:
        for child, rank in list(left.items()):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                ended[rank] = time.monotonic(), os.waitstatus_to_exitcode(status)
                del left[child]
        if plan.kind == "stop" and list(left.values()) == [plan.victim]:
            break
        time.sleep(0.005)
    hung = [rank for rank in left.values() if not (plan.kind == "stop" and rank == plan.victim)]
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return ended, hung


def judge(plan: Plan, folder: Path, ended: dict[int, tuple[float, int]], hung: list[int]) -> dict[str, Any]:
    """Return what a run found: how each survivor ended, and whether that is as it has to be."""
    befell = json.loads((folder / "befell").read_text())["at_s"] if (folder / "befell").exists() else None
    survivors = []
    for rank in range(plan.world_size):
        if rank == plan.victim and plan.kind != "skip":
            continue
        path = folder / f"told.{rank}"
        last = json.loads(path.read_text()) if path.exists() else {"at_s": None, "type": None, "text": None}
        ended_s, code = ended.get(rank, (None, None))
        times = {"told_s": last.pop("at_s"), "ended_s": ended_s}
        since = {name: None if at_s is None or befell is None else at_s - befell for name, at_s in times.items()}
        survivors.append({"rank": rank, "code": code, **since, **last})
    torn, unsound = checkpoints(folder)
    faults = [f"rank {rank} hangs" for rank in hung] + ["nothing befell"] * (befell is None)
    faults += [f"checkpoint {name} is torn and was loaded" for name in unsound]
    of_survivors = {each["rank"]: fault_of(plan, each) for each in survivors if each["rank"] not in hung}
    return {
        "seed": plan.seed,
        "kind": plan.kind,
        "case": plan.case.name,
        "world": [plan.world_size, plan.ranks_per_node],
        "victim": plan.victim,
        "store_at_rank_0": plan.store_at_rank_0,
        "are_hosts_apart": plan.are_hosts_apart,
        "survivors": survivors,
        "hung": hung,
        "torn": torn,
        "unsound": unsound,
        "faults": faults + [f"rank {rank}: {fault}" for rank, fault in of_survivors.items() if fault],
    }


def fault_of(plan: Plan, survivor: dict[str, Any]) -> str:
    """Return what is not as it has to be with one survivor, whose sentence begins with the rank that is gone."""
    text, seconds = survivor["text"], survivor["told_s"]
    if text is None or survivor["code"] not in {0, 1}:
        return f"ended with {survivor['code']}, text {text!r}"
    if not text:
        return "" if plan.kind == "skip" and survivor["rank"] == plan.victim else "noticed nothing"
    is_right = survivor["type"] == "BinsgdmError" and "\n" not in text
    if not is_right or re.match(rf"{plan.case.called}: rank {plan.victim}\b", text) is None:
        return f"{survivor['type']}: {text.splitlines()[0]}"
    return f"took {seconds:.1f} s" if seconds is not None and seconds > plan.timeout_s + GRACE_S else ""


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


if __name__ == "__main__":
    prepare()
    for seed in sys.argv[1:]:
        print(json.dumps(run(plan(int(seed)))), flush=True)
