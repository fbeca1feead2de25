"""Why an exchange cannot go on: a rank that refused, or one that is lost; and how all ranks say so in one sentence.

A rank that cannot go on writes its reason to the store and closes its connections: otherwise the other ranks would wait
in a collective for as long as its timeout, and then report the timeout in place of the reason.

gloo says that a connection closed or that nothing came in time, but not whose fault that is: most ranks whose
connections close have themselves failed because of another. So a rank whose collective failed signs in at the store,
and looks who does not: a process of this host that has ended or is stopped is known at once, the others are waited for.
The first to find out leaves it in the store, so that all say the same.

A collective of NCCL returns when it is enqueued. If a rank is gone, its kernel spins on the GPU: no call fails, and the
host blocks where it reads a result, until PyTorch's watchdog ends the process. So before the host reads, it polls the
GPU, the store, in which a rank that refused has left its sentence, and the clock.
"""

import math
import os
import re
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from binsgdm.comm.groups import Groups, store_key, timeout_of
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import streams

T = TypeVar("T")

ANSWER_S = 3.0  # for which a store is asked
ABORT_S = 20.0  # for which NCCL may take to stop its kernels; after it the sentence is told all the same
LONGEST_WAIT_S = 10.0  # for ranks that may not have noticed yet, since they compute
SHORTEST_POLL_S, LONGEST_POLL_S = 0.01, 0.2
LONGEST_BARRIER_POLL_S = 0.05
# Over NCCL a step waits about as long as it takes: the first polls are short, as the GPU idles until the host goes on.
SHORTEST_GPU_POLL_S, LONGEST_GPU_POLL_S = 20e-6, 5e-3
LOOK_S = 0.5  # between looks into the store, which all ranks share
SIGN_IN_S = 5.0  # of waiting, until a rank notes for the others that it waits
# NCCL has reported an error if it says that it is done and the GPU is not: between the two lie only kernels of ours.
REPORTED_S = 10.0
REPAIR = "start all ranks again from their checkpoints"
_WORDS = {"ended": "gone", "stopped": "stopped"}
_silent: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Stores that did not answer once: they are not waited for again."""


class StoreError(Exception):
    """The store is gone, or its process does not answer."""


class SilentStoreError(StoreError):
    """The store's process does not answer: it is stopped, or cannot be reached."""


def ask(question: Callable[[Any], T], limit_s: float | None = None) -> T:
    """Call something with the store, and return its result.

    Args:
        question: called in a thread, which is left behind where no answer comes.
        limit_s: for which to wait; default `ANSWER_S`.

    Raises:
        StoreError: there is none. A store that was silent once is not asked again.
    """
    store = default_store()
    if store in _silent:
        raise SilentStoreError
    answers: list[T] = []

    def call() -> None:
        with suppress(RuntimeError):
            answers.append(question(store))

    # A thread, since calls have no timeout: they wait for ever for a process that is stopped.
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(ANSWER_S if limit_s is None else limit_s)
    if thread.is_alive():
        _silent.add(store)
        raise SilentStoreError
    if not answers:
        raise StoreError
    return answers[0]


def default_store() -> Any:
    """Return the store that init_process_group has made."""
    return dist.distributed_c10d._get_default_store()  # torch has no public name for it


def is_kept_by_rank_0() -> bool:
    """Tell whether the store ends with rank 0: it is no file, and in no process of torchrun, as far as can be known."""
    store = default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return type(store).__name__ == "TCPStore" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def named(numbers: Sequence[int]) -> str:
    """Return ranks in words."""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {list(numbers)}"


def _polls(limit_s: float) -> Iterable[float]:
    """Yield how much time has passed [s], after pauses that grow, until the limit has."""
    start, pause_s, waited_s = time.monotonic(), SHORTEST_POLL_S, 0.0
    while True:
        yield waited_s
        if waited_s >= limit_s:
            return
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
        waited_s = time.monotonic() - start


