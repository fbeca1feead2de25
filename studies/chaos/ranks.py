"""What a rank of a run does: a training script as people write it, and what befalls the victim."""

import json
import os
import resource
import signal
import threading
import time
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
from studies.chaos.plan import STEPS, Case, Plan

SAVE_EVERY = 3
STARTS = timedelta(seconds=30)


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
    try:
        store = connect(port, has_store=plan.store_at_rank_0 and rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=plan.world_size, timeout=timeout_of(plan))
        train(rank, plan, folder)
    except Exception as error:
        note(folder / f"told.{rank}", type=type(error).__name__, text=str(error))
        raise
    note(folder / f"told.{rank}", type="", text="")


def timeout_of(plan: Plan) -> timedelta:
    """Return the timeout of every collective."""
    return timedelta(seconds=plan.timeout_s)


def connect(port: int, *, has_store: bool) -> dist.TCPStore:
    """Return the store, which another process may still have to start."""
    while True:
        try:
            return dist.TCPStore("127.0.0.1", port, None, is_master=has_store, wait_for_workers=False, timeout=STARTS)
        except RuntimeError:
            if has_store:
                raise
            time.sleep(0.01)


def train(rank: int, plan: Plan, folder: Path) -> None:
    """Take steps, and save a checkpoint after every third."""
    ddp, parts = build(plan.case, timeout_of(plan))
    generator = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        befalls = Befalls(plan, folder, step) if rank == plan.victim and step == plan.step else None
        if befalls and befalls.now():
            continue
        samples = torch.randn(4, 12, generator=generator)
        parts["optimizer"].zero_grad()
        if befalls:
            befalls.at("before forward")
            befalls.inside(ddp)
        loss = ddp(samples).square().mean()
        loss.backward()
        if befalls:
            befalls.at("before the step")
        parts["optimizer"].step()
        if befalls:
            befalls.at("after the step")
        if (step + 1) % SAVE_EVERY == 0 or (befalls and plan.kind == "full disk"):
            save(folder / f"{rank}.{step}.pt", step, parts, befalls)


def build(case: Case, timeout: timedelta) -> tuple[DistributedDataParallel, dict[str, Any]]:
    """Return a small DDP model, and what a checkpoint holds."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(
        nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 8)),
        bucket_cap_mb=0.003,
    )
    options = dict(case.options)
    if case.called == "compress_gradients":
        exchange = compress_gradients(ddp, options.pop("system"), timeout=timeout, **options)
        return ddp, {"model": ddp, "optimizer": torch.optim.SGD(ddp.parameters(), lr=0.01), "exchange": exchange}
    if case.called == "OneBitAdam":
        adam = OneBitAdam(ddp.parameters(), **options)
        attach_one_bit_adam(adam, ddp, timeout=timeout)
        return ddp, {"model": ddp, "optimizer": adam}
    rounding = options.pop("rounding", "random")
    optimizer = binsgdm.BinSGDM(ddp.parameters(), rounding=rounding)
    binsgdm.attach(optimizer, ddp, timeout=timeout, bucket_cap_mb=0.003, **options)
    return ddp, {"model": ddp, "optimizer": optimizer}


def save(path: Path, step: int, parts: dict[str, Any], befalls: "Befalls | None") -> None:
    """Save a checkpoint, on a disk that fills up where that befalls this rank."""
    state = {name: part.state_dict() for name, part in parts.items()} | {"step": step}
    if befalls is not None:
        befalls.fill_disk(state)
    torch.save(state, path)


class Befalls:
    """What happens to the victim in one step."""

    def __init__(self, plan: Plan, folder: Path, step: int) -> None:
        self._plan, self._folder, self._step = plan, folder, step

    def _note(self) -> None:
        note(self._folder / "befell", pid=os.getpid())

    def now(self) -> bool:
        """Begin; return whether the step is to be skipped."""
        if self._plan.kind in {"kill", "stop"}:
            number = signal.SIGKILL if self._plan.kind == "kill" else signal.SIGSTOP
            threading.Timer(self._plan.delay_s, self._send, [number]).start()
        if self._plan.kind == "skip":
            self._note()
            return True
        return False

    def _send(self, number: int) -> None:
        self._note()
        os.kill(os.getpid(), number)

    def at(self, place: str) -> None:
        """Raise, if it is here."""
        if self._plan.kind == "raise" and self._plan.place == place:
            self._note()
            raise MishapError(place)

    def inside(self, ddp: DistributedDataParallel) -> None:
        """Let forward or backward raise, if it is there."""
        last = ddp.module[-1]
        last.register_forward_hook(lambda *_: self.at("in forward"))
        ddp.module[2].weight.register_hook(lambda _: self.at("in backward"))

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
