"""Why an exchange cannot go on: a rank that refused, or one that is lost; and how all ranks say so in one sentence.

A rank that cannot go on writes its reason to the store and closes its connections: otherwise the other ranks would wait
in a collective for as long as its timeout, and then report the timeout in place of the reason.

gloo says that a connection closed or that nothing came in time, but not whose fault that is: most ranks whose
connections close have themselves failed because of another. So a rank whose collective failed signs in at the store,
and looks who does not: a process of this host that has ended or is stopped is known at once, the others are waited for.
The first to find out leaves it in the store, so that all say the same. What NCCL carries is watched by `nccl_wait`.
"""

import os
import re
import secrets
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from binsgdm.comm.groups import Groups, store_key, timeout_of
from binsgdm.errors import BinsgdmError

T = TypeVar("T")

ANSWER_S = 3.0  # for which a store is asked
ABORT_S = 20.0  # for which NCCL may take to stop its kernels; after it the sentence is told all the same
LONGEST_MEET_POLL_S = 0.05
LONGEST_WAIT_S = 10.0  # for ranks that may not have noticed yet, since they compute
SHORTEST_POLL_S, LONGEST_POLL_S = 0.01, 0.2
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


# A rank that cannot go on


def abort(groups: Groups, reason: str) -> None:
    """Tell the others why, and make every collective with this rank fail; the groups cannot be used any more.

    Over gloo connections close when the last reference to a group is gone, so the caller must drop `groups`, and the
    others fail at once. Over NCCL this rank's kernels stop, and the others find the reason in the store while they wait
    (`binsgdm.comm.nccl_wait`).

    Args:
        groups: of this rank; every reference to them is to be dropped after this.
        reason: one sentence. Only that of the first to abort is kept.
    """
    _leave(groups, f"rank {dist.get_rank()} refused: {reason}")


def give_up(groups: Groups, sentence: str) -> None:
    """Do as `abort`, where this rank did not refuse, but waited in vain for others."""
    _leave(groups, f"rank {dist.get_rank()} gave up: {sentence}")


def abort_reason(groups: Groups) -> str | None:
    """Return the reason of the first rank that aborted, or None if no rank has."""
    key = _key(groups)
    try:
        return ask(lambda store: store.get(key).decode() if store.check([key]) else None)
    except StoreError:  # it is gone with the rank that had it
        return None


def _leave(groups: Groups, reason: str) -> None:
    key = _key(groups)
    # Where the store is gone, so is the rank that had it, and all others are told of that by their own means.
    with suppress(StoreError):
        # The first reason is the cause; the ranks that fail because of it abort as well, with less to say.
        ask(lambda store: store.check([key]) or store.set(key, reason))
    close(groups)


def close(groups: Groups) -> None:
    """Make every collective with this rank fail, without a reason; see `abort`."""
    if not groups.uses_nccl:
        for group in groups.distinct:
            # gloo fails the other ranks' collectives at once when a connection closes.
            dist.destroy_process_group(group)
        return
    # All at once: to abort one communicator NCCL waits for the GPU, where a kernel of another may spin.
    threads = [threading.Thread(target=_abort_communicator, args=(one,), daemon=True) for one in groups.distinct]
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


# Ranks that do not come, and ranks that are lost


def meet(where: str, group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
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
    ranks, name = dist.get_process_group_ranks(group), store_key("meet", group.group_name)
    number = (store.add(f"{name}/arrived", 1) - 1) // len(ranks)  # how often all ranks have met before
    store.set(f"{name}/{number}/{dist.get_rank()}", "here")
    start, poll_s = time.monotonic(), 1e-3
    while store.add(f"{name}/arrived", 0) < (number + 1) * len(ranks):
        if time.monotonic() - start > limit_s:
            return [rank for rank in ranks if not store.check([f"{name}/{number}/{rank}"])]
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, LONGEST_MEET_POLL_S)
    return []


def named(numbers: Sequence[int]) -> str:
    """Return ranks in words."""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {list(numbers)}"