def store_barrier(where: str, group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
    """Wait until all ranks of a group are here; every one of them must call it, as often as the others.

    Args:
        where: begins the message.
        group: default all ranks.
        timeout: after which the ranks that are here give up; default that of the group.

    Raises:
        BinsgdmError: a rank did not come, by its number; or the store is gone, or does not answer.
    """
    group = group or dist.group.WORLD
    assert group is not None  # torch.distributed is initialized
    limit_s = (timeout or timeout_of(group)).total_seconds()
    try:
        missing = ask(partial(_missing, group=group, limit_s=limit_s), limit_s + ANSWER_S)
    except StoreError:
        raise BinsgdmError(
            f"{where}: the store of torch.distributed is gone or does not answer, and with it the rank that keeps it: "
            f"no rank can wait for the others; {REPAIR}"
        ) from None
    if missing:
        raise BinsgdmError(
            f"{where}: {named(missing)} did not come within {limit_s:g} s: every rank must call it; read there why"
        )


def _missing(store: Any, group: dist.ProcessGroup, limit_s: float) -> list[int]:
    """Note in the store that this rank is here; return who is not when all have come or time is up."""
    ranks, name = dist.get_process_group_ranks(group), store_key("barrier", group.group_name)
    number = (store.add(f"{name}/arrived", 1) - 1) // len(ranks)  # how often all ranks have met before
    store.set(f"{name}/{number}/{dist.get_rank()}", "here")
    start, poll_s = time.monotonic(), 1e-3
    while store.add(f"{name}/arrived", 0) < (number + 1) * len(ranks):
        if time.monotonic() - start > limit_s:
            return [rank for rank in ranks if not store.check([f"{name}/{number}/{rank}"])]
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, LONGEST_BARRIER_POLL_S)
    return []


# A rank that cannot go on


def abort(groups: Groups, reason: str, how: str = "refused") -> None:
    """Tell the others why, and make every collective with this rank fail; the groups cannot be used any more.

    Over gloo connections close when the last reference to a group is gone, so the caller must drop `groups`, and the
    others fail at once. Over NCCL this rank's kernels stop, and the others find the reason in the store while they wait
    (`Pending`).

    Args:
        groups: of this rank; every reference to them is to be dropped after this.
        reason: one sentence. Only that of the first to abort is kept: it is the cause, the others have less to say.
        how: "gave up" where this rank did not refuse, but waited in vain for others.
    """
    # Where the store is gone, so is the rank that had it, and all others are told of that by their own means.
    with suppress(StoreError):
        ask(methodcaller("compare_set", _key(groups), "", f"rank {dist.get_rank()} {how}: {reason}"))
    close(groups)


def abort_reason(groups: Groups) -> str | None:
    """Return the reason of the first rank that aborted, or None if no rank has."""
    key = _key(groups)
    try:
        return ask(lambda store: store.get(key).decode() if store.check([key]) else None)
    except StoreError:  # it is gone with the rank that had it
        return None


def close(groups: Groups) -> None:
    """Make every collective with this rank fail, without a reason; see `abort`."""
    if not groups.uses_nccl:
        for group in groups.distinct:
            # gloo fails the other ranks' collectives at once when a connection closes.
            dist.destroy_process_group(group)
        return
    # All at once: to abort one communicator NCCL waits for the GPU, where a kernel of another may spin.
    threads = [threading.Thread(target=_abort_communicator, args=(group,), daemon=True) for group in groups.distinct]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ABORT_S)


def _abort_communicator(group: dist.ProcessGroup) -> None:
    """Stop the kernels of a group, which would spin for ever on a rank that is gone."""
    # Whoever aborts has a sentence to raise, of which an error here would be a consequence.
    with suppress(RuntimeError):
        # Of the backend alone: that of a group with gloo beside NCCL need not have an abort.
        backend: Any = group._get_backend(torch.device("cuda"))
        backend = getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
        # Before PyTorch 2.6 what a backend of NCCL calls shutdown aborts.
        stop = backend.abort if hasattr(backend, "abort") else backend._shutdown
        stop()


def _key(groups: Groups) -> str:
    return store_key("refused", groups.all_that_step.group_name)


# Ranks that are lost over gloo


class Home(NamedTuple):
    """Where a rank lives: its host (0 if unknown), its process, and when that began, in ticks of the host's clock."""

    host: int = 0
    pid: int = 0
    start: int = 0


def state_of(home: Home) -> str:
    """Tell of a process whether it is "running", "stopped" or "ended"; "unknown" on another host."""
    if home.host == 0 or home.host != _host():
        return "unknown"
    stat = _stat(home.pid)
    if stat is None or stat[1] != home.start or stat[0] in "ZX":
        return "ended"
    return "stopped" if stat[0] in "Tt" else "running"


def _home() -> Home:
    """Return where this process lives."""
    stat = _stat(os.getpid())
    return Home(_host() if stat else 0, os.getpid(), stat[1] if stat else 0)


def _host() -> int:
    """Return a number of this boot of this host, and of its numbering of processes; 0 where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = bytes(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return 0
    return int.from_bytes(blake2b(boot + namespace, digest_size=7).digest(), "big")


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state and the start of a process of this host; None if there is none."""
    try:
        # The name of the program stands in parentheses before them, and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


@dataclass(frozen=True, kw_only=True)
class Company:
    """The ranks of an exchange, as they knew each other when it began.

    Attributes:
        name: of this exchange in the store, used by no other.
        rank: global, of this process.
        homes: of all ranks, by global rank.
        wait_s: for how long at most to wait for ranks that may not have noticed.
    """

    name: str
    rank: int
    homes: Mapping[int, Home]
    wait_s: float

    def sign_in(self) -> None:
        """Note that a collective failed on this rank, so that no other takes this one for lost."""
        with suppress(StoreError):
            self._ask(methodcaller("set", self._key(self.rank), "here"))

    def find(self) -> str:
        """Return who is lost, in a clause such as "rank 2 is gone".

        Every rank that has signed in calls it, and closes its connections before, so that others notice.
        """
        try:
            clause = self._search(lambda: self._ask(self._look))
            common: str = self._ask(methodcaller("compare_set", self._key("found"), "", clause)).decode()
        except StoreError:  # which as a rule is in the process of rank 0
            had_store = [0] if is_kept_by_rank_0() and 0 in self._others else self._others
            clause = self._search(lambda: had_store)
            return clause if self.has_lost_store else f"{clause}, and the store of torch.distributed does not answer"
        if self.rank == 0 and is_kept_by_rank_0():
            with suppress(StoreError):
                self._let_others_read(common)
        return common

    def _search(self, look: Callable[[], str | list[int]]) -> str:
        """Look until another rank has found who is lost, or it can be told from who has not signed in."""
        clause = ""
        for waited_s in _polls(self.wait_s):
            seen = look()
            clause = seen if isinstance(seen, str) else self._clause(seen, is_over=waited_s >= self.wait_s)
            if clause:
                break
        return clause

    def _look(self, store: Any) -> str | list[int]:
        """Return what another rank has found, or else who has not signed in."""
        if store.check([self._key("found")]):
            clause: str = store.get(self._key("found")).decode()
            return clause
        return [rank for rank in self._others if not store.check([self._key(rank)])]

    def _clause(self, missing: Sequence[int], *, is_over: bool) -> str:
        """Return who is lost of those that have not signed in; empty where that cannot be told yet."""
        if not missing:
            return "no rank is gone, but the connection of two of them"
        states = {rank: state_of(self.homes[rank]) for rank in missing}
        for state, word in _WORDS.items():
            if ranks := [rank for rank in missing if states[rank] == state]:
                processes = ", ".join(str(self.homes[rank].pid) for rank in ranks)
                return f"{_with_verb(ranks)} {word} (process{'es' * (len(ranks) > 1)} {processes})"
        # Of a single rank on another host nothing more can be learnt: its connections closed, or it let the time pass.
        if is_over or (len(missing) == 1 and states[missing[0]] == "unknown"):
            return f"{_with_verb(missing)} gone, or did not take this step"
        return ""

    def _let_others_read(self, clause: str) -> None:
        """Stay until the others have signed in, and so read: the store ends with this process."""
        lost = {int(number) for number in re.findall(r"\d+", clause.partition("(")[0])}
        for waited_s in _polls(self.wait_s):
            reading = [rank for rank in self._others if rank not in lost and state_of(self.homes[rank]) not in _WORDS]
            keys = [self._key(rank) for rank in reading]
            if waited_s >= self.wait_s or not keys or ask(methodcaller("check", keys)):
                break
        time.sleep(LONGEST_POLL_S)  # between a sign-in and the look that follows

    def _ask(self, question: Callable[[Any], T]) -> T:
        # One that is known to be lost may be silent for ever.
        if self.has_lost_store:
            raise StoreError
        return ask(question)

    @property
    def has_lost_store(self) -> bool:
        """Whether the store is in a process of this host that has ended, or is stopped and would never answer."""
        return is_kept_by_rank_0() and 0 in self.homes and state_of(self.homes[0]) in _WORDS

    @property
    def _others(self) -> list[int]:
        return [rank for rank in self.homes if rank != self.rank]

    def _key(self, name: object) -> str:
        return f"{self.name}/{name}"