class Home(NamedTuple):
    """Where a rank lives: its host (0 if unknown), its process, and when that began, in ticks of the host's clock."""

    host: int
    pid: int
    start: int


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
            self._ask(lambda store: store.set(self._key(self.rank), "here"))

    def find(self) -> str:
        """Return who is lost, in a clause such as "rank 2 is gone".

        Every rank that has signed in calls it, and closes its connections before, so that others notice.
        """
        try:
            found = self._search()
        except StoreError:
            return self._search_without_store()
        if self.rank == 0 and is_kept_by_rank_0():
            with suppress(StoreError):
                self._let_others_read(found)
        return found

    def _search(self) -> str:
        for waited_s in _polls(self.wait_s):
            found, missing = self._ask(self._look)
            found = found or self._clause(missing, is_over=waited_s >= self.wait_s)
            if found:
                break
        return self._ask(lambda store: self._publish(store, found))

    def _look(self, store: Any) -> tuple[str, list[int]]:
        """Return what another rank has found, or else who has not signed in."""
        if store.check([f"{self.name}/found"]):
            return store.get(f"{self.name}/found").decode(), []
        return "", [rank for rank in self._others if not store.check([self._key(rank)])]

    def _publish(self, store: Any, clause: str) -> str:
        """Leave what was found for the others; return what the first to find out has left."""
        if not store.check([f"{self.name}/found"]):
            store.set(f"{self.name}/found", clause)
        found: str = store.get(f"{self.name}/found").decode()
        return found

    def _clause(self, missing: Sequence[int], *, is_over: bool) -> str:
        """Return who is lost of those that have not signed in; empty where that cannot be told yet."""
        if not missing:
            return "no rank is gone, but the connection of two of them"
        states = {rank: state_of(self.homes[rank]) for rank in missing}
        for state, word in _WORDS.items():
            if ranks := [rank for rank in missing if states[rank] == state]:
                return f"{_named_with_verb(ranks)} {word} ({_processes(self.homes[rank] for rank in ranks)})"
        # Of a single rank on another host nothing more can be learnt: its connections closed, or it let the time pass.
        if is_over or (len(missing) == 1 and states[missing[0]] == "unknown"):
            return f"{_named_with_verb(missing)} gone, or did not take this step"
        return ""

    def _search_without_store(self) -> str:
        """Return who is lost where the store does not answer, which as a rule is in the process of rank 0."""
        had_store = [0] if is_kept_by_rank_0() and 0 in self._others else []
        clause = ""
        for waited_s in _polls(self.wait_s):
            clause = self._clause(had_store or self._others, is_over=waited_s >= self.wait_s)
            if clause:
                break
        return clause if self.has_lost_store else f"{clause}, and the store of torch.distributed does not answer"

    def _let_others_read(self, found: str) -> None:
        """Stay until the others have signed in, and so read: the store ends with this process."""
        lost = {int(number) for number in re.findall(r"\d+", found.partition("(")[0])}
        for waited_s in _polls(self.wait_s):
            states = {rank: state_of(self.homes[rank]) for rank in self._others if rank not in lost}
            keys = [self._key(rank) for rank, state in states.items() if state not in _WORDS]
            if waited_s >= self.wait_s or not keys or ask(partial(_have, keys=keys)):
                break
        time.sleep(LONGEST_POLL_S)  # between a sign-in and the look that follows

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Ask the store, unless it is known to be lost.

        Raises:
            StoreError: it is.
        """
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

    def _key(self, rank: int) -> str:
        return f"{self.name}/{rank}"


def _have(store: Any, keys: Sequence[str]) -> bool:
    return bool(store.check(list(keys)))


def introduce(groups: Groups) -> Company:
    """Let the ranks of an exchange know each other; all of them call it at the same point, over gloo.

    Raises:
        RuntimeError: from torch: a rank is gone already.
    """
    group = groups.all_that_step
    mine = torch.tensor([*_home(), secrets.randbits(62)])
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    rows = [one.tolist() for one in theirs]
    ranks = dist.get_process_group_ranks(group)
    return Company(
        name=f"binsgdm/lost/{rows[0][-1]:x}",
        rank=dist.get_rank(),
        homes={rank: _checked(Home(*row[:-1])) for rank, row in zip(ranks, rows, strict=True)},
        wait_s=_wait_s(groups),
    )


def strangers(groups: Groups) -> Company:
    """Return the ranks of an exchange where they have not come to know each other."""
    return Company(
        name=store_key("lost", groups.all_that_step.group_name),
        rank=dist.get_rank(),
        homes={rank: Home(0, 0, 0) for rank in dist.get_process_group_ranks(groups.all_that_step)},
        wait_s=_wait_s(groups),
    )


def _wait_s(groups: Groups) -> float:
    return min(LONGEST_WAIT_S, groups.timeout.total_seconds())


def state_of(home: Home) -> str:
    """Tell of a process whether it is "running", "stopped" or "ended"; "unknown" on another host."""
    if home.host == 0 or home.host != _host():
        return "unknown"
    found = _stat(home.pid)
    if found is None or found[1] != home.start or found[0] in "ZX":
        return "ended"
    return "stopped" if found[0] in "Tt" else "running"


def _home() -> Home:
    """Return where this process lives."""
    found = _stat(os.getpid())
    return Home(_host() if found else 0, os.getpid(), found[1] if found else 0)


def _checked(home: Home) -> Home:
    """Return a home of this host only where its process can be seen, which it cannot in every container."""
    return home if state_of(home) != "ended" else Home(0, home.pid, home.start)


def _host() -> int:
    """Return a number of this boot of this host, and of its numbering of processes; 0 where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return int.from_bytes(
            blake2b(boot + bytes(Path("/proc/self/ns/pid").readlink()), digest_size=7).digest(), "big"
        )
    except OSError:
        return 0


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state and the start of a process of this host; None if there is none."""
    try:
        # The name of the program stands in parentheses before them, and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


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


def _named_with_verb(ranks: Sequence[int]) -> str:
    return f"{named(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _processes(homes: Iterable[Home]) -> str:
    numbers = [str(home.pid) for home in homes]
    return f"process {numbers[0]}" if len(numbers) == 1 else f"processes {', '.join(numbers)}"


# Sentences


def end_over_gloo(
    where: str, ended: list[Groups], company: Company | None, what: str, error: RuntimeError
) -> BinsgdmError:
    """Return which rank refused, or is lost.

    Args:
        where: the class or function that the user called.
        ended: the groups; taken out of the list, since connections close with the last reference.
        company: the ranks, if they have come to know each other.
        what: has failed.
        error: of torch.
    """
    groups = ended.pop()
    rank, company = groups.global_rank, company or strangers(groups)
    company.sign_in()
    refused = None if company.has_lost_store else abort_reason(groups)
    traceback.clear_frames(error.__traceback__)  # they hold groups
    close(groups)
    del groups
    if refused is not None:
        return BinsgdmError(f"{where}: {_reported(refused, rank)}")
    return BinsgdmError(
        f"{where}: {company.find()}, as rank {rank} noticed in {what} ({_shortened(error)}): no rank can go on alone; "
        f"{REPAIR}"
    )


def end_otherwise(where: str, ended: list[Groups], _: Company | None, what: str, error: RuntimeError) -> BinsgdmError:
    """Do the same over NCCL, or with one rank; `error` says who is missing, if that is known."""
    groups = ended.pop()
    refused, rank = abort_reason(groups), groups.global_rank
    cause = (
        _reported(refused, rank)
        if refused is not None
        else (f"{what} failed on rank {rank} ({_shortened(error)}): a rank is gone or did not take this step; {REPAIR}")
    )
    give_up(groups, f"{where}: {cause}")
    return BinsgdmError(f"{where}: {cause}")


@contextmanager
def in_a_sentence(where: str) -> Iterator[None]:
    """Say that a collective of the user's own group has failed over gloo; nobody knows there whose fault it is."""
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise BinsgdmError(
            f"{where}: a rank is gone, or did not call it ({_shortened(error)}): every rank must call it; read there "
            f"why, and {REPAIR}"
        ) from error


def _reported(refused: str, rank: int) -> str:
    """Return what the rank that aborted has said, for another one."""
    return f"{refused} (reported by rank {rank}, which cannot continue)"


def _shortened(error: RuntimeError) -> str:
    """Return what gloo says without its source lines and advice."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return re.sub(r"^\[\S*gloo\S*\] ", "", text).partition(". This is typically")[0]