def _with_verb(ranks: Sequence[int]) -> str:
    return f"{named(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def introduce(groups: Groups) -> Company:
    """Let the ranks of an exchange know each other; all of them call it at the same point, over gloo."""
    group = groups.all_that_step
    introduction = torch.tensor([*_home(), secrets.randbits(62)])
    theirs = [torch.empty_like(introduction) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, introduction, group=group)
    *homes, name = zip(*(row.tolist() for row in theirs), strict=True)
    return _company(groups, f"binsgdm/lost/{name[0]:x}", [Home(*fields) for fields in zip(*homes, strict=True)])


def _company(groups: Groups, name: str, homes: Sequence[Home]) -> Company:
    ranks = dist.get_process_group_ranks(groups.all_that_step)
    return Company(
        name=name,
        rank=dist.get_rank(),
        # One of this host only where its process can be seen, which it cannot in every container.
        homes={rank: home if state_of(home) != "ended" else Home() for rank, home in zip(ranks, homes, strict=True)},
        wait_s=min(LONGEST_WAIT_S, groups.timeout.total_seconds()),
    )


# Waiting for what NCCL carries


class Pending:
    """The collectives that one rank has enqueued and that may not be done."""

    def __init__(self) -> None:
        self._num_waits = 0  # the same on all ranks, whose steps wait at the same points
        self._works: dict[dist.ProcessGroup, dist.Work] = {}
        self._device = torch.device("cpu")

    def add(self, work: "dist.Work", group: dist.ProcessGroup, device: torch.device) -> None:
        """Let the current stream wait for a collective; the host goes on."""
        work.wait()
        self._works[group] = work  # the last of a group is enough: they are done one after the other
        self._device = device

    def clear(self) -> None:
        """Forget all: they were aborted."""
        self._works.clear()

    def wait(self, groups: Groups) -> None:
        """Block the host until all are done, and with them what was enqueued on this stream.

        Raises:
            RuntimeError: another rank refused, or did not come in time, or NCCL failed.
        """
        if not self._works:
            return
        on_device = streams.of(self._device)
        event = on_device.record(on_device.current())  # None on a CPU
        self._num_waits += 1
        start, timeout_s = time.monotonic(), groups.timeout.total_seconds()
        waited_s, next_look_s = 0.0, min(LOOK_S, timeout_s / 4)
        sign_in_s, reported_s = min(SIGN_IN_S, timeout_s / 4), math.inf
        while True:
            if all(work.is_completed() for work in self._works.values()):
                if event is None or event.query():
                    break
                # A failed collective counts as ended, too, but the GPU does not get beyond it.
                reported_s = min(reported_s, waited_s)
            if waited_s >= next_look_s:
                next_look_s = waited_s + LOOK_S
                _look_into_store(groups)
                if waited_s - reported_s > REPORTED_S:
                    raise RuntimeError("NCCL reported an error; see its log, or set NCCL_DEBUG=WARN")
                if waited_s >= sign_in_s:
                    sign_in_s = math.inf
                    with suppress(StoreError):  # without the store nobody can be named
                        ask(methodcaller("set", _waits(groups, dist.get_rank()), str(self._num_waits)))
                if waited_s >= timeout_s:
                    raise RuntimeError(f"no answer for {timeout_s:g} s" + self._missing_ranks(groups))
            time.sleep(min(max(waited_s / 50, SHORTEST_GPU_POLL_S), LONGEST_GPU_POLL_S))
            waited_s = time.monotonic() - start
        for work in self._works.values():
            work.wait()  # raises what PyTorch's watchdog has found
        self._works.clear()

    def _missing_ranks(self, groups: Groups) -> str:
        """Return which ranks do not wait as often as this one, in words that begin with a comma; empty if unknown."""
        keys = {rank: _waits(groups, rank) for rank in dist.get_process_group_ranks(groups.all_that_step)}
        with suppress(StoreError):
            waits = ask(lambda store: {rank: store.get(key) for rank, key in keys.items() if store.check([key])})
            missing = [rank for rank in keys if int(waits.get(rank, 0)) != self._num_waits]
            if 0 < len(missing) < len(keys):
                return f", {named(missing)} not among those that wait"
        return ""


def _look_into_store(groups: Groups) -> None:
    if abort_reason(groups) is not None:
        raise RuntimeError("another rank has aborted")
    try:
        ask(methodcaller("check", ["binsgdm"]))
    except SilentStoreError:
        pass  # its process may be stopped for a while only: the clock decides
    except StoreError:
        raise RuntimeError("the store of torch.distributed is gone, and with it the process that had it") from None


def _waits(groups: Groups, rank: int) -> str:
    return store_key("waits", groups.all_that_step.group_name, rank)


# Sentences


def end(where: str, ended: list[Groups], company: Company | None, what: str, error: RuntimeError) -> BinsgdmError:
    """Return which rank refused, or is lost.

    Args:
        where: the class or function that the user called.
        ended: the groups; taken out of the list, since connections close with the last reference.
        company: the ranks, if they have come to know each other.
        what: has failed.
        error: of torch; over NCCL, or with one rank, it says who is missing, if that is known.
    """
    groups = ended.pop()
    rank, shortened = groups.global_rank, gloo_reason(error)
    if groups.are_connected:
        if company is None:
            strangers = [Home()] * dist.get_world_size(groups.all_that_step)
            company = _company(groups, store_key("lost", groups.all_that_step.group_name), strangers)
        company.sign_in()
    refused = None if company is not None and company.has_lost_store else abort_reason(groups)
    cause = f"{refused} (reported by rank {rank}, which cannot continue)"
    if company is None:
        if refused is None:
            cause = f"{what} failed on rank {rank} ({shortened}): a rank is gone or did not take this step; {REPAIR}"
        abort(groups, f"{where}: {cause}", "gave up")
        return BinsgdmError(f"{where}: {cause}")
    traceback.clear_frames(error.__traceback__)  # they hold groups
    close(groups)
    del groups
    if refused is None:
        cause = f"{company.find()}, as rank {rank} noticed in {what} ({shortened}): no rank can go on alone; {REPAIR}"
    return BinsgdmError(f"{where}: {cause}")


def gloo_reason(error: RuntimeError) -> str:
    """Return what gloo says without its source lines and advice."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S*gloo\S*\] ", "", text).partition(". This is typically")[0]
